"""The manifest object on the store. A job replaces only the version that it has read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from sidetier.pipeline.export.errors import OtherWriterError
from sidetier.pipeline.export.files.names import STATE_DIRECTORY, topic_prefix
from sidetier.pipeline.export.state.manifest import Manifest, decode_manifest, encode_manifest
from sidetier.segments.errors import ObjectNotFoundError, PreconditionFailedError
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import Condition, IfAbsent, IfMatch, RemoteStorage

MANIFEST_NAME: Final = "manifest.json"


def manifest_key(topics_dir: str, topic: str) -> str:
    """Return the key of the manifest of a topic's export."""
    return f"{topic_prefix(topics_dir, topic)}{STATE_DIRECTORY}/{MANIFEST_NAME}"


def new_nonce() -> str:
    """Return a new random nonce."""
    return uuid4().hex


@dataclass(frozen=True, slots=True)
class Held:
    """A manifest as it was read or written, and its object's ETag; None if there is no object."""

    manifest: Manifest
    etag: str | None


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """Reader and writer of one manifest.

    Each write is atomic: a kill leaves the manifest as it was before the write or after it.
    """

    store: RemoteStorage
    key: str
    url: str
    """URL of the store, for errors."""
    nonce: Callable[[], str] = new_nonce

    @property
    def where(self) -> str:
        """URL of the manifest, for errors."""
        return f"{self.url}/{self.key}"

    def load(self, cluster: str, topic: str, asked: str | None) -> Held:
        """Read the manifest; return an empty one for this export if none is stored.

        Raises:
            NewerStateError, MalformedObjectError: see `decode_manifest`.
            StorageError: see `RemoteStorage.get_object`.
        """
        try:
            stored = self.store.get_object(self.key)
        except ObjectNotFoundError:
            empty = Manifest(cluster=cluster, topic=topic, asked=asked, nonce=self.nonce())
            return Held(empty, None)
        return Held(decode_manifest(stored.data, self.where), stored.head.etag)

    def replace(self, held: Held, manifest: Manifest) -> Held:
        """Write `manifest` with a condition: the stored object is still the one in `held`.

        Raises:
            OtherWriterError: another job has changed the manifest.
            StorageError: see `RemoteStorage.put_object`. The write may have succeeded.
        """
        condition: Condition = IfAbsent() if held.etag is None else IfMatch(held.etag)
        try:
            etag = self.store.put_object(
                self.key, BytesBody(encode_manifest(manifest)), condition=condition
            )
        except PreconditionFailedError:
            # An earlier attempt may have succeeded although its answer was lost: compare nonces.
            now = self.load(manifest.cluster, manifest.topic, manifest.asked)
            if now.etag is not None and now.manifest.nonce == manifest.nonce:
                return now
            raise OtherWriterError(
                f"{self.where}: another export has written its state since this one began; "
                "nothing of this run is part of the output: run it again once the other has ended"
            ) from None
        return Held(manifest, etag)

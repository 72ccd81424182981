"""The manifest on the store: read, and replaced only over what was read."""

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
    """Where the manifest of a topic's export lies."""
    return f"{topic_prefix(topics_dir, topic)}{STATE_DIRECTORY}/{MANIFEST_NAME}"


def new_nonce() -> str:
    """Another one each time."""
    return uuid4().hex


@dataclass(frozen=True, slots=True)
class Held:
    """A manifest as it was read or written, and the version of the object; None: there is none."""

    manifest: Manifest
    etag: str | None


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """Reads and writes one manifest.

    Each write is atomic: a kill leaves the one before or the one after it.
    """

    store: RemoteStorage
    key: str
    url: str
    """The store's, for errors."""
    nonce: Callable[[], str] = new_nonce

    @property
    def where(self) -> str:
        """The manifest's place, for errors."""
        return f"{self.url}/{self.key}"

    def load(self, cluster: str, topic: str, asked: str | None) -> Held:
        """What is stored; an empty manifest of this export where nothing is.

        Raises:
            NewerStateError, MalformedObjectError: see `decode_manifest`.
            StorageError: as the port says.
        """
        try:
            found = self.store.get_object(self.key)
        except ObjectNotFoundError:
            empty = Manifest(cluster=cluster, topic=topic, asked=asked, nonce=self.nonce())
            return Held(empty, None)
        return Held(decode_manifest(found.data, self.where), found.head.etag)

    def replace(self, held: Held, manifest: Manifest) -> Held:
        """Write a manifest over the one that is held.

        Raises:
            OtherWriterError: it is not there any more.
            StorageError: as the port says; the write may have happened.
        """
        condition: Condition = IfAbsent() if held.etag is None else IfMatch(held.etag)
        try:
            etag = self.store.put_object(
                self.key, BytesBody(encode_manifest(manifest)), condition=condition
            )
        except PreconditionFailedError:
            # A try whose answer was lost may have succeeded: then the nonce there is ours.
            now = self.load(manifest.cluster, manifest.topic, manifest.asked)
            if now.etag is not None and now.manifest.nonce == manifest.nonce:
                return now
            raise OtherWriterError(
                f"{self.where}: another export has written its state since this one began; "
                "nothing of this run is part of the output: run it again once the other has ended"
            ) from None
        return Held(manifest, etag)

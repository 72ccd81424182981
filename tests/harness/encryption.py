"""Stores with encryption: keys, stores over a driver, and keys that every store encrypts."""

import base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from sidetier.storage.checks import check_key
from sidetier.storage.encrypted_format import decode_header, is_encrypted, parse_marker
from sidetier.storage.encrypted_streams import ObjectCipher
from sidetier.storage.encrypting import EncryptingStorage, decrypted
from sidetier.storage.encryption_keys import Keyring
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import (
    NO_OPTIONS,
    Body,
    Condition,
    IfMatch,
    ObjectHead,
    ObjectSummary,
    PutOptions,
    RemoteStorage,
    StorageCapabilities,
    StoredObject,
)
from sidetier.storage.settings import EncryptionSettings, KmsKeySettings, LocalKeySettings
from tests.harness.archive_objects import Objects

FIRST = LocalKeySettings(bytes(range(32)))
SECOND = LocalKeySettings(bytes(range(1, 33)))


def settings(
    key: str | None = "k1", **keys: LocalKeySettings | KmsKeySettings
) -> EncryptionSettings:
    """Return settings with these keys, by default `FIRST` under the name `k1`."""
    return EncryptionSettings(keys=tuple((keys or {"k1": FIRST}).items()), key=key, topics=(".*",))


RING = Keyring(settings())


def encrypting(inner: RemoteStorage, chosen: EncryptionSettings | None = None) -> EncryptingStorage:
    """Return a store that encrypts every `.log`."""
    return EncryptingStorage(inner, Keyring(chosen or settings()), lambda _: True)


def without_keys(inner: RemoteStorage) -> EncryptingStorage:
    """Return the store of a process without keys."""
    return EncryptingStorage(inner)


def write_key(path: Path, key: LocalKeySettings = FIRST) -> Path:
    """Write a key as `storage.encryption.keys` takes it from a file."""
    path.write_text(base64.b64encode(key.secret).decode() + "\n")
    return path


def encryption(
    directory: Path,
    key: str | None = "k1",
    *,
    topics: Sequence[str] = (".*",),
    **keys: LocalKeySettings,
) -> dict[str, object]:
    """Return `storage.encryption` with these keys in files, by default `FIRST` as `k1`."""
    chosen = keys or {"k1": FIRST}
    places = {
        name: {"file": str(write_key(directory / name, secret))} for name, secret in chosen.items()
    }
    return {"topics": list(topics), "key": key, "keys": places}


def count_logs(objects: Objects) -> tuple[int, int]:
    """Return how many `.log` objects are not encrypted, and how many are."""
    logs = [objects.read(key) or b"" for key in objects.listing() if key.endswith(".log")]
    encrypted = sum(map(is_encrypted, logs))
    return len(logs) - encrypted, encrypted


class DecryptedView(FakeStorage):
    """A store in memory that shows the plaintext of its contents, without markers."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__(now_ms=now_ms)
        self._plain: dict[str, tuple[bytes, bytes]] = {}
        """Stored bytes and plaintext by key: an object that has not changed stays the same."""

    def contents(self) -> dict[str, bytes]:
        shown = {}
        for key, data in super().contents().items():
            if parse_marker(key) is None:
                shown[key] = self._decrypted(key, data) if is_encrypted(data) else data
        return shown

    def _decrypted(self, key: str, data: bytes) -> bytes:
        known = self._plain.get(key)
        if known is None or known[0] is not data:
            header = decode_header(data, key)
            assert header is not None
            cipher = ObjectCipher(header, RING.unwrap(header.key_name, header.wrapped_key, key))
            known = self._plain[key] = data, decrypted(key, data, cipher)
        return known[1]


_LOG = "/orders-0/00000000000000000000.log"


@dataclass(frozen=True, slots=True)
class AllLogs:
    """A store in which every object is the `.log` of a segment, for the contract of the port.

    Only these are encrypted, and the contract uses any key. All have the same partition and base
    offset, and a folder each, so that copies can be decrypted.
    """

    inner: EncryptingStorage

    @property
    def capabilities(self) -> StorageCapabilities:
        return self.inner.capabilities

    def put_object(self, key: str, body: Body, options: PutOptions = NO_OPTIONS) -> str:
        return self.inner.put_object(self._below(key), body, options)

    def get_object(self, key: str) -> StoredObject:
        stored = self.inner.get_object(self._below(key))
        return replace(stored, head=replace(stored.head, key=key))

    def get_object_input_stream(
        self, key: str, start: int = 0, end: int | None = None, *, condition: IfMatch | None = None
    ) -> BinaryIO:
        return self.inner.get_object_input_stream(self._below(key), start, end, condition=condition)

    def list_objects(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectSummary]:
        rows = (
            replace(row, key=row.key.removesuffix(_LOG)) for row in self.inner.list_objects(prefix)
        )
        # `.log` changes the order of the keys.
        ordered = sorted(rows, key=lambda row: row.key.encode())
        return (
            row
            for row in ordered
            if row.key.startswith(prefix) and row.key.encode() > start_after.encode()
        )

    def list_directories(self, prefix: str) -> list[str]:
        keys = [row.key for row in self.list_objects(prefix)]
        names = self.inner.list_directories(prefix)
        # Without the folder that each key has here.
        return [name for name in names if any(key.startswith(name) for key in keys)]

    def head_object(self, key: str, *, with_checksum: bool = False) -> ObjectHead:
        head = self.inner.head_object(self._below(key), with_checksum=with_checksum)
        return replace(head, key=key)

    def delete_object(self, key: str, *, condition: IfMatch | None = None) -> None:
        self.inner.delete_object(self._below(key), condition=condition)

    def delete_objects(self, keys: Sequence[str]) -> None:
        self.inner.delete_objects([self._below(key) for key in keys])

    def copy_object(self, source: str, target: str, *, condition: Condition | None = None) -> str:
        return self.inner.copy_object(self._below(source), self._below(target), condition=condition)

    def close(self) -> None:
        self.inner.close()

    def _below(self, key: str) -> str:
        check_key(key)
        return key + _LOG

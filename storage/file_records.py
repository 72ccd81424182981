"""Metadata of an object in the file-system store, and the file version that it describes.

The record of an object is in a separate directory tree, named by the SHA-256 of the key (the key
with a suffix could be too long, or be the name of another key's directory). It identifies the file
by size and modification time; the store never gives two successive versions of a key the same pair.
While a key is overwritten its record file describes both versions, so a kill between the two
renames loses nothing. A file without a record (created by hand, by `rsync` without times, by
Pinterest's uploader) is an object without metadata.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sidetier.segments.json_text import parse_json
from sidetier.storage.port import Checksum, ChecksumAlgorithm, ObjectHead

FORMAT: Final = 1
_DAMAGE: Final = (ValueError, KeyError, TypeError)


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a file version: size in bytes and modification time in ns since 1970."""

    size: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Identity":
        """Return the identity from a stat result."""
        return cls(status.st_size, status.st_mtime_ns)

    @property
    def modified_ms(self) -> int:
        """Modification time in ms since 1970."""
        return self.modified_ns // 1_000_000


@dataclass(frozen=True, slots=True)
class Record:
    """Metadata of one version of an object."""

    identity: Identity
    etag: str
    metadata: Mapping[str, str]
    checksum: Checksum | None

    def head(self, key: str) -> ObjectHead:
        """Return the properties in the port's form."""
        return ObjectHead(
            key,
            self.identity.size,
            self.etag,
            self.identity.modified_ms,
            self.metadata,
            self.checksum,
        )


def undescribed(identity: Identity) -> Record:
    """Return a record for a file that has none."""
    etag = f"{identity.modified_ns:x}-{identity.size:x}"
    return Record(identity, etag, {}, None)


def pick(records: tuple[Record, ...], identity: Identity) -> Record | None:
    """Return the record that describes this version of the file; None if there is none."""
    return next((record for record in records if record.identity == identity), None)


def etag_in(data: bytes, identity: Identity) -> str | None:
    """Return the version's etag without decoding the whole record, for listings."""
    try:
        return next(
            (
                str(version["etag"])
                for version in _versions(data)
                if version["modified_ns"] == identity.modified_ns
                and version["size"] == identity.size
            ),
            None,
        )
    except _DAMAGE:
        return None


def encode(key: str, records: tuple[Record, ...]) -> bytes:
    """Return the bytes of a record file. The key is included for human readers."""
    versions = [_to_json(record) for record in records]
    content = {"format": FORMAT, "key": key, "versions": versions}
    return json.dumps(content, sort_keys=True).encode()


def decode(data: bytes) -> tuple[Record, ...]:
    """Return the records of a record file; empty if it is damaged or of an unknown format."""
    try:
        return tuple(_from_json(version) for version in _versions(data))
    except _DAMAGE:
        return ()


def _versions(data: bytes) -> list[Any]:
    """Return the versions of a record file; raises an error of `_DAMAGE` if it is damaged."""
    parsed = parse_json(data.decode())
    known: list[Any] = parsed["versions"] if parsed["format"] == FORMAT else []
    return known


def _to_json(record: Record) -> dict[str, Any]:
    checksum = record.checksum
    return {
        "size": record.identity.size,
        "modified_ns": record.identity.modified_ns,
        "etag": record.etag,
        "metadata": dict(record.metadata),
        "checksum": checksum and {checksum.algorithm.value: checksum.value.hex()},
    }


def _from_json(version: dict[str, Any]) -> Record:
    checksums = [
        Checksum(ChecksumAlgorithm(name), bytes.fromhex(value))
        for name, value in (version["checksum"] or {}).items()
    ]
    return Record(
        Identity(int(version["size"]), int(version["modified_ns"])),
        str(version["etag"]),
        {str(name): str(value) for name, value in version["metadata"].items()},
        checksums[0] if checksums else None,
    )

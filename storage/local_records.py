"""What the file-system store knows of an object beside its bytes, and which file it speaks of.

An object's record lies in a tree of its own, named by the SHA-256 of the key (the key with a suffix
could be too long, or the name of another key's directory). It names the file by size and
modification time; the store never gives two successive versions of a key the same. While a key is
overwritten its record file holds both versions, so that either file is described: nothing is lost
when the process is killed between the two renames. A file that no record describes (put there by
hand, by `rsync` without times, by Pinterest's uploader) is an object without metadata.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sidetier.storage.port import Checksum, ChecksumAlgorithm, ObjectHead

FORMAT: Final = 1
_DAMAGE: Final = (ValueError, KeyError, TypeError)


@dataclass(frozen=True, slots=True)
class Identity:
    """Which version of a file."""

    size: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Identity":
        """Of a file that has been looked at."""
        return cls(status.st_size, status.st_mtime_ns)

    @property
    def modified_ms(self) -> int:
        """When the file was written, in ms since 1970."""
        return self.modified_ns // 1_000_000


@dataclass(frozen=True, slots=True)
class Record:
    """One version of an object."""

    identity: Identity
    etag: str
    metadata: Mapping[str, str]
    checksum: Checksum | None

    def head(self, key: str) -> ObjectHead:
        """As the port shows it."""
        return ObjectHead(
            key,
            self.identity.size,
            self.etag,
            self.identity.modified_ms,
            self.metadata,
            self.checksum,
        )


def undescribed(identity: Identity) -> Record:
    """The record of a file that has none."""
    etag = f"{identity.modified_ns:x}-{identity.size:x}"
    return Record(identity, etag, {}, None)


def pick(records: tuple[Record, ...], identity: Identity) -> Record | None:
    """The record that speaks of this version of the file."""
    return next((record for record in records if record.identity == identity), None)


def etag_in(data: bytes, identity: Identity) -> str | None:
    """The etag of this version, as `decode` and `pick` find it: a listing needs no more."""
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
    """A record file; the key is in it for the people who look."""
    versions = [_to_json(record) for record in records]
    content = {"format": FORMAT, "key": key, "versions": versions}
    return json.dumps(content, sort_keys=True).encode()


def decode(data: bytes) -> tuple[Record, ...]:
    """The reverse; nothing for a file that is damaged or of a format not known here."""
    try:
        return tuple(_from_json(version) for version in _versions(data))
    except _DAMAGE:
        return ()


def _versions(data: bytes) -> list[Any]:
    """The versions in a record file; raises what `_DAMAGE` has where it is damaged."""
    parsed = json.loads(data.decode())
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

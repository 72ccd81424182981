"""What the fsspec store keeps beside an object: a companion with its metadata.

Drivers differ in how they keep metadata, and some keep none; a companion object works on all. It is
written after the object and tells by a fingerprint which version it describes, so a kill in between
leaves an object without metadata, never one with metadata of another.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from sidetier.storage.port import Checksum, ChecksumAlgorithm

FORMAT: Final = 1
_TELLING: Final = (
    "etag",
    "ETag",
    "generation",
    "content_settings",
    "created",
    "mtime",
    "last_modified",
    "LastModified",
    "updated",
)


@dataclass(frozen=True, slots=True)
class Companion:
    """One object's metadata, and the version that it belongs to."""

    fingerprint: str
    etag: str
    metadata: Mapping[str, str]
    checksum: Checksum | None


def fingerprint(info: Mapping[str, Any], modified: object) -> str:
    """Tells two versions of an object apart, as far as the driver shows a difference."""
    told = [str(info.get(name, "")) for name in _TELLING]
    return sha256("\n".join([str(info.get("size")), str(modified), *told]).encode()).hexdigest()


def encode(companion: Companion) -> bytes:
    """The companion object's bytes."""
    checksum = companion.checksum
    content = {
        "format": FORMAT,
        "fingerprint": companion.fingerprint,
        "etag": companion.etag,
        "metadata": dict(companion.metadata),
        "checksum": checksum and [checksum.algorithm.value, checksum.value.hex()],
    }
    return json.dumps(content, sort_keys=True).encode()


def decode(data: bytes) -> Companion | None:
    """The reverse; None for what is damaged or of a format not known here."""
    try:
        content = json.loads(data)
        if content["format"] != FORMAT:
            return None
        checksum = content["checksum"] and Checksum(
            ChecksumAlgorithm(content["checksum"][0]), bytes.fromhex(content["checksum"][1])
        )
        metadata = {str(name): str(value) for name, value in content["metadata"].items()}
        return Companion(content["fingerprint"], content["etag"], metadata, checksum or None)
    except (ValueError, KeyError, TypeError, IndexError):
        return None

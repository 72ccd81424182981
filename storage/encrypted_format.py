"""Format of an encrypted `.log` or tail pack, and of the marker that shows the size of a `.log` in
listings. Pure.

::

    header     1,024 bytes: magic, version, plaintext size, salt, key name, wrapped data key, place,
               zeros
    chunk 0    up to 65,536 bytes of plaintext with AES-256-GCM, and the tag of 16 bytes
    ...
    chunk n-1  the last one; an empty plaintext has one empty chunk

This is the construction of Tink's streaming AEAD (AES-GCM-HKDF): the key of the object is
HKDF-SHA256(data key, salt, info = header), and the nonce of a chunk is its number and whether it is
the last one. So a changed header, and chunks that were cut off, reordered, repeated or appended, do
not decrypt. Chunks decrypt one by one, so a range of the plaintext needs a range of the object.

The place in the header is the partition and the base offset, `orders-0/00000000000000000100`, or
for a tail pack its broker and number, `tail/3/00000000000000000100`. It must be the place in the
object's key, so an object that was copied over another one is refused. All moves keep it:
quarantine and retirement change only the folders around it, and copies of the archive only the
store, the prefix or the name of the cluster.

The header has a fixed size, so the sizes of plaintext and object follow from each other.
"""

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sidetier.segments.errors import (
    DamagedCiphertextError,
    EncryptionError,
    EncryptionKeyError,
)
from sidetier.segments.keys import place_of_log, place_of_pack
from sidetier.segments.names import FileKind

MAGIC: Final = b"\x7fsidencr"
"""The first bytes. As the base offset of a record batch they are above 2^62, so no `.log` of Kafka
begins with them."""
VERSION: Final = 1
HEADER_BYTES: Final = 1024
CHUNK_BYTES: Final = 64 * 1024
"""Plaintext of a chunk: the smallest read that can be decrypted."""
TAG_BYTES: Final = 16
SEALED_BYTES: Final = CHUNK_BYTES + TAG_BYTES
SALT_BYTES: Final = 32
_MAX_SIZE: Final = 1 << 40
"""A larger size in a header is damage: Kafka's segments have less than 2 GiB."""

# magic, version, plaintext size, salt, lengths of the key's name, wrapped data key and place
_FIXED: Final = struct.Struct(f">8sBQ{SALT_BYTES}sBHH")
MAX_NAME: Final = 64
"""Longest name of a key."""
_MAX_PLACE: Final = 249 + len("-2147483647/") + 20
"""Longest place: topic, partition and base offset."""
MAX_WRAPPED: Final = HEADER_BYTES - _FIXED.size - MAX_NAME - _MAX_PLACE
"""Longest wrapped data key; one of AWS KMS has less than 300 bytes."""

_LOG: Final = FileKind.LOG.value
_MARK: Final = ".encrypted-"
_MARKER: Final = re.compile(re.escape(_LOG + _MARK) + r"(0|[1-9][0-9]{0,18})\Z")


@dataclass(frozen=True, slots=True)
class EncryptedHeader:
    """Header of an encrypted object.

    Attributes:
        key_name: Name of the key that wraps the data key.
        wrapped_key: The wrapped data key.
        salt: Random bytes, new for each object.
        size: Size of the plaintext, in bytes.
        place: Partition and base offset of the segment, or broker and number of the tail pack, see
            `place_of`.
    """

    key_name: str
    wrapped_key: bytes
    salt: bytes
    size: int
    place: str

    @property
    def chunks(self) -> int:
        """Number of chunks, at least 1."""
        return chunks_of(self.size)

    def encode(self) -> bytes:
        """Return the header as it is stored."""
        parts = self.key_name.encode("ascii"), self.wrapped_key, self.place.encode("ascii")
        fixed = _FIXED.pack(MAGIC, VERSION, self.size, self.salt, *map(len, parts))
        return (fixed + b"".join(parts)).ljust(HEADER_BYTES, b"\0")


def decode_header(data: bytes, key: str) -> EncryptedHeader | None:
    """Parse the first `HEADER_BYTES` bytes of an object; None if it is not encrypted.

    Nothing is authenticated yet: under a changed header, no chunk decrypts.

    Args:
        data: The bytes; fewer if the object is shorter.
        key: The object's key, for errors.

    Raises:
        DamagedCiphertextError: The object belongs to another key.
        EncryptionError: The header is cut, damaged, or of an unknown version.
    """
    if not is_encrypted(data):
        return None
    if len(data) < HEADER_BYTES:
        raise EncryptionError(f"{key}: the header of the encrypted object is cut")
    _, version, size, salt, *lengths = _FIXED.unpack_from(data)
    if version != VERSION:
        raise EncryptionError(
            f"{key}: it is encrypted in version {version} of the format, and this Sidetier knows "
            f"version {VERSION} only: upgrade Sidetier"
        )
    parts, at = [], _FIXED.size
    for length in lengths:
        parts.append(data[at : at + length])
        at += length
    name, wrapped, place = parts
    is_possible = name.isascii() and len(name) <= MAX_NAME and size <= _MAX_SIZE
    header = EncryptedHeader(
        name.decode("ascii", "replace"), wrapped, salt, size, place.decode("ascii", "replace")
    )
    if not (is_possible and place.isascii()) or header.encode() != data[:HEADER_BYTES]:
        raise EncryptionError(f"{key}: the header of the encrypted object is damaged")
    if header.place != place_of(key):
        raise DamagedCiphertextError(
            f"{key} is not the object that was stored under this key: it was encrypted as the "
            f"segment {header.place}. Restore it from an earlier version or a replica of the bucket"
        )
    return header


def place_of(key: str) -> str | None:
    """Return the place of an object that can be encrypted; None for another key."""
    return place_of_log(key) or place_of_pack(key)


def is_encrypted(data: bytes) -> bool:
    """Return whether an object that begins with these bytes is encrypted."""
    return data.startswith(MAGIC)


def chunks_of(size: int) -> int:
    """Return the number of chunks of a plaintext of `size` bytes."""
    return max(1, -(-size // CHUNK_BYTES))


def stored_size(size: int) -> int:
    """Return the size of the encrypted object of a plaintext of `size` bytes."""
    return HEADER_BYTES + size + TAG_BYTES * chunks_of(size)


def plain_size(stored: int) -> int | None:
    """Return the size of the plaintext of an object; None if no encrypted object has this size."""
    sealed = stored - HEADER_BYTES
    size = sealed - TAG_BYTES * max(1, -(-sealed // SEALED_BYTES))
    return size if size >= 0 and stored_size(size) == stored else None


def marker_key(key: str, stored: int) -> str:
    """Return the key of the marker of an encrypted `.log` of `stored` bytes.

    In a listing, markers follow right behind their `.log`.
    """
    return f"{key}{_MARK}{stored}"


def markers_prefix(key: str) -> str:
    """Return the prefix of the keys of all markers of a `.log`."""
    return key + _MARK


def is_log(key: str) -> bool:
    """Return whether this is the key of a `.log`."""
    return key.endswith(_LOG)


def can_be_encrypted(key: str) -> bool:
    """Return whether this is the key of a `.log` or of a tail pack."""
    return is_log(key) or place_of_pack(key) is not None


def may_be_marker(key: str) -> bool:
    """Return whether `parse_marker` may accept the key. Fast: called for each row of a listing."""
    return _MARK in key


def parse_marker(key: str) -> tuple[str, int] | None:
    """Return the key of the `.log` and the stored size that a marker names; None for other keys."""
    match = _MARKER.search(key)
    return None if match is None else (key[: match.start()] + _LOG, int(match[1]))


def missing_marker(key: str, listed: int, size: int) -> str | None:
    """Return the key of the marker that an encrypted `.log` has lost; None if it has lost none.

    Args:
        key: The key of the `.log`.
        listed: Its size in a listing.
        size: Its size by its metadata: the plaintext's, in the same version of the object.
    """
    return marker_key(key, listed) if listed == stored_size(size) else None


def missing_key(key_name: str, where: str, known: Iterable[str] = ()) -> EncryptionKeyError:
    """Return the error for an object whose key is not configured."""
    names = ", ".join(sorted(known))
    others = f"; configured: {names}" if names else ""
    return EncryptionKeyError(
        f"{where} is encrypted with the key {key_name!r}, which is not configured: add it to "
        f"storage.encryption.keys{others}"
    )

"""The codecs of record batches, each into a room whose size bounds what comes out.

Source: KIP-98; KIP-110 for zstd. A producer of Kafka's own client frames snappy as xerial's library
does: 16 bytes of head, then blocks, each with its length before it; others leave it raw. lz4 is the
frame format.
"""

import struct
from collections.abc import Callable
from typing import Final

import cramjam

from sidetier.segments.arrow.arrays import Bytes
from sidetier.segments.headers import Compression

_XERIAL: Final = b"\x82SNAPPY\0"
_XERIAL_HEAD_BYTES: Final = 16
_BLOCK_LENGTH = struct.Struct(">i")
_FULL: Final = "failed to write whole buffer"  # what Rust says of an output without room


class CodecError(Exception):
    """The bytes are not those of this codec; the text says why."""


class NoRoomError(Exception):
    """The bytes are more, decompressed, than the room."""


def decompress_into(codec: Compression, source: memoryview, room: Bytes) -> int:
    """Decompress into the room; returns how many bytes it is.

    Raises:
        CodecError: what is compressed is damaged.
        NoRoomError: it is longer than the room.
    """
    try:
        return _CODECS[codec](source, room.data)
    except CodecError as error:
        raise CodecError(f"its {codec.name.lower()} data: {error}") from None
    except cramjam.DecompressionError as error:
        if _FULL in str(error):
            raise NoRoomError from None
        raise CodecError(f"its {codec.name.lower()} data: {error}") from None


def _snappy(source: memoryview, room: memoryview) -> int:
    if source[: len(_XERIAL)].tobytes() != _XERIAL:
        return _raw_snappy(source, room)
    at, used = _XERIAL_HEAD_BYTES, 0
    while at < len(source):
        begin = at + _BLOCK_LENGTH.size
        if begin > len(source):
            raise CodecError(f"its last block is cut at byte {at}")
        (size,) = _BLOCK_LENGTH.unpack_from(source, at)
        at = begin + size
        if size < 0 or at > len(source):
            raise CodecError(f"a block of {size} bytes where {len(source) - begin} are left")
        used += _raw_snappy(source[begin:at], room[used:])
    return used


def _raw_snappy(source: memoryview, room: memoryview) -> int:
    """One block."""
    if cramjam.snappy.decompress_raw_len(source) > len(room):
        raise NoRoomError
    return cramjam.snappy.decompress_raw_into(source, room)


_CODECS: Final[dict[Compression, Callable[[memoryview, memoryview], int]]] = {
    Compression.GZIP: cramjam.gzip.decompress_into,
    Compression.SNAPPY: _snappy,
    Compression.LZ4: cramjam.lz4.decompress_into,
    Compression.ZSTD: cramjam.zstd.decompress_into,
}

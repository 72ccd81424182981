"""Decompress record batches, each into a buffer whose size limits the output.

Source: KIP-98; KIP-110 for zstd. Kafka's Java producer frames snappy as xerial's library does: a
head of 16 bytes, then blocks, each after its length. Other producers send raw snappy. lz4 is the
frame format.
"""

import struct
from collections.abc import Callable
from typing import Final

import cramjam
import numpy as np

from sidetier.segments.arrow.arrays import Bytes
from sidetier.segments.headers import Compression

_XERIAL: Final = b"\x82SNAPPY\0"
# The magic of 8 bytes, then the version and the lowest compatible version, both int32.
_XERIAL_HEAD_BYTES: Final = 16
_BLOCK_LENGTH = struct.Struct(">i")
# cramjam has no error class for this case.
_FULL: Final = (
    "failed to write whole buffer"  # the message of Rust's standard library for a full output
)


class CodecError(Exception):
    """The bytes are not valid data of this codec. The message has the reason."""


class NoRoomError(Exception):
    """The decompressed bytes do not fit into the buffer."""


def decompress_into(codec: Compression, source: memoryview, room: Bytes) -> int:
    """Decompress into `room`, and return the number of decompressed bytes.

    Raises:
        CodecError: The compressed data is damaged.
        NoRoomError: The output is larger than `room`.
    """
    try:
        return _CODECS[codec](source, room.data)
    except CodecError as error:
        raise CodecError(f"its {codec.name.lower()} data: {error}") from None
    except cramjam.DecompressionError as error:
        if _FULL in str(error):
            raise NoRoomError from None
        raise CodecError(f"its {codec.name.lower()} data: {error}") from None


def decompress(codec: Compression, source: memoryview, max_bytes: int) -> bytes:
    """Return the decompressed bytes, if they are at most `max_bytes`.

    Raises:
        CodecError: The compressed data is damaged.
        NoRoomError: The output is larger than `max_bytes`.
    """
    if codec is Compression.NONE:
        return bytes(source)
    # Not guessed from the compressed size: zstd can shrink 32,000 times. The kernel allocates
    # pages when they are written to, so a large buffer costs nothing.
    room = np.empty(max_bytes, dtype=np.uint8)
    return room[: decompress_into(codec, source, room)].tobytes()


def _snappy(source: memoryview, room: memoryview) -> int:
    # The first byte of xerial's magic, 0x82, could also begin a raw
    # block. A raw block begins with its decompressed length as a varint;
    # in practice, its bytes never equal all eight bytes of the magic.
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
    """Decompress one block."""
    # Raw snappy states its length first, so it can be checked before anything is written.
    if cramjam.snappy.decompress_raw_len(source) > len(room):
        raise NoRoomError
    return cramjam.snappy.decompress_raw_into(source, room)


_CODECS: Final[dict[Compression, Callable[[memoryview, memoryview], int]]] = {
    Compression.GZIP: cramjam.gzip.decompress_into,
    Compression.SNAPPY: _snappy,
    Compression.LZ4: cramjam.lz4.decompress_into,
    Compression.ZSTD: cramjam.zstd.decompress_into,
}

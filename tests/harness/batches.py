"""Handmade record batches: a valid header over any payload."""

import struct
from collections.abc import Callable

from sidetier.segments.crc import crc32c
from sidetier.segments.headers import CRC_START
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset
from sidetier.segments.walker import BatchWalker, SegmentFacts

_CRC = 17
"""Position of the CRC in a batch, in bytes."""


def make_batch(  # noqa: PLR0913  one parameter for each field of a header
    base: int,
    count: int = 1,
    *,
    epoch: int = 0,
    timestamp: int = 1_700_000_000_000,
    payload: bytes = b"records",
    attributes: int = 0,
    span: int | None = None,
    magic: int = 2,
) -> bytes:
    """Return a batch of `count` records over `span` offsets. The payload is no record encoding."""
    delta = (count if span is None else span) - 1
    covered = struct.pack(">hiqqqhii", attributes, delta, timestamp, timestamp, -1, -1, -1, count)
    covered += payload
    prefix = struct.pack(">qiibI", base, len(covered) + 9, epoch, magic, crc32c(covered))
    return prefix + covered


def with_crc(batch: bytes | bytearray) -> bytes:
    """Return the batch with the CRC of its content."""
    changed = bytearray(batch)
    changed[_CRC:CRC_START] = struct.pack(">I", crc32c(memoryview(changed)[CRC_START:]))
    return bytes(changed)


def pread_of(data: bytes) -> Callable[[int, int], bytes]:
    """Return a reader over bytes in memory that takes position and length, like `os.pread`."""
    return lambda position, length: data[position : position + length]


def facts_of(log: bytes, base: int) -> SegmentFacts:
    """Return the facts of a whole segment, after a check of every batch."""
    walker = BatchWalker(segment_file_name(BaseOffset(base), FileKind.LOG))
    walker.feed(memoryview(log))
    return walker.finish()

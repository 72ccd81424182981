"""Record batches made by hand: a sound header over any payload."""

import struct
from collections.abc import Callable

from sidetier.segments.batches import BatchWalker, SegmentFacts
from sidetier.segments.crc import crc32c
from sidetier.segments.headers import CRC_START
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset

_CRC = 17
"""Where in a batch its CRC stands."""


def make_batch(  # noqa: PLR0913  a header has that many fields
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
    """A batch of `count` records over `span` offsets; the payload is not a record's encoding."""
    delta = (count if span is None else span) - 1
    covered = struct.pack(">hiqqqhii", attributes, delta, timestamp, timestamp, -1, -1, -1, count)
    covered += payload
    prefix = struct.pack(">qiibI", base, len(covered) + 9, epoch, magic, crc32c(covered))
    return prefix + covered


def with_crc(batch: bytes | bytearray) -> bytes:
    """The batch with the CRC that belongs to what it holds."""
    changed = bytearray(batch)
    changed[_CRC:CRC_START] = struct.pack(">I", crc32c(memoryview(changed)[CRC_START:]))
    return bytes(changed)


def pread_of(data: bytes) -> Callable[[int, int], bytes]:
    """A reader over bytes in memory: position and length, as `os.pread` takes them."""
    return lambda position, length: data[position : position + length]


def facts_of(log: bytes, base: int) -> SegmentFacts:
    """What a whole segment holds, every batch of which is checked."""
    walker = BatchWalker(segment_file_name(BaseOffset(base), FileKind.LOG))
    walker.feed(memoryview(log))
    return walker.finish()

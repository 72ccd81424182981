"""A second, independent reader of stored `.log` files: whole record batches and their records.

It shares no code with the tested reader. It reads uncompressed batches only, which is all that the
tests produce.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from awscrt.checksums import crc32c  # type: ignore[import-untyped]  # it has no type stubs

_HEADER = struct.Struct(">qiiBIhiqqqhii")


class UnreadableLogError(AssertionError):
    """The stored bytes are not a sequence of complete, valid record batches."""


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """One batch: its offset range, the leader epoch, and the bytes of its records."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    attributes: int
    count: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Record:
    """A record that a producer sent and that a reader must return."""

    key: bytes | None
    value: bytes | None


def read_batches(data: bytes, name: str) -> Iterator[StoredBatch]:
    """Yield every batch of a `.log`, in order; UnreadableLogError for damage or a cut tail."""
    at = 0
    while at < len(data):
        if len(data) - at < _HEADER.size:
            raise UnreadableLogError(f"{name}: {len(data) - at} bytes are left at {at}")
        base, length, epoch, magic, crc, attributes, delta, *_, count = _HEADER.unpack_from(
            data, at
        )
        end = at + 12 + length
        if magic != 2 or length < _HEADER.size - 12 or end > len(data):
            raise UnreadableLogError(f"{name}: no whole batch at byte {at}")
        if crc32c(data[at + 21 : end]) != crc:
            raise UnreadableLogError(f"{name}: the batch at offset {base} has a wrong checksum")
        payload = data[at + _HEADER.size : end]
        yield StoredBatch(base, base + delta + 1, epoch, attributes, count, payload)
        at = end


def read_records(data: bytes, name: str) -> Iterator[tuple[int, Record]]:
    """Yield offset and record of everything in a `.log` except control batches."""
    for batch in read_batches(data, name):
        if batch.attributes & 0x07:
            raise UnreadableLogError(f"{name}: a compressed batch at offset {batch.base_offset}")
        if not batch.attributes & 0x20:
            yield from _records(batch)


def _records(batch: StoredBatch) -> Iterator[tuple[int, Record]]:
    data, at = batch.payload, 0
    for _ in range(batch.count):
        length, at = _varint(data, at)
        end = at + length
        _, at = _varint(data, at + 1)
        delta, at = _varint(data, at)
        key, at = _bytes(data, at)
        value, at = _bytes(data, at)
        yield batch.base_offset + delta, Record(key, value)
        at = end


def _bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _varint(data, at)
    return (None, at) if length < 0 else (data[at : at + length], at + length)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    shift = raw = 0
    while True:
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7

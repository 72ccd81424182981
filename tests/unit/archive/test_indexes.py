"""Searches in stored indexes give the same results as the plain readers of the format."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidetier.archive.locate import (
    Locator,
    offset_entries,
    position_behind,
    position_of,
    relatives_of,
    time_entries,
)
from sidetier.archive.objects.segment import StoredLog
from sidetier.segments.errors import DamagedSegmentError
from sidetier.segments.indexes import last_timestamp, parse_offset_index
from sidetier.segments.offsets import BaseOffset
from sidetier.storage.port import ObjectSummary
from tests.harness.index_lookups import lookup_position

RISING = st.lists(st.tuples(st.integers(1, 500), st.integers(1, 5000)), max_size=30)


def summed(steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    entries, offset, position = [], 0, 0
    for first, second in steps:
        offset, position = offset + first, position + second
        entries.append((offset, position))
    return entries


@given(RISING, st.integers(-1, 20_000), st.integers(0, 4))
def test_position_equals_that_of_the_plain_reader(
    steps: list[tuple[int, int]], relative: int, padding: int
) -> None:
    data = b"".join(struct.pack(">II", *entry) for entry in summed(steps)) + bytes(8 * padding)
    index = parse_offset_index(data, BaseOffset(0))

    found = position_of(offset_entries(data, 1 << 30, "i"), relative)

    assert found == lookup_position(index, relative)


@given(RISING, st.integers(0, 20_000))
def test_batch_of_an_offset_ends_before_the_second_next_entry(
    steps: list[tuple[int, int]], relative: int
) -> None:
    entries = summed(steps)
    data = b"".join(struct.pack(">II", *entry) for entry in entries)

    found = position_behind(offset_entries(data, 1 << 30, "i"), relative, 1 << 30)

    later = [position for offset, position in entries if offset >= relative]
    assert found == (later[1] if len(later) > 1 else 1 << 30)


@given(RISING, st.integers(-5, 20_000))
def test_no_record_with_the_timestamp_lies_before_the_offset(
    steps: list[tuple[int, int]], timestamp: int
) -> None:
    entries = summed(steps)
    data = b"".join(struct.pack(">qI", *entry) for entry in entries)

    before, behind = relatives_of(time_entries(data, "t"), timestamp)

    assert before == max((offset for time, offset in entries if time < timestamp), default=0)
    assert behind == min((offset for time, offset in entries if time >= timestamp), default=None)


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\1\0\0\0",
        struct.pack(">IIII", 5, 10, 5, 20),
        struct.pack(">IIII", 5, 10, 6, 10),
        struct.pack(">II", 5, 1000),
    ],
)
def test_error_names_the_damaged_offset_index(data: bytes) -> None:
    with pytest.raises(DamagedSegmentError, match=r"some\.index"):
        offset_entries(data, 1000, "some.index")


@pytest.mark.parametrize("data", [bytes(11) + b"x", struct.pack(">qIqI", 7, 1, 7, 2)[:-1]])
def test_error_names_the_damaged_time_index(data: bytes) -> None:
    with pytest.raises(DamagedSegmentError, match=r"some\.timeindex"):
        time_entries(data + data, "some.timeindex")


@given(st.integers(0, 2**63 - 1), st.integers(1, 2**31 - 1))
def test_last_entry_has_the_largest_timestamp(timestamp: int, relative: int) -> None:
    data = struct.pack(">qI", timestamp, relative)

    assert last_timestamp(data, 12) == timestamp == int(time_entries(data, "t")["timestamp"][-1])
    assert last_timestamp(bytes(12), 24) is None, "padding"


def test_indexes_without_entries_are_not_kept_for_ever() -> None:
    requests: list[str] = []

    def read(row: ObjectSummary, _start: int, _end: int) -> bytes:
        requests.append(row.key)
        return bytes(16)

    def segment(base: int) -> StoredLog:
        log, index = (
            ObjectSummary(f"{base}.{kind}", size, "etag", 0)
            for kind, size in (("log", 1000), ("index", 16))
        )
        return StoredLog(BaseOffset(base), log, index)

    locator = Locator(1000, lambda _key, _reason: None)
    for base in [*range(100), 99, 0]:
        locator.offsets(read, segment(base))

    assert requests.count("99.index") == 1
    assert requests.count("0.index") == 2

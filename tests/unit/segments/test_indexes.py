import struct

import pytest

from sidetier.segments.batches import BatchWalker
from sidetier.segments.errors import DamagedSegmentError
from sidetier.segments.headers import walk_headers
from sidetier.segments.indexes import (
    PREALLOCATED_INDEX_BYTES,
    PREALLOCATED_TIMEINDEX_BYTES,
    SegmentTail,
    is_sound,
    is_time_index_sound,
    lookup_position,
    lookup_timestamp,
    parse_offset_index,
    parse_time_index,
    tail_of,
)
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, Offset
from tests.harness.batches import make_batch, pread_of
from tests.harness.broker_segments import BrokerSegment, closed_segments

BASE = BaseOffset(1000)
GENUINE = next(segment for segment in closed_segments() if str(segment) == "tx-0/134")


def _index(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">II", *entry) for entry in entries)


def _timeindex(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">qI", *entry) for entry in entries)


def _tail(log: bytes, index: bytes, timeindex: bytes, base: int) -> tuple[SegmentTail, int]:
    """The tail, and how many bytes of the log were asked for."""
    pread, asked = pread_of(log), 0

    def counting(position: int, length: int) -> bytes:
        nonlocal asked
        asked += length
        return pread(position, length)

    return tail_of(counting, len(log), index, timeindex, BaseOffset(base)), asked


@pytest.mark.parametrize("segment", closed_segments(), ids=str)
def test_genuine_indexes_are_sound_and_point_to_batches(segment: BrokerSegment) -> None:
    log = segment.read(FileKind.LOG)
    batches = dict(walk_headers(pread_of(log), len(log)))
    index = parse_offset_index(segment.read(FileKind.INDEX), segment.base)
    assert is_sound([segment.read(FileKind.INDEX)], len(log), segment.base, segment.next_base)
    assert is_time_index_sound([segment.read(FileKind.TIMEINDEX)], segment.base, segment.next_base)
    assert not index.padded
    for offset, position in index.entries:
        assert batches[position].last_offset == offset


@pytest.mark.parametrize("segment", closed_segments(), ids=str)
def test_every_record_is_found_through_a_genuine_index(segment: BrokerSegment) -> None:
    log = segment.read(FileKind.LOG)
    index = parse_offset_index(segment.read(FileKind.INDEX), segment.base)
    for position, header in walk_headers(pread_of(log), len(log)):
        for offset in range(header.base_offset, header.next_offset):
            found = lookup_position(index, offset)
            assert found <= position
            first = next(walk_headers(pread_of(log), len(log), start=found))[1]
            assert first.base_offset <= offset


@pytest.mark.parametrize("segment", closed_segments(), ids=str)
def test_no_record_of_a_time_lies_before_what_a_genuine_time_index_says(
    segment: BrokerSegment,
) -> None:
    log = segment.read(FileKind.LOG)
    times = parse_time_index(segment.read(FileKind.TIMEINDEX), segment.base)
    headers = [header for _, header in walk_headers(pread_of(log), len(log))]
    for wanted in {header.max_timestamp + more for header in headers for more in (-1, 0, 1)}:
        start = lookup_timestamp(times, wanted)
        early = [header for header in headers if header.last_offset < start]
        assert all(header.max_timestamp < wanted for header in early)


@pytest.mark.parametrize("segment", closed_segments(), ids=str)
def test_the_tail_of_a_genuine_segment_is_found_without_reading_it(segment: BrokerSegment) -> None:
    log = segment.read(FileKind.LOG)
    walker = BatchWalker(str(segment.path(FileKind.LOG)))
    walker.feed(memoryview(log))
    facts = walker.finish()
    index, timeindex = segment.read(FileKind.INDEX), segment.read(FileKind.TIMEINDEX)
    tail, asked = _tail(log, index, timeindex, segment.base)
    assert tail == SegmentTail(Offset(segment.next_base), facts.max_timestamp) or (
        segment.directory.name == "compacted-0" and tail.next_offset == facts.next_offset
    )
    if len(index) > 8:
        assert asked < len(log) / 2


def test_an_empty_segment_ends_at_its_base() -> None:
    assert _tail(b"", b"", b"", 70)[0] == SegmentTail(Offset(70), -1)


@pytest.mark.parametrize(
    ("index", "timeindex"),
    [
        (b"", GENUINE.read(FileKind.TIMEINDEX)),
        (GENUINE.read(FileKind.INDEX), b""),
        (GENUINE.read(FileKind.INDEX)[:-1], GENUINE.read(FileKind.TIMEINDEX)),
        (GENUINE.read(FileKind.INDEX), GENUINE.read(FileKind.TIMEINDEX)[:-1]),
        (GENUINE.read(FileKind.INDEX) + _index((127, 29_978)), GENUINE.read(FileKind.TIMEINDEX)),
        (_index((13, 2195)), GENUINE.read(FileKind.TIMEINDEX)),  # into the middle of a batch
        (_index((0, 2194)), GENUINE.read(FileKind.TIMEINDEX)),  # behind the offset
        (_index((127, 2194)), GENUINE.read(FileKind.TIMEINDEX)),  # beyond the log's last offset
    ],
)
def test_where_the_indexes_do_not_fit_the_log_its_headers_tell(
    index: bytes, timeindex: bytes
) -> None:
    tail, _ = _tail(GENUINE.read(FileKind.LOG), index, timeindex, GENUINE.base)
    assert tail == SegmentTail(Offset(261), 1_795_249_842_887)


def test_an_index_that_points_to_what_looks_like_an_old_message_is_not_followed() -> None:
    legacy = bytes(8) + (20).to_bytes(4) + bytes(50)
    log = make_batch(0, payload=legacy) + make_batch(1)
    into_the_payload = _index((0, 61))
    assert _tail(log, into_the_payload, _timeindex((5, 0)), 0)[0].next_offset == 2


def test_the_tail_of_a_cut_log_is_refused() -> None:
    index, timeindex = GENUINE.read(FileKind.INDEX), GENUINE.read(FileKind.TIMEINDEX)
    with pytest.raises(DamagedSegmentError, match="only 77 are left"):
        _tail(GENUINE.read(FileKind.LOG)[:-1], index, timeindex, GENUINE.base)


def test_the_tail_of_a_log_below_its_own_base_is_refused() -> None:
    with pytest.raises(DamagedSegmentError, match="base offset 4 is below the segment's 5"):
        _tail(make_batch(4), b"", b"", 5)


def test_the_zeros_of_a_preallocated_index_are_left_out() -> None:
    entries = _index((9, 4100), (256, 8192))
    padded = entries.ljust(PREALLOCATED_INDEX_BYTES, b"\0")
    index = parse_offset_index(padded, BASE)
    assert index.padded
    assert index.entries == ((1009, 4100), (1256, 8192))
    assert is_sound([entries], 9000, BASE, 2000)
    assert not is_sound([padded], 9000, BASE, 2000)
    assert not is_sound([bytes(PREALLOCATED_INDEX_BYTES)], 9000, BASE, 2000)


def test_the_zeros_of_a_preallocated_time_index_are_left_out() -> None:
    entries = _timeindex((5, 0), (256, 256))
    padded = entries.ljust(PREALLOCATED_TIMEINDEX_BYTES, b"\0")
    index = parse_time_index(padded, BASE)
    assert index.padded
    assert index.entries == ((5, 1000), (256, 1256))
    assert is_time_index_sound([entries], BASE, 2000)
    assert not is_time_index_sound([padded], BASE, 2000)


def test_a_first_record_at_the_dawn_of_1970_is_no_padding() -> None:
    assert is_time_index_sound([_timeindex((0, 0))], BASE, 2000)


def test_empty_indexes_are_sound() -> None:
    assert is_sound([b""], 0, BASE, 1000)
    assert is_time_index_sound([b""], BASE, 1000)


@pytest.mark.parametrize(
    "entries",
    [
        _index((9, 4100))[:-1],
        _index((9, 4100), (9, 8200)),
        _index((9, 4100), (8, 8200)),
        _index((9, 4100), (10, 4100)),
        _index((9, 4100), (0, 0), (10, 8200)),
        _index((9, 4100), (1000, 8200)),  # beyond the next offset
        _index((9, 4100), (10, 9000)),  # beyond the log
    ],
)
def test_a_damaged_or_foreign_index_is_not_sound(entries: bytes) -> None:
    assert not is_sound([entries], 9000, BASE, 2000)


@pytest.mark.parametrize(
    "entries",
    [
        _timeindex((5, 1))[:-1],
        _timeindex((5, 1), (5, 2)),
        _timeindex((5, 1), (4, 2)),
        _timeindex((5, 2), (6, 1)),
        _timeindex((5, 1000)),  # beyond the next offset
    ],
)
def test_a_damaged_or_foreign_time_index_is_not_sound(entries: bytes) -> None:
    assert not is_time_index_sound([entries], BASE, 2000)


def test_an_index_that_does_not_parse_is_told_by_name() -> None:
    with pytest.raises(DamagedSegmentError, match=r"^a\.index: 7 bytes are no multiple of 8"):
        parse_offset_index(bytes(7), BASE, "a.index")
    with pytest.raises(DamagedSegmentError, match=r"^a\.index: entry 1 \(1008, 2\) does not rise"):
        parse_offset_index(_index((9, 1), (8, 2)), BASE, "a.index")
    with pytest.raises(DamagedSegmentError, match=r"^a\.timeindex: 13 bytes are no multiple of 12"):
        parse_time_index(bytes(13), BASE, "a.timeindex")


def test_lookups_below_the_first_entry_begin_at_the_segments_start() -> None:
    index = parse_offset_index(_index((9, 4100)), BASE)
    assert [lookup_position(index, offset) for offset in (1000, 1008, 1009)] == [0, 0, 4100]
    times = parse_time_index(_timeindex((5, 9)), BASE)
    assert [lookup_timestamp(times, timestamp) for timestamp in (4, 5, 6)] == [1000, 1009, 1009]

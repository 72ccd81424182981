import struct

import pytest

from sidetier.segments.errors import DamagedSegmentError
from sidetier.segments.headers import walk_headers
from sidetier.segments.indexes import (
    PREALLOCATED_INDEX_BYTES,
    PREALLOCATED_TIMEINDEX_BYTES,
    SegmentTail,
    parse_offset_index,
    parse_time_index,
    position_at_or_below,
    tail_of,
)
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset, Offset
from sidetier.segments.walker import BatchWalker
from tests.harness.batches import make_batch, pread_of
from tests.harness.broker_segments import BrokerSegment, closed_segments
from tests.harness.index_lookups import lookup_position, lookup_timestamp

BASE = BaseOffset(1000)
GENUINE = next(segment for segment in closed_segments() if str(segment) == "tx-0/134")


def _index(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">II", *entry) for entry in entries)


def _timeindex(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">qI", *entry) for entry in entries)


def _tail(log: bytes, index: bytes, timeindex: bytes, base: int) -> tuple[SegmentTail, int]:
    """The tail of a segment, and the number of bytes read from the log."""
    pread, asked = pread_of(log), 0

    def counting(position: int, length: int) -> bytes:
        nonlocal asked
        asked += length
        return pread(position, length)

    return tail_of(counting, len(log), index, timeindex, BaseOffset(base)), asked


LOG_OF_THREE = b"".join(make_batch(BASE + n, 10, payload=bytes(10)) for n in (0, 10, 20))
"""Three batches of 71 bytes and ten offsets each."""


def fits(log: bytes, index: bytes, base: int, chunk: int = 1 << 20) -> bool:
    """Check the offset index against the log, read in chunks of this size."""
    name = segment_file_name(BaseOffset(base), FileKind.LOG)
    pieces = (index[at : at + 16] for at in range(0, len(index), 16))
    walker = BatchWalker(name, index=pieces)
    for at in range(0, len(log), chunk):
        walker.feed(memoryview(log)[at : at + chunk])
    found = walker.finish().index_fits
    assert found is not None
    return found


def log_at(*timestamps: int) -> bytes:
    """A batch of ten offsets for each of these timestamps."""
    return b"".join(
        make_batch(BASE + 10 * n, 10, timestamp=timestamp, payload=bytes(10))
        for n, timestamp in enumerate(timestamps)
    )


def time_fits(log: bytes, timeindex: bytes, base: int = BASE, chunk: int = 1 << 20) -> bool:
    """Check the time index against the log, read in chunks of this size."""
    name = segment_file_name(BaseOffset(base), FileKind.LOG)
    pieces = (timeindex[at : at + 24] for at in range(0, len(timeindex), 24))
    walker = BatchWalker(name, time_index=pieces)
    for at in range(0, len(log), chunk):
        walker.feed(memoryview(log)[at : at + chunk])
    found = walker.finish().time_index_fits
    assert found is not None
    return found


@pytest.mark.parametrize("segment", closed_segments(), ids=str)
def test_genuine_indexes_are_valid_and_point_to_batches(segment: BrokerSegment) -> None:
    log = segment.read(FileKind.LOG)
    batches = dict(walk_headers(pread_of(log), len(log)))
    index = parse_offset_index(segment.read(FileKind.INDEX), segment.base)
    assert fits(log, segment.read(FileKind.INDEX), segment.base)
    assert time_fits(log, segment.read(FileKind.TIMEINDEX), segment.base)
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
def test_no_record_with_the_timestamp_lies_before_the_time_index_answer(
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
def test_tail_of_a_genuine_segment_is_found_without_reading_all_of_it(
    segment: BrokerSegment,
) -> None:
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


def test_empty_segment_ends_at_its_base_offset() -> None:
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
        (_index((0, 2194)), GENUINE.read(FileKind.TIMEINDEX)),  # after the offset
        (_index((127, 2194)), GENUINE.read(FileKind.TIMEINDEX)),  # beyond the log's last offset
    ],
)
def test_tail_is_read_from_the_headers_if_the_indexes_do_not_fit(
    index: bytes, timeindex: bytes
) -> None:
    tail, _ = _tail(GENUINE.read(FileKind.LOG), index, timeindex, GENUINE.base)
    assert tail == SegmentTail(Offset(261), 1_795_249_842_887)


def test_index_entry_that_points_to_an_apparent_old_message_is_ignored() -> None:
    legacy = bytes(8) + (20).to_bytes(4) + bytes(50)
    log = make_batch(0, payload=legacy) + make_batch(1)
    into_the_payload = _index((0, 61))
    assert _tail(log, into_the_payload, _timeindex((5, 0)), 0)[0].next_offset == 2


def test_tail_of_a_truncated_log_is_refused() -> None:
    index, timeindex = GENUINE.read(FileKind.INDEX), GENUINE.read(FileKind.TIMEINDEX)
    with pytest.raises(DamagedSegmentError, match="only 77 are left"):
        _tail(GENUINE.read(FileKind.LOG)[:-1], index, timeindex, GENUINE.base)


def test_tail_of_a_log_below_its_own_base_offset_is_refused() -> None:
    with pytest.raises(DamagedSegmentError, match="base offset 4 is below the segment's 5"):
        _tail(make_batch(4), b"", b"", 5)


def test_padding_zeros_of_a_preallocated_offset_index_are_left_out() -> None:
    entries = _index((9, 4100), (256, 8192))
    padded = entries.ljust(PREALLOCATED_INDEX_BYTES, b"\0")
    index = parse_offset_index(padded, BASE)
    assert index.padded
    assert index.entries == ((1009, 4100), (1256, 8192))
    assert not fits(LOG_OF_THREE, _index((19, 71)).ljust(PREALLOCATED_INDEX_BYTES, b"\0"), BASE)
    assert not fits(LOG_OF_THREE, bytes(PREALLOCATED_INDEX_BYTES), BASE)


def test_padding_zeros_of_a_preallocated_time_index_are_left_out() -> None:
    entries = _timeindex((5, 0), (256, 256))
    padded = entries.ljust(PREALLOCATED_TIMEINDEX_BYTES, b"\0")
    index = parse_time_index(padded, BASE)
    assert index.padded
    assert index.entries == ((5, 1000), (256, 1256))
    log = log_at(5, *range(6, 30), 256)
    assert time_fits(log, entries)
    assert not time_fits(log, padded)


def test_first_entry_with_timestamp_zero_is_not_padding() -> None:
    assert time_fits(log_at(0, 5), _timeindex((0, 0)))
    assert not time_fits(log_at(3, 5), _timeindex((0, 0)))


def test_empty_indexes_are_valid() -> None:
    assert fits(b"", b"", BASE)
    assert fits(LOG_OF_THREE, b"", BASE)
    assert time_fits(b"", b"")
    assert time_fits(LOG_OF_THREE, b"")


@pytest.mark.parametrize("size", [1, 8, 60, 61, 1000])
@pytest.mark.parametrize(
    ("entries", "sound"),
    [
        pytest.param(_index((9, 0), (19, 71), (29, 142)), True, id="each batch"),
        pytest.param(_index((19, 71)), True, id="one batch"),
        pytest.param(_index((29, 71)), True, id="two batches of one append"),
        pytest.param(_index((15, 71)), True, id="an offset inside of the batch"),
        pytest.param(_index((19, 71))[:-1], False, id="half an entry"),
        pytest.param(_index((19, 70)), False, id="before a batch"),
        pytest.param(_index((19, 72), (29, 142)), False, id="inside of a batch"),
        pytest.param(_index((9, 71)), False, id="a batch above the offset"),
        pytest.param(_index((19, 71), (19, 142)), False, id="offsets that do not rise"),
        pytest.param(_index((25, 71), (21, 142)), False, id="offsets that fall"),
        pytest.param(_index((19, 71), (29, 71)), False, id="positions that do not rise"),
        pytest.param(_index((19, 71), (0, 0), (29, 142)), False, id="zeros between"),
        pytest.param(_index((19, 71), (30, 142)), False, id="beyond the next offset"),
        pytest.param(_index((19, 71), (29, 213)), False, id="at the end of the log"),
        pytest.param(_index((19, 71), (29, 300)), False, id="beyond the log"),
    ],
)
def test_offset_index_fits_if_its_entries_point_to_batches(
    entries: bytes, size: int, *, sound: bool
) -> None:
    assert fits(LOG_OF_THREE, entries, BASE, size) is sound


@pytest.mark.parametrize("size", [1, 60, 61, 1000])
@pytest.mark.parametrize(
    ("entries", "sound"),
    [
        pytest.param(_timeindex((5, 9), (7, 29), (9, 49)), True, id="each maximum"),
        pytest.param(_timeindex((7, 29)), True, id="one maximum"),
        pytest.param(_timeindex((7, 21)), True, id="an offset inside of the batch"),
        pytest.param(_timeindex((5, 9))[:-1], False, id="half an entry"),
        pytest.param(_timeindex((7, 19)), False, id="the batch before"),
        pytest.param(_timeindex((7, 39)), False, id="a later batch of the same timestamp"),
        pytest.param(_timeindex((6, 29)), False, id="less than what comes before the offset"),
        pytest.param(_timeindex((3, 19)), False, id="the timestamp of that batch alone"),
        pytest.param(_timeindex((8, 49)), False, id="of no batch"),
        pytest.param(_timeindex((10, 49)), False, id="above all"),
        pytest.param(_timeindex((5, 9), (5, 9)), False, id="timestamps that do not rise"),
        pytest.param(_timeindex((7, 29), (5, 29)), False, id="timestamps that fall"),
        pytest.param(_timeindex((5, 9), (9, 8)), False, id="offsets that fall"),
        pytest.param(_timeindex((9, 50)), False, id="beyond the next offset"),
        pytest.param(_timeindex((9, 49), (0, 0)), False, id="zeros behind"),
    ],
)
def test_time_index_fits_if_its_entries_are_maxima(
    entries: bytes, size: int, *, sound: bool
) -> None:
    """Otherwise a reader that seeks a timestamp would start after the first record with it."""
    assert time_fits(log_at(5, 3, 7, 7, 9), entries, chunk=size) is sound


def test_error_for_a_malformed_index_names_the_file() -> None:
    with pytest.raises(DamagedSegmentError, match=r"^a\.index: 7 bytes are not a multiple of 8"):
        parse_offset_index(bytes(7), BASE, "a.index")
    with pytest.raises(DamagedSegmentError, match=r"^a\.index: entry 1 \(1008, 2\) does not rise"):
        parse_offset_index(_index((9, 1), (8, 2)), BASE, "a.index")
    message = r"^a\.timeindex: 13 bytes are not a multiple of 12"
    with pytest.raises(DamagedSegmentError, match=message):
        parse_time_index(bytes(13), BASE, "a.timeindex")


def test_lookups_below_the_first_entry_start_at_the_segments_start() -> None:
    index = parse_offset_index(_index((9, 4100)), BASE)
    assert [lookup_position(index, offset) for offset in (1000, 1008, 1009)] == [0, 0, 4100]
    times = parse_time_index(_timeindex((5, 9)), BASE)
    assert [lookup_timestamp(times, timestamp) for timestamp in (4, 5, 6)] == [1000, 1009, 1009]


@pytest.mark.parametrize("padding", [0, 8, 800_000])
@pytest.mark.parametrize(
    ("offset", "position"),
    [(0, 0), (1008, 0), (1009, 71), (1010, 71), (1029, 142), (1038, 142), (1039, 213), (9999, 213)],
)
def test_position_of_an_offset_is_found_in_an_active_index(
    offset: int, position: int, padding: int
) -> None:
    """With few reads, although zeros follow the entries."""
    index = _index((9, 71), (29, 142), (39, 213)) + bytes(padding)
    pread, reads = pread_of(index), []

    def counting(at: int, length: int) -> bytes:
        reads.append(at)
        return pread(at, length)

    assert position_at_or_below(counting, len(index), BASE, offset) == position
    assert len(reads) <= 18


def test_index_without_entries_leads_to_the_first_batch() -> None:
    for index in (b"", bytes(PREALLOCATED_INDEX_BYTES), b"cut"):
        assert position_at_or_below(pread_of(index), len(index), BASE, 5000) == 0

from dataclasses import replace

import pytest

from sidetier.segments.crc import crc64nvme
from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.errors import DamagedSegmentError, UnsupportedFormatError
from sidetier.segments.headers import walk_headers
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import LeaderEpoch, Offset
from sidetier.segments.walker import BatchWalker, SegmentFacts
from tests.harness.batches import make_batch, pread_of
from tests.harness.broker_segments import BrokerSegment, closed_segments, consumed

LOG = "00000000000000000000.log"
SMALL = next(segment for segment in closed_segments() if str(segment) == "tx-0/0")


def _facts(data: bytes, name: str = LOG, *, chunk: int = 1 << 20) -> SegmentFacts:
    walker = BatchWalker(name)
    view = memoryview(data)
    for start in range(0, len(data), chunk):
        walker.feed(view[start : start + chunk])
    return walker.finish()


@pytest.mark.parametrize("segment", closed_segments(), ids=str)
def test_facts_of_genuine_segments_agree_with_the_consumer_output(segment: BrokerSegment) -> None:
    data = segment.read(FileKind.LOG)
    facts = _facts(data, str(segment.path(FileKind.LOG)))
    headers = [header for _, header in walk_headers(pread_of(data), len(data))]
    rows = [
        r for r in consumed(segment.directory) if segment.base <= r["offset"] < segment.next_base
    ]
    markers = sum(header.record_count for header in headers if header.is_control)

    assert facts.size == len(data)
    assert facts.batches == len(headers)
    assert facts.records == len(rows) + markers
    of_transactions = any(header.is_transactional or header.is_control for header in headers)
    assert facts.plain_records == (None if of_transactions else len(rows))
    assert facts.first_offset == headers[0].base_offset
    assert facts.next_offset == headers[-1].next_offset
    assert facts.crc64nvme == crc64nvme(data)
    assert facts.epochs == ((0, facts.first_offset),)
    assert facts.last_leader_epoch == 0
    assert facts.max_timestamp == max(header.max_timestamp for header in headers)
    if rows:
        assert facts.max_timestamp >= max(row["timestamp"] for row in rows)
        assert facts.first_offset <= rows[0]["offset"]
        assert rows[-1]["offset"] < facts.next_offset


@pytest.mark.parametrize("segment", closed_segments(), ids=str)
def test_genuine_segment_ends_where_the_next_begins(segment: BrokerSegment) -> None:
    end = _facts(segment.read(FileKind.LOG)).next_offset
    assert end is not None
    if segment.directory.name == "compacted-0":
        assert end <= segment.next_base
    else:
        assert end == segment.next_base


def test_largest_timestamp_is_found_with_its_batch() -> None:
    data = b"".join(make_batch(10 * n, 10, timestamp=ts) for n, ts in enumerate([5, 9, 9, 7]))
    facts = _facts(data)
    assert (facts.max_timestamp, facts.max_timestamp_offset) == (9, 19)


def test_each_leader_epoch_is_kept_with_its_first_offset() -> None:
    data = b"".join(make_batch(n, epoch=epoch) for n, epoch in enumerate([3, 3, 5, 3]))
    facts = _facts(data)
    assert facts.epochs == ((3, 0), (5, 2), (3, 3))
    assert facts.last_leader_epoch == 3


def test_file_checksum_can_be_left_out() -> None:
    data = make_batch(0) + make_batch(1)
    walker = BatchWalker(LOG, checksum=False)
    walker.feed(memoryview(data))
    assert walker.finish() == replace(_facts(data), crc64nvme=0)


def test_empty_segment_has_no_offsets() -> None:
    facts = BatchWalker(LOG, rebuild_indexes=True).finish()
    assert (facts.size, facts.batches, facts.first_offset, facts.next_offset) == (0, 0, None, None)
    assert (facts.max_timestamp, facts.max_timestamp_offset, facts.epochs) == (-1, None, ())
    assert facts.indexes is not None
    assert facts.indexes.index == facts.indexes.timeindex == b""


def test_offsets_may_be_missing_between_and_within_batches() -> None:
    facts = _facts(make_batch(5, 2, span=10) + make_batch(40, 1))
    assert (facts.records, facts.first_offset, facts.next_offset) == (3, 5, 41)


@pytest.mark.parametrize("chunk", [1, 7, 61, 62, 1 << 20])
@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_formats_are_refused_by_name(magic: int, chunk: int) -> None:
    legacy = bytes(8) + (20).to_bytes(4) + bytes(4) + bytes([magic]) + bytes(15)
    with pytest.raises(UnsupportedFormatError, match=rf"{LOG}: byte 0: message format v{magic}"):
        _facts(legacy, chunk=chunk)
    with pytest.raises(UnsupportedFormatError, match=f"message format v{magic}"):
        _facts(make_batch(0, magic=magic), chunk=chunk)


@pytest.mark.parametrize("chunk", [1, 100, 1 << 20])
def test_damage_is_reported_with_file_position_and_offset(chunk: int) -> None:
    first, second = make_batch(0, 10), make_batch(10, 10)
    broken = bytearray(first + second)
    broken[-1] ^= 1
    expected = rf"^{LOG}: byte {len(first)}: batch with base offset 10: its CRC32C does not match"
    with pytest.raises(DamagedSegmentError, match=expected):
        _facts(bytes(broken), chunk=chunk)


@pytest.mark.parametrize("chunk", [1, 100, 1 << 20])
@pytest.mark.parametrize(
    ("data", "name", "reason"),
    [
        (make_batch(0, 10) + make_batch(9), LOG, "base offset is below the next offset, 10"),
        (make_batch(4), "00000000000000000005.log", "base offset is below the segment's base, 5"),
        (make_batch(0, span=0), LOG, "last offset delta is -1"),
        (bytes(8) + (48).to_bytes(4) + make_batch(0)[12:], LOG, "length field 48 is less"),
        (make_batch(0) + bytes(200), LOG, "byte 68: magic byte 0, expected 2"),
        (make_batch(0) + b"\xff" * 61, LOG, "magic byte 255"),
    ],
)
def test_impossible_headers_are_refused(data: bytes, name: str, reason: str, chunk: int) -> None:
    with pytest.raises(DamagedSegmentError, match=reason):
        _facts(data, name, chunk=chunk)


def test_segment_truncated_within_a_batch_is_refused() -> None:
    data = SMALL.read(FileKind.LOG) + make_batch(8, 3) + make_batch(11, 4)
    borders = {position for position, _ in walk_headers(pread_of(data), len(data))}
    assert len(borders) == 3
    for length in range(len(data)):
        if length in borders:
            assert _facts(data[:length]).size == length
        else:
            with pytest.raises(DamagedSegmentError, match="the file ends"):
                _facts(data[:length])


def test_flip_of_any_byte_of_a_genuine_segment_is_detected() -> None:
    """The CRC covers everything except base offset, length, leader epoch and magic: bytes 0 to 16
    of a batch.

    A wrong length or magic breaks the walk; a lower base offset breaks the ascending order; a
    higher one reaches beyond the next segment's base offset; a wrong epoch is not in the epoch
    history.
    """
    segment = next(s for s in closed_segments() if s.directory.name == "comp-gzip-0")
    data = segment.read(FileKind.LOG)
    epoch_history = EpochHistory(((LeaderEpoch(0), Offset(0)),))
    by_walk = by_end = by_epoch_history = 0
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << (position % 8)
        try:
            facts = _facts(bytes(flipped))
        except (DamagedSegmentError, UnsupportedFormatError):
            by_walk += 1
            continue
        assert facts.next_offset is not None
        if facts.next_offset != segment.next_base:
            by_end += 1
        else:
            assert epoch_history.violation(facts.epochs, facts.next_offset), (
                f"byte {position} went unseen"
            )
            by_epoch_history += 1
    assert by_walk + by_end + by_epoch_history == len(data)
    # The walk cannot detect flips in the epochs of the six batches and in the base offset of the
    # last.
    assert by_epoch_history == 6 * 4
    assert by_end <= 8


@pytest.mark.parametrize("segment", closed_segments(), ids=str)
def test_rebuilt_indexes_equal_the_brokers(segment: BrokerSegment) -> None:
    walker = BatchWalker(
        str(segment.path(FileKind.LOG)),
        index_interval_bytes=segment.index_interval,
        rebuild_indexes=True,
    )
    view = memoryview(segment.read(FileKind.LOG))
    for start in range(0, len(view), 1000):
        walker.feed(view[start : start + 1000])
    indexes = walker.finish().indexes
    assert indexes is not None
    assert indexes.index == segment.read(FileKind.INDEX)
    assert indexes.timeindex == segment.read(FileKind.TIMEINDEX)


def test_rebuilding_indexes_needs_the_base_offset_in_the_name() -> None:
    with pytest.raises(ValueError, match=r"somewhere\.bin: indexes need a segment's name"):
        BatchWalker("somewhere.bin", rebuild_indexes=True)


def test_segment_beyond_the_range_of_an_index_is_refused() -> None:
    walker = BatchWalker(LOG, index_interval_bytes=0, rebuild_indexes=True)
    with pytest.raises(DamagedSegmentError, match="does not fit into an index"):
        walker.feed(memoryview(make_batch(0) + make_batch(2**31 + 1)))

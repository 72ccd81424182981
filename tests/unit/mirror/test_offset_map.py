"""Source offsets map exactly to target offsets, also across markers, gaps and repeated copies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidetier.mirror.copy.offset_map import (
    CHUNK_RUNS,
    MapChunk,
    MapRecord,
    OffsetMap,
    OffsetMapWriter,
    Run,
    Translation,
    decode_map_record,
    encode_map_record,
    runs_of,
)
from sidetier.segments.errors import MalformedObjectError
from sidetier.segments.offsets import TopicPartition

TP = TopicPartition("orders", 3)


def test_dense_target_offsets_make_one_run_per_range_of_source_offsets() -> None:
    assert list(runs_of([5, 6, 7, 20, 21, 40], 100)) == [
        Run(5, 100, 3),
        Run(20, 103, 2),
        Run(40, 105, 1),
    ]
    assert list(runs_of([], 100)) == []


@given(st.lists(st.integers(0, 400), unique=True), st.integers(0, 10**12))
def test_each_record_is_found_at_its_written_offset(offsets: list[int], target: int) -> None:
    offsets.sort()
    copied = OffsetMap(list(runs_of(offsets, target)))
    expected = {source: target + position for position, source in enumerate(offsets)}
    assert {source: copied.target_of(source) for source in range(401)} == {
        source: expected.get(source) for source in range(401)
    }


def test_a_consumer_continues_at_the_next_copied_record() -> None:
    copied = OffsetMap([Run(10, 100, 5), Run(30, 106, 5)])
    assert copied.translate(12, 35) == Translation(102)
    assert copied.translate(15, 35) == Translation(106)  # aborted on the source
    assert copied.translate(35, 35) == Translation(111)


def test_consumer_below_the_copy_gets_the_whole_target_partition() -> None:
    copied = OffsetMap([Run(10, 100, 5)])
    assert copied.translate(3, 15, log_start=100) == Translation(100)
    assert copied.translate(3, 15, log_start=40) == Translation(40, repeated=60)


def test_translation_is_never_below_the_targets_log_start() -> None:
    copied = OffsetMap([Run(10, 100, 5), Run(30, 106, 5)])
    assert [copied.translate(at, 35, log_start=120) for at in (3, 12, 20, 40)] == [
        Translation(120),
        Translation(120),
        Translation(120),
        Translation(120, repeated=5),
    ]


def test_a_consumer_ahead_of_the_mirror_is_set_to_its_end_with_a_report() -> None:
    copied = OffsetMap([Run(10, 100, 5)])
    assert copied.translate(900, 15) == Translation(105, repeated=885)
    assert OffsetMap([]).translate(900, 15) is None


def test_dropped_records_below_the_progress_are_translated_exactly() -> None:
    """Source offsets 15 to 18 were an aborted transaction and its marker."""
    assert OffsetMap([Run(10, 100, 5)]).translate(19, 19) == Translation(105)


def test_later_of_two_copies_counts() -> None:
    first, again = Run(0, 0, 200), Run(50, 300, 20)
    copied = OffsetMap([again, first])
    assert copied.runs == (Run(0, 0, 50), again, Run(70, 70, 130))
    assert copied.target_of(60) == 310
    assert copied.target_of(100) == 100


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=12))
def test_overlapping_copies_keep_the_newest_of_each_offset(spans: list[tuple[int, int]]) -> None:
    expected: dict[int, int] = {}
    runs, target = [], 0
    for start, length in spans:
        runs.append(Run(start, target, length))
        expected |= {start + row: target + row for row in range(length)}
        target += length + 1
    copied = OffsetMap(list(reversed(runs)))
    assert {at: copied.target_of(at) for at in range(90)} == {
        at: expected.get(at) for at in range(90)
    }


@given(st.integers(1, 60), st.integers(0, 800), st.integers(4, 20))
def test_a_thinned_map_moves_no_consumer_past_a_record(count: int, source: int, kept: int) -> None:
    """Runs of 7 records each, separated by 3 offsets without a copy."""
    whole = OffsetMap([Run(10 * at, 8 * at, 7) for at in range(count)])
    thin = whole.thinned(kept)
    assert len(thin.runs) <= kept
    exact, result = whole.translate(source, 10**6), thin.translate(source, 10**6)
    assert exact is not None
    assert result is not None
    assert result.offset <= exact.offset
    # Repeated records are counted: each copied offset in between has one source offset.
    again = range(source - result.repeated, source)
    repeated = [whole.target_of(at) for at in again]
    expected = range(result.offset, exact.offset)
    assert {at for at in expected if at % 8 < 7} <= {at for at in repeated if at is not None}
    if source >= thin.exact_from:
        assert result == exact


def decoded(record: MapRecord) -> MapChunk:
    assert record.value is not None
    return decode_map_record(record.key, record.value)


def test_chunk_is_rewritten_until_it_is_full() -> None:
    writer = OffsetMapWriter()
    keys = set()
    newest: dict[bytes, MapRecord] = {}
    runs = [Run(10 * number, 20 * number, 3) for number in range(3 * CHUNK_RUNS)]
    for run in runs:
        record = writer.add(TP, [run])
        keys.add(record.key)
        newest[record.key] = record  # what compaction keeps
    assert len(keys) == 3
    result = [run for record in newest.values() for run in decoded(record).runs]
    assert OffsetMap(result).runs == tuple(runs)
    assert decoded(next(iter(newest.values()))).partition == TP


def test_adjacent_transactions_without_a_marker_between_join_into_one_run() -> None:
    writer = OffsetMapWriter()
    writer.add(TP, [Run(0, 50, 10)])
    record = writer.add(TP, [Run(10, 60, 10)])
    assert decoded(record).runs == (Run(0, 50, 20),)


def test_aborted_transaction_leaves_nothing_in_the_next_chunk() -> None:
    writer = OffsetMapWriter()
    writer.add(TP, [Run(0, 50, 10)])
    writer.restart()
    record = writer.add(TP, [Run(0, 61, 10)])
    assert decoded(record).runs == (Run(0, 61, 10),)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"{}", b'{"version":1,"runs":[]}'),
        (b"x", b"y"),
        (encode_map_record(MapChunk(TP, (Run(1, 2, 3),))).key, b'{"version":2,"runs":[]}'),
        (encode_map_record(MapChunk(TP, (Run(1, 2, 3),))).key, b'{"version":1,"runs":[[1,2]]}'),
    ],
)
def test_malformed_map_record_is_refused(key: bytes, value: bytes) -> None:
    with pytest.raises(MalformedObjectError, match="offset map"):
        decode_map_record(key, value)

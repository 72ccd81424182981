import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidetier.pipeline.export.errors import BehindError
from sidetier.pipeline.export.run import next_chunk
from sidetier.pipeline.export.sinks.tables.run import offsets_after
from sidetier.pipeline.export.source import ranges_left
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

A, B, C = (TopicPartition("t", number) for number in range(3))


def span(first: int, until: int) -> OffsetRange:
    return OffsetRange(Offset(first), Offset(until))


RANGES = st.dictionaries(
    st.sampled_from([A, B, C]),
    st.tuples(st.integers(0, 1000), st.integers(0, 1000)).map(
        lambda ends: span(ends[0], ends[0] + ends[1])
    ),
)


def left_of(
    stored: dict[TopicPartition, OffsetRange],
    held: dict[TopicPartition, Offset],
    tail: dict[TopicPartition, Offset] | None = None,
) -> dict[TopicPartition, OffsetRange]:
    return ranges_left(stored, {tp: one.end for tp, one in stored.items()}, held, tail or {})


def test_known_partition_continues_and_new_partition_begins() -> None:
    stored = {A: span(0, 10), B: span(5, 9)}
    assert left_of(stored, {A: Offset(4)}) == {A: span(4, 10), B: span(5, 9)}


@pytest.mark.parametrize(
    ("first", "until", "end", "held", "wanted"),
    [
        (0, 10, 10, None, (0, 10)),  # a new partition, as far as it is stored
        (0, 20, 10, None, (0, 10)),  # no further, whatever was asked for
        (15, 20, 10, None, (15, 15)),  # it is to begin where nothing is stored yet
        (0, 10, 10, 4, (4, 10)),
        (0, 6, 10, 4, (4, 6)),  # up to a given offset
        (0, 6, 10, 8, (8, 8)),  # which the export has passed
    ],
)
def test_where_a_range_ends(
    first: int, until: int, end: int, held: int | None, wanted: tuple[int, int]
) -> None:
    next_offsets = {} if held is None else {A: Offset(held)}
    left = ranges_left({A: span(first, until)}, {A: Offset(end)}, next_offsets)
    assert left == {A: span(*wanted)}


def test_archive_that_ends_below_the_table_is_refused() -> None:
    with pytest.raises(
        BehindError, match=r"partition 0 is exported up to offset 11, but .*ends at 10"
    ):
        left_of({A: span(0, 10)}, {A: Offset(11)})


def test_archive_may_end_below_offsets_exported_from_the_brokers() -> None:
    held, stored = {A: Offset(11)}, {A: span(0, 10)}
    assert left_of(stored, held, {A: Offset(11)}) == {A: span(11, 11)}
    with pytest.raises(BehindError):
        left_of(stored, held, {A: Offset(10)})


def test_no_new_offsets_make_no_chunk() -> None:
    assert next_chunk({A: span(4, 4)}, None) is None


def test_chunk_is_shared_out_among_partitions() -> None:
    chunk = next_chunk({A: span(0, 900), B: span(50, 150), C: span(7, 7)}, 100)
    assert chunk is not None
    assert chunk.ranges == {A: span(0, 90), B: span(50, 60)}
    assert chunk.rest == {A: span(90, 900), B: span(60, 150), C: span(7, 7)}


def test_offsets_after_a_chunk_include_partitions_without_new_records() -> None:
    chunk = next_chunk({A: span(0, 9), C: span(7, 7)}, None)
    assert chunk is not None
    retired = TopicPartition("gone", 0)
    assert offsets_after({retired: Offset(3)}, chunk) == {
        A: Offset(9),
        C: Offset(7),
        retired: Offset(3),
    }


@given(RANGES, st.none() | st.integers(50, 500))
def test_chunks_cover_each_offset_once_and_end(
    stored: dict[TopicPartition, OffsetRange], most: int | None
) -> None:
    left, taken = stored, dict.fromkeys(stored, 0)
    while (chunk := next_chunk(left, most)) is not None:
        for tp, part in chunk.ranges.items():
            assert part.start == stored[tp].start + taken[tp]
            assert part.end > part.start
            taken[tp] += part.end - part.start
        size = sum(part.end - part.start for part in chunk.ranges.values())
        assert most is None or size <= most + len(chunk.ranges)
        left = dict(chunk.rest)
    assert taken == {tp: part.end - part.start for tp, part in stored.items()}

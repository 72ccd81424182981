"""The ends of a batch of a stream with maxOffsetsPerTrigger."""

from hypothesis import given
from hypothesis import strategies as st

from sidetier.pipeline.planning.resolving import limited_ends
from sidetier.segments.offsets import Offset, TopicPartition

A0, A1, A2 = (TopicPartition("a", partition) for partition in range(3))


def test_offset_limit_is_shared_out_in_proportion() -> None:
    starts = {A0: 0, A1: 100, A2: 50}
    ends = {A0: 300, A1: 200, A2: 50}

    assert limited_ends(starts, ends, 40) == {A0: 30, A1: 110, A2: 50}
    assert limited_ends(starts, ends, 400) == ends
    assert limited_ends(starts, ends, None) == ends


def test_new_partition_begins_at_its_lowest_offset() -> None:
    assert limited_ends({A0: 10}, {A0: 20, A1: 30}, 20) == {A0: 15, A1: 15}


def test_an_end_is_never_below_the_start() -> None:
    assert limited_ends({A0: 10}, {A0: 5}, None) == {A0: 10}
    assert limited_ends({A0: 10, A1: 0}, {A0: 5, A1: 9}, 3) == {A0: 10, A1: 3}


@given(
    spans=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=8),
    most=st.integers(1, 3000),
)
def test_every_batch_advances_and_keeps_the_limit(spans: list[tuple[int, int]], most: int) -> None:
    starts = {TopicPartition("t", at): start for at, (start, _) in enumerate(spans)}
    ends = {tp: Offset(starts[tp] + size) for tp, (_, size) in zip(starts, spans, strict=True)}

    result = limited_ends(starts, ends, most)

    taken = {tp: result[tp] - starts[tp] for tp in starts}
    assert all(starts[tp] <= result[tp] <= ends[tp] for tp in starts)
    assert all(taken[tp] > 0 for tp in starts if ends[tp] > starts[tp])
    assert sum(taken.values()) <= most + len(spans)

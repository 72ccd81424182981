from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidetier.segments.errors import SegmentError
from sidetier.segments.headers import parse_batch_header, walk_headers
from sidetier.segments.indexes import (
    parse_offset_index,
    tail_of,
)
from sidetier.segments.offsets import BaseOffset
from sidetier.segments.walker import BatchWalker, SegmentFacts
from tests.harness.batches import make_batch, pread_of
from tests.harness.index_lookups import lookup_position

LOG = "00000000000000000000.log"


@st.composite
def segments(draw: st.DrawFn) -> bytes:
    batches, base, epoch = [], 0, 0
    for _ in range(draw(st.integers(0, 12))):
        base += draw(st.integers(0, 3))
        epoch += draw(st.integers(0, 1))
        span = draw(st.integers(1, 20))
        batches.append(
            make_batch(
                base,
                draw(st.integers(1, span)),
                span=span,
                epoch=epoch,
                timestamp=draw(st.integers(-1, 50)),
                payload=draw(st.binary(max_size=80)),
                attributes=draw(st.sampled_from([0, 0x10, 0x30])),
            )
        )
        base += span
    return b"".join(batches)


def _walk(data: bytes, cuts: list[int]) -> SegmentFacts:
    walker = BatchWalker(LOG, index_interval_bytes=100, rebuild_indexes=True)
    view = memoryview(data)
    borders = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in pairwise(borders):
        walker.feed(view[start:end])
    return walker.finish()


@given(segments(), st.lists(st.integers(0, 2000), max_size=30))
def test_chunk_boundaries_do_not_change_the_result(data: bytes, cuts: list[int]) -> None:
    assert _walk(data, cuts) == _walk(data, [])


@given(segments(), st.integers(0, 2000), st.integers(1, 255), st.lists(st.integers(0, 2000)))
def test_damage_is_detected_for_any_chunk_boundaries(
    data: bytes, position: int, change: int, cuts: list[int]
) -> None:
    if not data:
        return
    damaged = bytearray(data)
    damaged[position % len(data)] ^= change
    try:
        whole = _walk(bytes(damaged), [])
    except SegmentError as error:
        with pytest.raises(type(error)):
            _walk(bytes(damaged), cuts)
    else:
        assert _walk(bytes(damaged), cuts) == whole
        assert whole != _walk(data, [])


@given(segments())
def test_facts_are_the_sum_of_the_headers(data: bytes) -> None:
    facts = _walk(data, [])
    walked = list(walk_headers(pread_of(data), len(data)))
    headers = [header for _, header in walked]
    assert [position for position, _ in walked] == list(
        accumulate((header.length for header in headers[:-1]), initial=0)
    )[: len(walked)]
    assert all(parse_batch_header(data, position) == header for position, header in walked)
    assert facts.size == sum(header.length for header in headers)
    assert facts.records == sum(header.record_count for header in headers)
    plain = not any(header.is_transactional or header.is_control for header in headers)
    assert facts.plain_records == (facts.records if plain else None)
    assert facts.max_timestamp == max((header.max_timestamp for header in headers), default=-1)
    assert facts.next_offset == (headers[-1].next_offset if headers else None)
    assert [epoch for epoch, _ in facts.epochs] == sorted({h.leader_epoch for h in headers})


@given(segments())
def test_rebuilt_indexes_are_valid_and_find_every_offset(data: bytes) -> None:
    facts = _walk(data, [])
    assert facts.indexes is not None
    index_bytes, time_bytes = facts.indexes.index, facts.indexes.timeindex
    end = facts.next_offset or 0
    again = BatchWalker(LOG, index=[index_bytes], time_index=[time_bytes])
    again.feed(memoryview(data))
    compared = again.finish()
    assert compared.index_fits
    assert compared.time_index_fits
    index = parse_offset_index(index_bytes, BaseOffset(0))
    for position, header in walk_headers(pread_of(data), len(data)):
        found = lookup_position(index, header.base_offset)
        assert found <= position
        assert position - found <= 100 + 2 * (61 + 80)
    tail = tail_of(pread_of(data), len(data), index_bytes, time_bytes, BaseOffset(0))
    assert (tail.next_offset, tail.max_timestamp) == (end, facts.max_timestamp)

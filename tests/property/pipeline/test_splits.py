"""Splits of any size return each record of a log once, as a plain model does."""

import random
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from sidetier.pipeline.errors import UndecidedRecordsError
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.request import ReadRequest, Topics
from sidetier.pipeline.planning.split import Missing, Split
from sidetier.pipeline.reading.split_reader import ReadOptions, read_split
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, OffsetRange
from tests.harness.archive_world import (
    World,
    build,
    cut,
    produced,
    store,
    store_transaction_indexes,
)
from tests.harness.made_archive import TP, MadeArchive, access_to

MIN_MEMORY = "sidetier.archive.reader.settings.MIN_MEMORY"


@dataclass(slots=True)
class Read:
    """The records of some splits."""

    offsets: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    undecided: range = range(0)

    def lose(self, missing: Missing) -> None:
        self.missing += range(missing.range.start, missing.range.end)


def planned(
    world: World, request: ReadRequest, parts: list[float]
) -> tuple[list[Split], list[Missing], int]:
    """The splits of the whole archive, planned at once or range by range, and its end."""
    with Planner(access_to(world.archive.store), threads=2) as planner:
        whole = planner.resolve(request)[TP]
        bounds = sorted({whole.start, whole.end, *(_at(whole, part) for part in parts)})
        plans = [
            planner.plan_ranges({TP: OffsetRange(first, until)}, request)
            for first, until in pairwise(bounds)
        ]
    splits = list(chain.from_iterable(plan.splits for plan in plans))
    missing = list(chain.from_iterable(plan.missing for plan in plans))
    return splits, missing, whole.end


def request_of(isolation: IsolationLevel, most: int) -> ReadRequest:
    return ReadRequest(
        Topics((TP.topic,)), isolation=isolation, fail_on_data_loss=False, max_split_bytes=most
    )


def _at(span: OffsetRange, part: float) -> Offset:
    return Offset(span.start + int(part * (span.end - span.start)))


def read(world: World, split: Split, isolation: IsolationLevel, memory: int) -> Read:
    result = Read()
    how = ReadOptions(("value", "offset"), isolation, fail_on_data_loss=False, memory_budget=memory)
    with patch(MIN_MEMORY, 1):
        try:
            for batch in read_split(access_to(world.archive.store), split, how, result.lose):
                assert batch.schema.names == ["value", "offset"]
                result.offsets += batch.column("offset").to_pylist()
        except UndecidedRecordsError as error:
            result.undecided = range(error.range.start, error.range.end)
    return result


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    flags=st.tuples(st.booleans(), st.booleans()),
    isolation=st.sampled_from(IsolationLevel),
    most=st.integers(50, 5000),
    parts=st.lists(st.floats(0, 1), max_size=4),
    memory=st.sampled_from([1500, 6000, 1 << 20]),
)
def test_splits_of_any_archive_give_each_record_once(
    seed: int,
    flags: tuple[bool, bool],
    isolation: IsolationLevel,
    most: int,
    parts: list[float],
    memory: int,
) -> None:
    is_pinterest, find_gaps = flags
    world = build(seed, is_pinterest=is_pinterest)
    committed = isolation is IsolationLevel.READ_COMMITTED
    request = replace(request_of(isolation, most), find_gaps=find_gaps)
    splits, missing, end = planned(world, request, parts)

    for split in splits:
        span = split.range
        shown, absent, _ = world.expect(span.start, committed=committed)
        result = read(world, split, isolation, memory)
        assert result.offsets == [offset for offset in shown if offset < span.end]
        assert not result.undecided or min(result.undecided) > max(result.offsets, default=-1)
        assert committed or not result.undecided
        assert not result.undecided or result.undecided.stop == span.end
        assert set(result.missing) <= set(absent)
        assert {offset for offset in absent if offset < span.end} <= {
            *result.missing,
            *result.undecided,
        }

    covered = [offset for split in splits for offset in range(split.range.start, split.range.end)]
    assert len(covered) == len(set(covered))
    lost = [offset for gap in missing for offset in range(gap.range.start, gap.range.end)]
    assert sorted(covered + lost) == list(range(world.start, end))
    assert not any(world.covered(offset) for offset in lost)
    unstored = {offset for offset in range(world.start, end) if not world.covered(offset)}
    assert not find_gaps or set(lost) == unstored


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), most=st.integers(50, 3000))
def test_committed_splits_end_at_the_last_stable_offset(seed: int, most: int) -> None:
    dice = random.Random(seed)
    batches = produced(dice, 60)
    line = list(cut(dice, batches, by_bytes=False))
    world = World(MadeArchive(), line, end=line[-1].end)
    for item in line:
        store(world, item)
    store_transaction_indexes(world, line)
    world.archive.mark(line[-1].base, world.end)
    shown, _, _ = world.expect(0, committed=True)

    request = request_of(IsolationLevel.READ_COMMITTED, most)
    splits, missing, end = planned(world, request, [])

    result = [read(world, split, IsolationLevel.READ_COMMITTED, 6000) for split in splits]
    assert list(chain.from_iterable(element.offsets for element in result)) == shown
    assert not any(entry.missing for entry in result)
    assert not missing
    assert end == world.stable

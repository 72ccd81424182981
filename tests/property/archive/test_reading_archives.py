"""Any archive, read from any offset with any memory, gives the result of a simple model."""

import random
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from sidetier.archive.reader import Gap, GapReason, IsolationLevel, ReachedEnd
from sidetier.segments.offsets import Offset
from tests.harness.archive_world import (
    World,
    build,
    cut,
    produced,
    store,
    store_transaction_indexes,
)
from tests.harness.made_archive import TP, MadeArchive, offsets, read_over

SETTINGS = "sidetier.archive.reader.settings.MIN_MEMORY"


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    is_pinterest=st.booleans(),
    isolation=st.sampled_from(IsolationLevel),
    first_range=st.integers(20, 4000),
    memory=st.sampled_from([1500, 6000, 1 << 20]),
    part=st.floats(0, 1),
)
def test_every_archive_is_read_as_in_the_model(
    seed: int,
    is_pinterest: bool,  # noqa: FBT001
    isolation: IsolationLevel,
    first_range: int,
    memory: int,
    part: float,
) -> None:
    world = build(seed, is_pinterest=is_pinterest)
    start = int(part * world.end)
    committed = isolation is IsolationLevel.READ_COMMITTED
    shown, missing, ends = world.expect(start, committed=committed)

    with patch(SETTINGS, 1):
        taken = read_over(
            world.archive,
            start,
            isolation=isolation,
            first_range=first_range,
            largest_range=first_range * 3,
            memory_budget=memory,
        )

    gaps = [one for one in taken if isinstance(one, Gap)]
    assert offsets(taken) == shown
    assert [offset for gap in gaps for offset in range(*gap.offsets)] == missing
    for gap in gaps:
        recorded = any(first <= gap.offsets.start < end for first, end in world.gaps)
        assert (gap.reason is GapReason.RECORDED_GAP) == recorded
    assert isinstance(taken[-1], ReachedEnd)
    assert not ends or taken[-1].next_offset == world.end


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    first_range=st.integers(20, 4000),
    memory=st.sampled_from([1500, 6000]),
)
def test_transaction_indexes_do_not_change_the_result(
    seed: int, first_range: int, memory: int
) -> None:
    dice = random.Random(seed)
    batches = produced(dice, 60)
    line = list(cut(dice, batches, by_bytes=False))
    world = World(MadeArchive(), line, end=line[-1].end)
    for one in line:
        store(world, one)
    store_transaction_indexes(world, line)
    world.archive.mark(line[-1].base, world.end)
    shown, _, ends = world.expect(0, committed=True)

    with patch(SETTINGS, 1):
        taken = read_over(
            world.archive, 0, first_range=first_range, largest_range=4000, memory_budget=memory
        )

    assert offsets(taken) == shown
    assert not ends or taken[-1] == ReachedEnd(TP, Offset(world.end))

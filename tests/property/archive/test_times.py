"""The offset of a timestamp is that of the first record with the same or a later timestamp."""

import random
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.made_archive import TP, MadeArchive, reading
from tests.harness.record_batches import MadeBatch, MadeRecord


def timed(dice: random.Random, first: int, end: int) -> list[MadeBatch]:
    """Batches whose timestamps mostly increase."""
    batches, offset = [], first
    while offset < end:
        count = min(dice.randrange(1, 5), end - offset)
        batches.append(
            MadeBatch(
                tuple(
                    MadeRecord(one, max(0, one * 3 + dice.randrange(-40, 40)))
                    for one in range(offset, offset + count)
                )
            )
        )
        offset += count
    return batches


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), wanted=st.lists(st.integers(-5, 700), min_size=1, max_size=5))
def test_first_record_of_a_timestamp_is_found(seed: int, wanted: list[int]) -> None:
    dice = random.Random(seed)
    archive = MadeArchive(is_pinterest=dice.random() < 0.3)
    bases = [0, *sorted(dice.sample(range(1, 200), dice.randrange(4))), 200]
    records: list[MadeRecord] = []
    for base, end in pairwise(bases):
        batches = timed(dice, base, end)
        records += [record for batch in batches for record in batch.records]
        archive.segment(base, batches)
    archive.mark(bases[-2], bases[-1])

    with reading(archive.store) as reader:
        found = [reader.offset_for_time(TP, timestamp) for timestamp in wanted]

    assert found == [
        next((record.offset for record in records if record.timestamp >= timestamp), None)
        for timestamp in wanted
    ]

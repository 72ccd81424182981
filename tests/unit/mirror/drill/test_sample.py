"""The content of a drill's sample: a function of the seed, within its limits."""

from dataclasses import replace
from itertools import pairwise

import pytest

from sidetier.mirror.drill.sample import SampleRules, choose_sample, part_of, plan_of_sample
from sidetier.mirror.hydrate.plan import PlannedPartition, PlannedSegment, check_partition
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

RULES = SampleRules(seed=7, segments=2, newest=False, max_partitions=5, max_bytes=10**6)
STORED = [TopicPartition(topic, number) for topic in ("a", "b", "c") for number in range(10)]


def whole(tp: TopicPartition, *bases: int, size: int = 100) -> PlannedPartition:
    """A partition with a segment at each base offset except the last, which is the end."""
    segments = tuple(
        PlannedSegment(base, f"{tp}/{base:020d}.log", "etag", size) for base in bases[:-1]
    )
    start, end = (bases[0], bases[-1]) if bases else (0, 0)
    return PlannedPartition(tp.topic, tp.partition, start, end, end, segments)


def planned(tp: TopicPartition) -> PlannedPartition:
    return whole(tp, *range(0, 100, 10))


def test_same_seed_gives_the_same_sample_and_other_seeds_give_others() -> None:
    chosen = choose_sample(STORED, planned, RULES)
    assert choose_sample(reversed(STORED), planned, RULES) == chosen
    others = [choose_sample(STORED, planned, replace(RULES, seed=seed)) for seed in range(5)]
    assert all(sample != chosen for sample in others)
    assert len({part.segments[0].base_offset for item in others for part in item}) > 3


def test_sample_is_valid_and_within_its_bounds() -> None:
    for seed in range(30):
        chosen = choose_sample(STORED, planned, replace(RULES, seed=seed, max_bytes=700))
        assert len(chosen) == 4, "three of two segments, and one of the hundred bytes that are left"
        assert sum(part.size for part in chosen) == 700
        assert all(part < later for part, later in pairwise(p.topic_partition for p in chosen))
        for part in chosen:
            check_partition(part)
            assert part.end == part.segments[-1].base_offset + 10
            assert part.start == part.segments[0].base_offset


def test_newest_segments_reach_the_end() -> None:
    (part,) = choose_sample(STORED[:1], planned, replace(RULES, newest=True))
    assert (part.start, part.end) == (70, 90)
    (less,) = choose_sample(STORED[:1], planned, replace(RULES, newest=True, max_bytes=150))
    assert (less.start, less.end) == (80, 90)


def test_only_the_needed_partitions_are_planned() -> None:
    asked = []

    def looked_at(tp: TopicPartition) -> PlannedPartition:
        asked.append(tp)
        return planned(tp)

    choose_sample(STORED, looked_at, replace(RULES, max_partitions=3))
    assert len(asked) == 3


def test_partitions_without_segments_and_with_large_ones_are_skipped() -> None:
    def mixed(tp: TopicPartition) -> PlannedPartition:
        match tp.partition:
            case 0:
                return whole(tp)
            case 1:
                return whole(tp, 0, 10, size=10**9)
            case _:
                return whole(tp, 0, 10, 20)

    chosen = choose_sample(STORED[:3], mixed, RULES)
    assert [part.partition for part in chosen] == [2]
    with pytest.raises(ConfigurationError, match="nothing to drill"):
        choose_sample(STORED[:1], mixed, RULES)
    with pytest.raises(ConfigurationError, match=r"a-1/0{20}\.log, has 1,000,000,000 bytes"):
        choose_sample(STORED[:2], mixed, RULES)


def gap(start: int, end: int) -> OffsetRange:
    return OffsetRange(Offset(start), Offset(end))


def test_part_keeps_the_log_start_and_the_gaps_within_it() -> None:
    given = replace(planned(STORED[0]), start=5, gaps=(gap(8, 12), gap(35, 50)))
    first = part_of(given, 0, 1)
    assert (first.start, first.end, first.gaps) == (5, 10, (gap(8, 10),))
    middle = part_of(given, 2, 2)
    assert (middle.start, middle.end, middle.gaps) == (20, 40, (gap(35, 40),))
    check_partition(middle)


def test_topics_get_the_partitions_below_the_sampled_ones() -> None:
    sample = [planned(TopicPartition("a", 3)), planned(TopicPartition("b", 0))]
    plan = plan_of_sample("prod-a", [*sample, planned(TopicPartition("a", 1))])
    assert {name: topic.partitions for name, topic in plan.topics.items()} == {"a": 4, "b": 1}
    assert len(plan.partitions) == 3

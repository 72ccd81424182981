"""Choose which part of an archive a drill restores. The choice is a function of the seed alone."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from sidetier.mirror.hydrate.plan import (
    HydratePlan,
    OffsetPair,
    PlannedPartition,
    PlannedTopic,
    new_plan_id,
)
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import TopicPartition


@dataclass(frozen=True, slots=True)
class SampleRules:
    """What a sample holds.

    Attributes:
        seed: Decides the partitions, and with `newest` False the place in each of them.
        segments: Consecutive segments of each partition, at most.
        newest: Take the newest segments of each partition instead of a random place.
        max_partitions: Partitions at most.
        max_bytes: Bytes of all `.log`s at most.
    """

    seed: int
    segments: int
    newest: bool
    max_partitions: int
    max_bytes: int


def choose_sample(
    stored: Iterable[TopicPartition],
    planned: Callable[[TopicPartition], PlannedPartition],
    rules: SampleRules,
) -> list[PlannedPartition]:
    """Choose partitions in random order until one of the bounds is reached.

    Args:
        stored: The partitions to choose from.
        planned: Plans a whole partition; called only for those that are looked at.
        rules: See there.

    Returns:
        The chosen partitions, sorted, each with its chosen segments only.

    Raises:
        ConfigurationError: no closed segment was found, or each is larger than the bound.
    """
    order = sorted(stored)
    random.Random(rules.seed).shuffle(order)  # noqa: S311 -- nothing secret
    chosen: list[PlannedPartition] = []
    left = rules.max_bytes
    smallest: tuple[int, str] | None = None
    for tp in order:
        if len(chosen) == rules.max_partitions:
            break
        whole = planned(tp)
        part = _part_of(whole, rules, left)
        if part is None:
            keys = ((segment.size, segment.key) for segment in whole.segments)
            smallest = min((*keys, *([smallest] if smallest else [])), default=None)
            continue
        chosen.append(part)
        left -= part.size
    if chosen:
        return sorted(chosen, key=lambda one: one.topic_partition)
    if smallest is None:
        raise ConfigurationError(
            "nothing to drill: no selected partition has an archived segment; see `sidetier ls`"
        )
    raise ConfigurationError(
        f"no segment fits into --max-bytes: the smallest, {smallest[1]}, has {smallest[0]:,} bytes"
    )


def _part_of(whole: PlannedPartition, rules: SampleRules, left: int) -> PlannedPartition | None:
    """The chosen segments of a partition, fewer where not all of them fit; None where none does."""
    count = min(rules.segments, len(whole.segments))
    if count == 0:
        return None
    last_first = len(whole.segments) - count
    # Each partition draws by itself: the choice in it does not depend on which others are stored.
    drawn = random.Random(f"{rules.seed}/{whole.topic_partition}")  # noqa: S311 -- nothing secret
    first = last_first if rules.newest else drawn.randint(0, last_first)
    sizes = [segment.size for segment in whole.segments[first : first + count]]
    while sizes and sum(sizes) > left:
        if rules.newest:
            del sizes[0]
            first += 1
        else:
            del sizes[-1]
    return part_of(whole, first, len(sizes)) if sizes else None


def part_of(whole: PlannedPartition, first: int, count: int) -> PlannedPartition:
    """`count` segments of a planned partition, from the segment with index `first` on.

    The part ends where the next segment begins, or where the whole ends.
    """
    segments = whole.segments[first : first + count]
    behind = whole.segments[first + count : first + count + 1]
    start = max(whole.start, segments[0].base_offset)
    end = behind[0].base_offset if behind else whole.end
    return replace(
        whole, start=start, end=end, segments=segments, gaps=_within(whole.gaps, start, end)
    )


def _within(gaps: Iterable[OffsetPair], start: int, end: int) -> tuple[OffsetPair, ...]:
    clipped = ((max(first, start), min(behind, end)) for first, behind in gaps)
    return tuple((first, behind) for first, behind in clipped if first < behind)


def plan_of_sample(cluster: str, sample: Sequence[PlannedPartition]) -> HydratePlan:
    """A plan that restores the sample and nothing else.

    Kafka numbers partitions from 0 on: the topics also get the partitions below the sampled ones,
    which stay empty.
    """
    topics: dict[str, PlannedTopic] = {}
    for part in sample:
        known = topics.get(part.topic, PlannedTopic(0))
        topics[part.topic] = PlannedTopic(max(known.partitions, part.partition + 1))
    return HydratePlan(new_plan_id(), cluster, topics, tuple(sample))

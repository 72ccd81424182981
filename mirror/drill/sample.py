"""Choose the part of an archive that a drill restores. The seed alone decides the choice."""

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
    """Rules for the content of a sample.

    Attributes:
        seed: Decides the partitions and, if `newest` is False, the position in each of them.
        segments: Maximum number of consecutive segments of each partition.
        newest: Take the newest segments of each partition instead of a random position.
        max_partitions: Maximum number of partitions.
        max_bytes: Maximum bytes of all `.log` files.
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
    """Choose partitions in random order until one of the limits is reached.

    Args:
        stored: The partitions to choose from.
        planned: Plans a whole partition; called only for partitions that are considered.
        rules: The rules for the sample.

    Returns:
        The chosen partitions, sorted, each with its chosen segments only.

    Raises:
        ConfigurationError: No closed segment exists, or each is larger than the limit.
    """
    order = sorted(stored)
    random.Random(rules.seed).shuffle(order)  # noqa: S311 -- not used for a secret
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
        return sorted(chosen, key=lambda partition: partition.topic_partition)
    if smallest is None:
        raise ConfigurationError(
            "nothing to drill: no selected partition has an archived segment; see `sidetier ls`"
        )
    raise ConfigurationError(
        f"no segment fits into --max-bytes: the smallest, {smallest[1]}, has {smallest[0]:,} bytes"
    )


def _part_of(whole: PlannedPartition, rules: SampleRules, left: int) -> PlannedPartition | None:
    """Return the chosen segments of a partition, as many as fit; None if none fits."""
    count = min(rules.segments, len(whole.segments))
    if count == 0:
        return None
    last_first = len(whole.segments) - count
    # Each partition has its own random generator: its choice does not depend on which other
    # partitions are stored.
    drawn = random.Random(f"{rules.seed}/{whole.topic_partition}")  # noqa: S311 -- not used for a secret
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
    """Return `count` segments of a planned partition, from the segment with index `first` on.

    The part ends where the next segment begins, or where the whole partition ends.
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
    """Return a plan that restores only the sample.

    Kafka numbers partitions from 0 on, so the topics also get the partitions below the sampled
    ones; these stay empty.
    """
    topics: dict[str, PlannedTopic] = {}
    for part in sample:
        known = topics.get(part.topic, PlannedTopic(0))
        topics[part.topic] = PlannedTopic(max(known.partitions, part.partition + 1))
    return HydratePlan(new_plan_id(), cluster, topics, tuple(sample))

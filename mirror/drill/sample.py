"""Choose the part of an archive that a drill restores, and compare the restored records.

The seed alone decides the choice, so that a drill can be repeated.
"""

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.topics import archived_partitions, numbers_by_topic
from sidetier.mirror.hydrate.digest import Digest
from sidetier.mirror.hydrate.plan import (
    HydratePlan,
    PlannedPartition,
    PlannedTopic,
    gaps_between,
    new_plan_id,
)
from sidetier.mirror.hydrate.survey import Cut, partition_planner
from sidetier.mirror.topics.rules import compiled
from sidetier.segments.errors import ConfigurationError, LeadershipUnavailableError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.names import is_internal_topic, partition_count
from sidetier.segments.offsets import TopicPartition

_ATTEMPTS: Final = 3


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


def select_sample(
    archive: ArchiveAccess,
    rules: SampleRules,
    patterns: Collection[str] = (),
    numbers: Collection[int] = (),
    more: Collection[TopicPartition] = (),
    prepare: Callable[[TopicPartition], None] = lambda _: None,
) -> list[PlannedPartition]:
    """Choose a sample of the archived partitions that match.

    Args:
        archive: The archive.
        rules: The rules for the sample.
        patterns: Regular expressions for whole topic names; empty for all but internal topics.
        numbers: Partition numbers; empty for all.
        more: Partitions that need not be archived before `prepare` was called for them.
        prepare: Called with each partition that is considered, before it is planned.

    Raises:
        ConfigurationError: A pattern is invalid, or no partition can be chosen.
        StorageError: The archive cannot be read.
    """
    archived = sorted({*archived_partitions(archive), *more})
    too_high = {
        TopicPartition(topic, number)
        for topic, stored_numbers in numbers_by_topic(archived).items()
        for number in partition_count(stored_numbers)[1]
    }
    expressions = [compiled(pattern, "--topic") for pattern in patterns]
    stored = [
        tp
        for tp in archived
        if (
            any(expression.fullmatch(tp.topic) for expression in expressions)
            if patterns
            else not is_internal_topic(tp.topic)
        )
        and (not numbers or tp.partition in numbers)
        # The brokers of the drill would get all partitions below it.
        and tp not in too_high
    ]
    plan = partition_planner(archive, Cut())

    def planned(tp: TopicPartition) -> PlannedPartition:
        prepare(tp)
        return plan(tp)

    return choose_sample(stored, planned, rules)


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
    # Sorted first: the order of a listing must not decide what a seed chooses.
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
        whole, start=start, end=end, segments=segments, gaps=gaps_between(whole.gaps, start, end)
    )


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


class RecordSource(Protocol):
    """Brokers whose records can be consumed."""

    def digest(self, plan: PlannedPartition, isolation: IsolationLevel) -> Digest:
        """Return the digest of what a consumer gets from the planned start up to the planned end.

        Raises:
            LeadershipUnavailableError: The brokers refuse, or do not answer.
        """
        ...


LogStart = Callable[[TopicPartition], int]
"""Returns the log start offset of a partition on the live brokers; raises
LeadershipUnavailableError if no broker answers.
"""


def differences_from_archive(
    plan: PlannedPartition, expected: Mapping[IsolationLevel, Digest], restored: RecordSource
) -> list[str]:
    """Return how the records of the restored partition differ from the archive.

    Both isolation levels are compared: aborted records must be hidden, committed records must not.

    Args:
        plan: The restored part of the partition.
        expected: The digests of the archive, by isolation level.
        restored: The temporary broker.

    Raises:
        LeadershipUnavailableError: The temporary broker does not answer.
    """
    problems = []
    for level, digest in expected.items():
        difference = digest.difference(restored.digest(plan, level))
        if difference is not None:
            problems.append(
                f"{plan.topic_partition}: offsets [{plan.start}, {plan.end}), {level}: the "
                f"restored broker has {difference}"
            )
    return problems


@dataclass(frozen=True, slots=True)
class LiveComparison:
    """The comparison with the live brokers of the offsets from `start` up to the planned end.

    `start` is None if the live brokers no longer have any of these offsets.
    """

    start: int | None
    problems: tuple[str, ...] = ()


def compare_with_live(
    plan: PlannedPartition,
    restored: RecordSource,
    live: RecordSource,
    log_start: LogStart,
    name: str = "the restored broker",
) -> LiveComparison:
    """Compare restored records with those that the live brokers still have, segment by segment.

    Records of aborted transactions are compared too. A transaction that is open at the end of the
    sample is decided on the live brokers and aborted on the temporary broker; its records are
    equal.

    If retention deletes records during the comparison, the remaining records are compared again.

    Args:
        plan: The restored part of the partition.
        restored: The temporary broker, or the archive that was restored.
        live: The live brokers.
        log_start: Returns the log start offset on the live brokers.
        name: Name of `restored` in the reported differences.

    Raises:
        LeadershipUnavailableError: Brokers do not answer.
    """
    start = max(plan.start, log_start(plan.topic_partition))
    for attempts_left in reversed(range(_ATTEMPTS)):
        if start >= plan.end:
            return LiveComparison(None)
        failure = None
        try:
            problems = [
                problem
                for part in _segments_from(plan, start)
                if (problem := _difference(part, restored, live, name)) is not None
            ]
        except LeadershipUnavailableError as error:
            problems, failure = [], error
        if not problems and failure is None:
            return LiveComparison(start)
        # Retention explains a difference only if the log start has moved since.
        moved = max(plan.start, log_start(plan.topic_partition))
        if moved == start or attempts_left == 0:
            if failure is not None:
                raise failure
            break
        start = moved
    return LiveComparison(start, tuple(problems))


def _segments_from(plan: PlannedPartition, start: int) -> Iterator[PlannedPartition]:
    """Yield each planned segment as a plan of its own, without the offsets below `start`."""
    for segment, end in plan.segments_with_ends:
        first = max(start, plan.start, segment.base_offset)
        if first < end:
            yield replace(plan, start=first, end=end, segments=(segment,))


def _difference(
    part: PlannedPartition, restored: RecordSource, live: RecordSource, name: str
) -> str | None:
    level = IsolationLevel.READ_UNCOMMITTED  # aborted records are compared too
    difference = live.digest(part, level).difference(restored.digest(part, level))
    if difference is None:
        return None
    return (
        f"{part.topic_partition}: offsets [{part.start}, {part.end}), {part.segments[0].key}: "
        f"{name} has {difference}, as the live brokers have"
    )

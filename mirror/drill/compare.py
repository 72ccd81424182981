"""Compare the records that a drill has restored with the archive and with the live brokers."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from sidetier.mirror.hydrate.plan import PlannedPartition
from sidetier.mirror.hydrate.verify import Digest
from sidetier.segments.errors import LeadershipUnavailableError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import TopicPartition

_TRIES: Final = 3
_EVERY: Final = IsolationLevel.READ_UNCOMMITTED


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
        restored: The throw-away broker.

    Raises:
        LeadershipUnavailableError: The throw-away broker does not answer.
    """
    problems = []
    for level, digest in expected.items():
        difference = digest.difference(restored.digest(plan, level))
        if difference is not None:
            problems.append(
                f"{plan.topic_partition}: offsets {plan.start}-{plan.end}, {level}: the restored "
                f"broker has {difference}"
            )
    return problems


@dataclass(frozen=True, slots=True)
class LiveComparison:
    """The comparison with the live brokers of the offsets from `start` up to the planned end.

    `start` is None if the live brokers have none of these offsets any more.
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
    sample is decided on the live brokers and aborted on the throw-away broker; its records are
    equal.

    If retention deletes records during the comparison, the remaining records are compared again.

    Args:
        plan: The restored part of the partition.
        restored: The throw-away broker, or the archive that was restored.
        live: The live brokers.
        log_start: Returns the log start offset on the live brokers.
        name: Name of `restored` in the reported differences.

    Raises:
        LeadershipUnavailableError: Brokers do not answer.
    """
    start = max(plan.start, log_start(plan.topic_partition))
    for tries_left in reversed(range(_TRIES)):
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
        moved = max(plan.start, log_start(plan.topic_partition))
        if moved == start or tries_left == 0:
            if failure is not None:
                raise failure
            break
        start = moved
    return LiveComparison(start, tuple(problems))


def _segments_from(plan: PlannedPartition, start: int) -> Iterator[PlannedPartition]:
    """Yield each planned segment as a plan of its own, without the offsets below `start`."""
    ends = [segment.base_offset for segment in plan.segments[1:]] + [plan.end]
    for segment, end in zip(plan.segments, ends, strict=True):
        first = max(start, plan.start, segment.base_offset)
        if first < end:
            yield replace(plan, start=first, end=end, segments=(segment,))


def _difference(
    part: PlannedPartition, restored: RecordSource, live: RecordSource, name: str
) -> str | None:
    difference = live.digest(part, _EVERY).difference(restored.digest(part, _EVERY))
    if difference is None:
        return None
    return (
        f"{part.topic_partition}: offsets {part.start}-{part.end}, {part.segments[0].key}: {name} "
        f"has {difference}, as the live brokers have"
    )

"""Run a backfill plan with the daemon, and collect the result."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Final

from sidetier.cli.backfill.plan import BackfillPlan, PartitionPlan
from sidetier.cli.backfill.progress import Amount, Progress
from sidetier.leadership.port import HighWatermark
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.telemetry.status import PartitionState, PartitionStatus, StatusSnapshot
from sidetier.uploader.daemon import Daemon
from sidetier.uploader.led_partitions import latest_epoch

PATIENCE_SECONDS: Final = 6.0
"""The run ends after this time without anything under way. By then the daemon has tried every
remaining segment four times, and a broker has written its checkpoint, which it does every 5 s.
"""
_LOOK_SECONDS: Final = 0.2
_HIGHEST: Final = Offset(2**63 - 1)
_NOTHING: Final[Mapping[TopicPartition, PartitionStatus]] = {}


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    """Result of one partition; `why` is the reason if something is left."""

    plan: PartitionPlan
    next_offset: Offset | None
    stored: Amount
    gap_records: int = 0
    why: str | None = None

    @property
    def left(self) -> int:
        """Number of due segments that are not below the archive end."""
        return len(self.plan.due) - self.stored.segments


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a backfill; `unreadable` has a line for each log dir that could not be read."""

    partitions: tuple[PartitionOutcome, ...]
    interrupted: bool = False
    unreadable: tuple[str, ...] = ()

    @property
    def findings(self) -> bool:
        """Whether anything was not stored."""
        if self.unreadable:
            return True
        return any(
            partition.left or partition.gap_records or partition.why
            for partition in self.partitions
        )


class AssumedCommitted:
    """HighWatermarkSource that takes every closed segment as committed (--assume-committed)."""

    def __init__(self, directories: Mapping[TopicPartition, str]) -> None:
        self._directories = directories

    def high_watermarks(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, HighWatermark]:
        """Return the highest possible offset, in the latest epoch of the partition's directory."""
        return {
            tp: HighWatermark(_HIGHEST, latest_epoch(self._directories[tp]))
            for tp in partitions
            if tp in self._directories
        }

    def close(self) -> None:
        """Do nothing: no connection is open."""


class Backfill:
    """One run; `stop` ends it early and lets requests under way finish."""

    def __init__(self, plan: BackfillPlan, daemon: Daemon, progress: Progress) -> None:
        self._plan = plan
        self._daemon = daemon
        self._progress = progress
        self._interrupted = False

    def stop(self) -> None:
        """End early; what is under way may finish. Callable from any thread and signal handler."""
        self._interrupted = True
        self._daemon.stop()

    def run(self) -> Outcome:
        """Store the due segments; return when all are stored, or nothing more can be done.

        Segments that a running broker closes meanwhile are not waited for.

        Raises:
            ConfigurationError: The configuration can never work.
            DaemonDiedError: A thread died.
        """
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="daemon") as pool:
            running = pool.submit(self._daemon.run_until_settled, PATIENCE_SECONDS)
            while not wait([running], _LOOK_SECONDS).done:
                self._look()
            running.result()
        self._look()
        return self._outcome()

    def _look(self) -> None:
        """Report the progress; stop the daemon when everything planned is done."""
        statuses = _by_partition(self._daemon.status.snapshot())
        done = [partition.done(_next_offset(partition, statuses)) for partition in self._plan.work]
        segments, sizes = sum(count for count, _ in done), sum(size for _, size in done)
        held = sum(status.last_error is not None for status in statuses.values())
        self._progress.update(Amount(segments, sizes), held)
        if all(_is_done(partition, statuses) for partition in self._plan.work):
            self._daemon.stop()

    def _outcome(self) -> Outcome:
        statuses = _by_partition(self._daemon.status.snapshot())
        outcomes = tuple(_outcome(partition, statuses) for partition in self._plan.partitions)
        is_incomplete = any(partition.left for partition in outcomes)
        return Outcome(outcomes, self._interrupted and is_incomplete, self._plan.unreadable)


def _by_partition(snapshot: StatusSnapshot) -> Mapping[TopicPartition, PartitionStatus]:
    return {status.topic_partition: status for status in snapshot.partitions}


def _next_offset(
    one: PartitionPlan, statuses: Mapping[TopicPartition, PartitionStatus]
) -> Offset | None:
    status = statuses.get(one.topic_partition)
    # A new archive has an end before anything is stored: the base offset of its first segment.
    return one.next_offset if status is None or status.next_offset is None else status.next_offset


def _is_done(one: PartitionPlan, statuses: Mapping[TopicPartition, PartitionStatus]) -> bool:
    status = statuses.get(one.topic_partition)
    if status is None:
        return False
    reached = status.next_offset is not None and status.next_offset >= one.target
    return reached or status.state is PartitionState.HALTED


def _outcome(
    one: PartitionPlan, statuses: Mapping[TopicPartition, PartitionStatus]
) -> PartitionOutcome:
    following = _next_offset(one, statuses) if one.has_work else one.next_offset
    stored = Amount(*one.done(following)) if one.has_work else Amount()
    status = statuses.get(one.topic_partition) if one.has_work else None
    left = len(one.due) - stored.segments
    why = one.refused if one.due else None
    if status is not None and (left or status.state is PartitionState.HALTED):
        why = status.last_error or status.waiting_for
    gaps = status.gap_records if status is not None else 0
    return PartitionOutcome(one, following, stored, gaps, why or one.problem)


def no_run(plan: BackfillPlan) -> Outcome:
    """Return the result of a plan without work."""
    outcomes = tuple(_outcome(partition, _NOTHING) for partition in plan.partitions)
    return Outcome(outcomes, unreadable=plan.unreadable)

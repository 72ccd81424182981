"""Does what a plan says, with the daemon, and tells what came of it."""

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
"""With nothing under way for so long, what is left is given up: it was tried four times, and a
broker has written its checkpoint meanwhile (every 5 s)."""
_LOOK_SECONDS: Final = 0.2
_HIGHEST: Final = Offset(2**63 - 1)
_NOTHING: Final[Mapping[TopicPartition, PartitionStatus]] = {}


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    """What came of one partition; `why` tells where something is left."""

    plan: PartitionPlan
    next_offset: Offset | None
    stored: Amount
    gap_records: int = 0
    why: str | None = None

    @property
    def left(self) -> int:
        """Due segments that do not lie below the watermark."""
        return len(self.plan.due) - self.stored.segments


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a backfill; `unreadable` has a line for each log dir that could not be read."""

    partitions: tuple[PartitionOutcome, ...]
    interrupted: bool = False
    unreadable: tuple[str, ...] = ()

    @property
    def findings(self) -> bool:
        """Whether anything was not stored."""
        if self.unreadable:
            return True
        return any(one.left or one.gap_records or one.why for one in self.partitions)


class AssumedCommitted:
    """A HighWatermarkSource by decree: all that lies in closed segments counts as committed."""

    def __init__(self, directories: Mapping[TopicPartition, str]) -> None:
        self._directories = directories

    def high_watermarks(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, HighWatermark]:
        """The highest there can be, in the epoch that the partition's directory tells."""
        return {
            tp: HighWatermark(_HIGHEST, latest_epoch(self._directories[tp]))
            for tp in partitions
            if tp in self._directories
        }

    def close(self) -> None:
        """Nothing to close."""


class Backfill:
    """One run; `stop` ends it early, and in good order."""

    def __init__(self, plan: BackfillPlan, daemon: Daemon, progress: Progress) -> None:
        self._plan = plan
        self._daemon = daemon
        self._progress = progress
        self._interrupted = False

    def stop(self) -> None:
        """End early: what is under way may finish; from any thread or a signal handler."""
        self._interrupted = True
        self._daemon.stop()

    def run(self) -> Outcome:
        """Store what is due; returns when that is done, or nothing more can be done.

        What a running broker rolls meanwhile is not waited for.

        Raises:
            ConfigurationError: it can never work as it is configured.
            DaemonDiedError: a thread died.
        """
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="daemon") as pool:
            running = pool.submit(self._daemon.run_until_settled, PATIENCE_SECONDS)
            while not wait([running], _LOOK_SECONDS).done:
                self._look()
            running.result()
        self._look()
        return self._outcome()

    def _look(self) -> None:
        """Tell how far it is; end when everything that was planned is done."""
        statuses = _by_partition(self._daemon.status.snapshot())
        done = [one.done(_next_offset(one, statuses)) for one in self._plan.work]
        segments, sizes = sum(count for count, _ in done), sum(size for _, size in done)
        held = sum(status.last_error is not None for status in statuses.values())
        self._progress.update(Amount(segments, sizes), held)
        if all(_is_done(one, statuses) for one in self._plan.work):
            self._daemon.stop()

    def _outcome(self) -> Outcome:
        statuses = _by_partition(self._daemon.status.snapshot())
        outcomes = tuple(_outcome(one, statuses) for one in self._plan.partitions)
        left = any(one.left for one in outcomes)
        return Outcome(outcomes, self._interrupted and left, self._plan.unreadable)


def _by_partition(snapshot: StatusSnapshot) -> Mapping[TopicPartition, PartitionStatus]:
    return {status.topic_partition: status for status in snapshot.partitions}


def _next_offset(
    one: PartitionPlan, statuses: Mapping[TopicPartition, PartitionStatus]
) -> Offset | None:
    status = statuses.get(one.topic_partition)
    # A new archive has a next offset before anything is stored: that of its first segment.
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
    """What comes of a plan that leaves nothing to do."""
    outcomes = tuple(_outcome(one, _NOTHING) for one in plan.partitions)
    return Outcome(outcomes, unreadable=plan.unreadable)

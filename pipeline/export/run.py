"""The loop of every export, and the steps that do not depend on what it writes to.

1. Read the state of the last commit (`remaining`).
2. Compare the exported leader epochs with the log: were exported records discarded (`discarded`)?
3. Find the ranges that are left to export (`left_after`).
4. Plan the next commit: about as many offsets or bytes as the settings allow (`plan_next`).
5. Write its records and its new next offsets in one commit, or nothing (`commit`).

`FilesRun` and `TableRun` are the two kinds. They differ in what a plan and a commit are. Files have
no commit of their own, so the plan is stored before the files, and the next offsets after them. A
table has commits, which contain the next offsets.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from time import time_ns
from typing import Final, Generic, TypeVar

from sidetier.archive.errors import ArchiveReplacedError
from sidetier.pipeline.errors import MissingRecordsError
from sidetier.pipeline.export.epoch_history import Truncated
from sidetier.pipeline.export.errors import (
    BehindError,
    LogTruncatedError,
    NotCommittedError,
    ReadingsDifferError,
)
from sidetier.pipeline.export.held_back import (
    TRANSACTION_TIMEOUT_MS,
    HeldBack,
    behind_of_one_topic,
    waiting_for_transactions,
)
from sidetier.pipeline.export.source import Source
from sidetier.pipeline.export.state import Exported, Offsets, Ranges
from sidetier.pipeline.export.tail.logs import require_same_topic
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.resolving import limited_ends
from sidetier.segments.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    SidetierError,
)
from sidetier.segments.offsets import OffsetRange, TopicPartition


@dataclass(frozen=True, slots=True)
class Terms:
    """Settings of a run.

    Attributes:
        most_offsets: approximate limit of one commit, in offsets; None for no limit.
        most_bytes: approximate limit of one commit, in archived bytes; None for no limit.
        reread: whether to export again from where the brokers have discarded exported records.
        transaction_timeout_ms: age in ms from which on an open transaction counts as hung.
        now_ms: the wall clock, in ms since 1970.
    """

    most_offsets: int | None = None
    most_bytes: int | None = None
    reread: bool = False
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    now_ms: Callable[[], int] = field(default=lambda: time_ns() // 1_000_000)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The offsets of one commit, and those that remain after it.

    Attributes:
        ranges: offsets whose records are written, for each partition with new records.
        rest: remaining offsets, for every partition.
    """

    ranges: Ranges
    rest: Ranges

    @property
    def reached(self) -> Ranges:
        """The written offsets of every partition; an empty range for a partition without new
        records.
        """
        nothing = {tp: OffsetRange(span.start, span.start) for tp, span in self.rest.items()}
        return nothing | dict(self.ranges)


def next_chunk(left: Ranges, most: int | None) -> Chunk | None:
    """Return about `most` of the remaining offsets (all if None); None if nothing is left.

    Each partition gets its share, as with `maxOffsetsPerTrigger` of Spark's Kafka source.
    """
    starts = {tp: span.start for tp, span in left.items()}
    ends = limited_ends(starts, {tp: span.end for tp, span in left.items()}, most)
    taken = {
        tp: OffsetRange(span.start, ends[tp]) for tp, span in left.items() if ends[tp] > span.start
    }
    return chunk_of(left, taken) if taken else None


def chunk_of(left: Ranges, taken: Ranges) -> Chunk:
    """Return the chunk that takes these parts of the remaining ranges."""
    rest = {
        tp: OffsetRange(taken[tp].end if tp in taken else span.start, span.end)
        for tp, span in left.items()
    }
    return Chunk(taken, rest)


@dataclass(frozen=True, slots=True)
class Remaining:
    """The state of an export between two commits, and the remaining ranges.

    Attributes:
        state: the state to continue from. Next offsets are lower than the stored ones where
            discarded records are exported again.
        ranges: what is left to export of each partition; a range may be empty.
        behind: partitions that are left out because their log ends below their next offset.
    """

    state: Exported
    ranges: Ranges
    behind: tuple[HeldBack, ...]


RemainingT = TypeVar("RemainingT", bound=Remaining)
PlanT = TypeVar("PlanT")


@dataclass(frozen=True, slots=True)
class ExportRun(ABC, Generic[RemainingT, PlanT]):
    """Exports what can be read now, commit after commit.

    Attributes:
        source: the records.
        terms: settings.
    """

    source: Source
    terms: Terms

    @property
    @abstractmethod
    def output(self) -> str:
        """Name of the output, for errors."""

    @abstractmethod
    def remaining(self) -> RemainingT:
        """Read the state, compare it with the log, and find the remaining ranges. Writes nothing.

        Raises:
            LogTruncatedError: exported records were discarded, and `terms.reread` is False.
            OtherExportError: the output belongs to an export with other settings.
            SidetierError: see `left_after`, and where the state is stored.
        """

    @abstractmethod
    def plan_next(self, remaining: RemainingT) -> PlanT | None:
        """Return what the next commit exports; None if nothing is left. Writes nothing."""

    @abstractmethod
    def commit(self, remaining: RemainingT, plan: PlanT) -> RemainingT | None:
        """Export a plan up to its commit.

        An error, or a kill at any moment, leaves the whole commit or nothing that readers see.

        Returns:
            What is left after the commit; None if the state must be read again.
        """

    def commit_all(self, stop: Callable[[], bool] = lambda: False) -> RemainingT | None:
        """Export until nothing is left; return what is held back then, or None if `stop` returned
        True.

        `stop` is called before each commit.
        """
        remaining: RemainingT | None = None
        while not stop():
            if remaining is None:
                remaining = self.remaining()
            plan = self.plan_next(remaining)
            if plan is None:
                return remaining
            remaining = self.commit(remaining, plan)
        return None

    def discarded(self, state: Exported, remedy: str) -> tuple[Truncated, ...]:
        """Return the exported ranges that the brokers have discarded since.

        Args:
            state: the state of the export.
            remedy: what a user can do about it, for the error.

        Raises:
            LogTruncatedError: there are some, and `terms.reread` is False.
            OtherTopicError: the topic was recreated, so nothing can be exported again.
        """
        gone = self.source.truncated(state.positions)
        if gone:
            # First, because a recreated topic looks truncated, too.
            self.require_same_topics(state, state.next_offsets)
            if not self.terms.reread:
                raise LogTruncatedError(gone, remedy)
        return gone

    def left_after(self, state: Exported) -> tuple[Ranges, tuple[HeldBack, ...]]:
        """Return the ranges that are left, and the partitions that are left out.

        Raises:
            BehindError: a partition's log ends below its next offset, and the topic may be another
                one.
            OtherTopicError: the topic was recreated.
            ArchiveError, StorageError: see `Source.available`.
        """
        errors: list[BehindError] = []
        left = self.source.available(state.next_offsets, state.tail.offsets, errors)
        behind = [error.tp for error in errors]
        self.require_same_topics(state, (*state.next_offsets, *left, *behind))
        topic_ids = self.source.topic_ids(behind)
        held_back = behind_of_one_topic(errors, state.next_offsets, state.tail.topic_ids, topic_ids)
        return left, tuple(held_back)

    def require_same_topics(self, state: Exported, tps: Iterable[TopicPartition]) -> None:
        """Raise OtherTopicError if a topic was recreated since the last commit."""
        require_same_topics(state.tail.topic_ids, self.source.topic_ids(tps), self.output)

    def next_chunk(self, left: Ranges) -> Chunk | None:
        """Return the offsets of the next commit, as `terms` limits them; None if nothing is
        left.
        """
        chunk = next_chunk(left, self.terms.most_offsets)
        if chunk is None or self.terms.most_bytes is None:
            return chunk
        return chunk_of(left, self.source.within(chunk.ranges, self.terms.most_bytes))

    def held_back(self, remaining: RemainingT, reached: Offsets) -> tuple[HeldBack, ...]:
        """Return the partitions that cannot be exported beyond `reached` now."""
        waiting = waiting_for_transactions(
            self.source.undecided(reached), self.terms.now_ms(), self.terms.transaction_timeout_ms
        )
        return (*remaining.behind, *waiting)


def require_same_topics(known: Mapping[str, str], present: Mapping[str, str], output: str) -> None:
    """Raise OtherTopicError if one of the known topic ids has changed."""
    for topic, topic_id in known.items():
        require_same_topic(topic, topic_id, present.get(topic), output)


MAX_FAILURES: Final = 10
_CHANGED_ARCHIVE: Final = (
    MissingRecordsError,
    NotCommittedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    ReadingsDifferError,
)
"""Errors that a reader gets if its plan names objects that have been moved or removed since."""


def run_at_interval(
    run: Callable[[], object],
    interval: float,
    stop: threading.Event,
    clock: Callable[[], float],
    can_pass: Callable[[SidetierError], bool],
) -> None:
    """Run now, and then every `interval` seconds. A longer run is followed by the next one at once.

    A failed run that `can_pass` accepts is repeated at the next interval, as in Hudi's sink
    connector.

    Raises:
        SidetierError: an error that `can_pass` does not accept, or the tenth failure in a row.
    """
    failures = 0
    while not stop.is_set():
        began = clock()
        try:
            run()
            failures = 0
        except SidetierError as error:
            failures += 1
            if failures >= MAX_FAILURES or not can_pass(error):
                raise
        stop.wait(max(0.0, began + interval - clock()))


def should_retry(
    error: SidetierError, planner: Planner, offsets_without_epoch: Callable[[], Offsets]
) -> bool:
    """Return whether a continuous export can succeed with another run after this error.

    Another run plans again, and compares what was exported with the archive at that time. So it can
    succeed if the archive has changed in between: its end was quarantined (a divergence), or all of
    it was moved away (`retire`). If exported records were discarded, the next run itself refuses to
    continue. If the archive has not changed, a missing segment stays missing.

    The planner forgets archives that were replaced since it read them first; otherwise it would
    refuse them forever. If a replaced archive may have caused the error, this makes one request for
    each archive that the planner has read.

    Args:
        error: the error that ended the run.
        planner: the planner of all runs.
        offsets_without_epoch: returns the next offsets, by partition, that have no known leader
            epoch.

    Returns:
        False if the archive was replaced below an offset of `offsets_without_epoch`: the next run
        could not know which records were replaced, and would skip the new ones.
    """
    is_replaced = isinstance(error, ArchiveReplacedError)
    if not is_replaced and not isinstance(error, _CHANGED_ARCHIVE):
        return error.retry
    try:
        # Before `renew`, which forgets the replaced archives: after an error here, the next call
        # must still see them.
        blind = offsets_without_epoch()
        replaced = planner.renew()
    except SidetierError as failure:
        # This cannot be decided now. If the next run fails the same way, it is decided then.
        return is_replaced or failure.retry or error.retry
    if any(first < blind.get(tp, 0) for tp, first in replaced.items()):
        return False
    return is_replaced or bool(replaced) or error.retry

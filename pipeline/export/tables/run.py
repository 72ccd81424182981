"""One run of an export to a table: all records that are readable now, in commits of a bounded size.

After a kill at each step, this is left:

1. The run reads the table's offsets: nothing is left.
2. The driver fixes the offsets at which the run ends: nothing is left.
3. Tasks write the rows: files that no commit names. The next run, or the format's own maintenance,
   removes them.
4. The table format commits: the whole commit, or nothing of it.
5. The run reads the table's offsets again: the commit is left. The next run starts behind it.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from time import time_ns
from typing import Final
from uuid import uuid4

from pyspark.sql import DataFrame

from sidetier.pipeline.export.epoch_history import Position, is_doubtful, shortened
from sidetier.pipeline.export.errors import BehindError, LogTruncatedError
from sidetier.pipeline.export.held_back import (
    TRANSACTION_TIMEOUT_MS,
    HeldBack,
    behind_of_one_topic,
    waiting_for_transactions,
)
from sidetier.pipeline.export.tables.chunks import (
    Chunk,
    Ranges,
    chunk_of,
    continued,
    next_chunk,
    offsets_after,
)
from sidetier.pipeline.export.tables.errors import (
    LostProgressError,
    NotCommittedError,
    StrayCommitError,
)
from sidetier.pipeline.export.tables.history import require_same, require_same_topics
from sidetier.pipeline.export.tables.progress import (
    NO_TAIL,
    WHOLE_STATE_EVERY,
    Offsets,
    Progress,
    Tail,
    following,
)
from sidetier.pipeline.export.tables.table import Source, Table
from sidetier.segments.errors import SidetierError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import TopicPartition

DEFAULT_TIMEOUT: Final = 300.0
"""Time limit of one commit, in seconds. Hudi's sink connector has the same default."""
_WAY_ON: Final = (
    "Roll the table back to a commit before them, and run again; or --on-truncation reread adds "
    "what is there now, beside the rows of what was thrown away; or export into another table"
)


@dataclass(frozen=True, slots=True)
class Terms:
    """Settings of a run.

    Attributes:
        isolation: isolation level with which records are read.
        most_offsets: approximate limit of one commit, in offsets; None for no limit.
        timeout: time limit for writing one commit, in seconds.
        allow_empty: whether to commit offsets without records. Otherwise the next run reads them
            again.
        anew: whether to start without the table's offsets if they are lost.
        reread: whether to export again from where the brokers have discarded exported records.
        most_bytes: approximate limit of one commit, in archived bytes; None for no limit.
        transaction_timeout_ms: age in ms from which on an open transaction counts as hung.
        whole_state_every: for a table of many partitions, at least one of this many commits has the
            whole state.
        now_ms: the wall clock, in ms since 1970.
    """

    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    most_offsets: int | None = None
    timeout: float = DEFAULT_TIMEOUT
    allow_empty: bool = True
    anew: bool = False
    reread: bool = False
    most_bytes: int | None = None
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    whole_state_every: int = WHOLE_STATE_EVERY
    now_ms: Callable[[], int] = field(default=lambda: time_ns() // 1_000_000)


@dataclass(frozen=True, slots=True)
class Committed:
    """Result of a run.

    Attributes:
        commits: names of its commits, oldest first.
        offsets: next offsets of the table now.
        spanned: number of offsets that the commits span, including aborted records and markers.
        skipped: number of offsets in chunks without a record, for which no commit was made.
        tail: which records came from the brokers.
        held_back: partitions that the run could not advance further.
        last: state of the table's last commit; None if there is none.
    """

    commits: tuple[str, ...]
    offsets: Offsets
    spanned: int
    skipped: int
    tail: Tail = NO_TAIL
    held_back: tuple[HeldBack, ...] = ()
    last: Progress | None = None


Report = Callable[[Progress, Chunk], None]
"""Called after each commit."""


def _silent(_progress: Progress, _chunk: Chunk) -> None:
    """Ignore the commit."""


def progress_of(table: Table, *, anew: bool) -> Progress | None:
    """Return the state of a table; with `anew`, None if it is lost.

    Raises:
        LostProgressError: the state is lost, and `anew` is False.
    """
    try:
        return table.progress()
    except LostProgressError:
        if not anew:
            raise
        return None


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run starts.

    Attributes:
        held: next offsets of the table.
        tail: further state of the records below the starting offsets.
        left: ranges to export, for each partition.
        first: starting offsets: as `held`, or lower if discarded records are exported again.
        behind: partitions that are left out because their log ends below the starting offset.
        last: state of the table's last commit; None if there is none.
    """

    held: Offsets
    tail: Tail
    left: Ranges
    first: Offsets
    behind: tuple[HeldBack, ...] = ()
    last: Progress | None = None


class TableRun:
    """Exports the readable records to a table. One run at a time."""

    def __init__(
        self,
        table: Table,
        source: Source,
        terms: Terms,
        report: Report = _silent,
        new_id: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        self._table = table
        self._source = source
        self._terms = terms
        self._report = report
        self._new_id = new_id

    def run(self) -> Committed:
        """Export from the table's last commit up to the present end of the readable records.

        Raises:
            NotCommittedError: a commit has failed. The commits before it remain.
            OtherExportError: the table belongs to another cluster or isolation level.
            BehindError: a partition's log ends below the table's offset, and the topic may be
                another one.
            MissingRecordsError: the next records are not stored.
            LogTruncatedError: see `standing`.
            SidetierError: see `Table` and `Planner`.
        """
        self._table.recover()
        standing = self.standing()
        left, known_below = standing.left, standing.first
        done = Committed((), standing.held, 0, 0, standing.tail, last=standing.last)
        while (chunk := self._next(left)) is not None:
            later = self._source.tail(chunk.reached)
            if self._has_forked(known_below, done.tail, later, chunk.ranges):
                standing = self.standing()
                left, known_below = standing.left, standing.first
                done = replace(done, offsets=standing.held, tail=standing.tail, last=standing.last)
                continue
            before = len(done.commits)
            done = self._take(chunk, done, known_below, later)
            if len(done.commits) > before:
                known_below = done.offsets
            left = chunk.rest
        reached = {**done.offsets, **{tp: span.start for tp, span in left.items()}}
        return replace(done, held_back=self.held_back(standing, reached))

    def standing(self) -> Standing:
        """Return the table's state, and what is left to export. Does not change anything.

        Raises:
            LogTruncatedError: the brokers have discarded records of the table, and `reread` is
                False.
            SidetierError: see `run`.
        """
        progress = progress_of(self._table, anew=self._terms.anew)
        held, tail = ({}, NO_TAIL) if progress is None else (progress.offsets, progress.tail)
        if progress is not None:
            cluster, isolation = self._source.cluster, self._terms.isolation
            require_same(progress, cluster, isolation, self._table.name)
        first, tail = self._of_one_history(held, tail)
        left, behind = self._left(first, tail)
        return Standing(held, tail, left, first, behind, progress)

    def _left(self, first: Offsets, tail: Tail) -> tuple[Ranges, tuple[HeldBack, ...]]:
        """Return the ranges that are left, and the partitions that are left out."""
        errors: list[BehindError] = []
        stored = self._source.stored(first, tail.offsets, errors)
        self._require_same_topics(tail, (*stored, *(error.tp for error in errors)))
        left = continued(stored, first, tail.offsets, errors)
        topic_ids = self._source.topic_ids([error.tp for error in errors])
        return left, tuple(behind_of_one_topic(errors, first, tail.topic_ids, topic_ids))

    def held_back(self, standing: Standing, reached: Offsets) -> tuple[HeldBack, ...]:
        """Return the partitions that a run from `standing` could not advance further than
        `reached`.
        """
        starts = {tp: span.start for tp, span in standing.left.items()}
        tails = self._source.undecided({**starts, **reached})
        now, timeout = self._terms.now_ms(), self._terms.transaction_timeout_ms
        return (*standing.behind, *waiting_for_transactions(tails, now, timeout))

    def _of_one_history(self, held: Offsets, tail: Tail) -> tuple[Offsets, Tail]:
        """Return the offsets to start from, lower where records below them were discarded."""
        known = _positions(held, tail)
        gone = self._source.truncated(known)
        if not gone:
            return held, tail
        self._require_same_topics(tail, held)
        if not self._terms.reread:
            raise LogTruncatedError(gone, _WAY_ON)
        forks = {discarded.tp: discarded.range.start for discarded in gone}
        # Keep the epochs below the divergence: another one may follow before the next commit.
        kept = {tp: shortened(known[tp], fork) for tp, fork in forks.items()}
        epoch_histories = {
            tp: epoch_history for tp, epoch_history in kept.items() if epoch_history.entries
        }
        left = tail.without(forks)
        return {**held, **forks}, replace(
            left, epoch_histories={**left.epoch_histories, **epoch_histories}
        )

    def _require_same_topics(self, tail: Tail, tps: Iterable[TopicPartition]) -> None:
        require_same_topics(tail, self._source.topic_ids(tps), self._table.name)

    def _next(self, left: Ranges) -> Chunk | None:
        chunk = next_chunk(left, self._terms.most_offsets)
        if chunk is None or self._terms.most_bytes is None:
            return chunk
        return chunk_of(left, self._source.within(chunk.ranges, self._terms.most_bytes))

    def _has_forked(
        self, known_below: Offsets, known_tail: Tail, later: Tail, ranges: Ranges
    ) -> bool:
        """Return whether the archive now shows that records of the table were discarded.

        A run can be long, and epochs of later records must not replace unchecked epochs of earlier
        ones.
        """
        known = _positions(known_below, known_tail)
        doubtful = {
            tp: known[tp]
            for tp, epoch_history in later.epoch_histories.items()
            if tp in known and is_doubtful(known[tp], Position(ranges[tp].end, epoch_history))
        }
        return bool(doubtful) and bool(self._source.truncated(doubtful))

    def _take(self, chunk: Chunk, done: Committed, known_below: Offsets, later: Tail) -> Committed:
        progress = Progress(
            self._source.cluster,
            self._terms.isolation,
            offsets_after(done.offsets, chunk),
            since=done.offsets,
            commit=self._new_id(),
            tail=done.tail.and_then(later, known_below, chunk.ranges),
        )
        spanned = sum(span.end - span.start for span in chunk.ranges.values())
        frame = self._source.frame(chunk.ranges)
        if not self._terms.allow_empty and frame.isEmpty():
            return replace(done, skipped=done.skipped + spanned)
        progress = following(progress, done.last, self._terms.whole_state_every)
        self._commit(progress, frame)
        self._report(progress, chunk)
        commits = (*done.commits, progress.commit)
        spanned += done.spanned
        return Committed(
            commits, progress.offsets, spanned, done.skipped, progress.tail, last=progress
        )

    def _commit(self, progress: Progress, frame: DataFrame) -> None:
        """Write a commit, and check in the table whether it is there.

        An error may have been raised after the commit, so only the table shows whether it failed.
        """
        try:
            self._table.write(frame, progress, self._terms.timeout)
        except NotCommittedError:
            self._table.recover()
            if self._last_commit() != progress.commit:
                raise
            return
        last = self._last_commit()
        if last != progress.commit:
            raise StrayCommitError(
                f"{self._table.name}: after the commit {progress.commit} the table's last one is "
                f"{last or 'none'}: another writer is at work on it"
            )

    def _last_commit(self) -> str:
        progress = progress_of(self._table, anew=self._terms.anew)
        return progress.commit if progress else ""


def _positions(held: Offsets, tail: Tail) -> dict[TopicPartition, Position]:
    return {
        tp: Position(held[tp], epoch_history)
        for tp, epoch_history in tail.epoch_histories.items()
        if tp in held
    }


MOST_FAILURES: Final = 10


def run_at_interval(
    run: Callable[[], Committed],
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
            if failures >= MOST_FAILURES or not can_pass(error):
                raise
        stop.wait(max(0.0, began + interval - clock()))

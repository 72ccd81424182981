"""One run: everything that is stored now, in commits of a bounded size.

What a kill leaves behind, step by step:

1. the table's offsets are read: nothing;
2. the offsets up to which this run goes are fixed, on the driver: nothing;
3. the rows are written: files that no commit names, which the next run, or the format's own
   maintenance, removes;
4. the commit: all of it, or nothing of it;
5. the table's offsets are read again: the commit. The next run begins behind it.
"""

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
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import TopicPartition

DEFAULT_TIMEOUT: Final = 300.0
"""Seconds; the default of Hudi's sink for the same."""
_WAY_ON: Final = (
    "Roll the table back to a commit before them, and run again; or --on-truncation reread adds "
    "what is there now, beside the rows of what was thrown away; or export into another table"
)


@dataclass(frozen=True, slots=True)
class Terms:
    """How a run goes about it.

    Attributes:
        isolation: which records are taken.
        most_offsets: how many offsets one commit spans at most, about; None for all.
        most_bytes: how many archived bytes, about; None for all.
        timeout: seconds that writing one commit may take.
        allow_empty: whether offsets without a record are committed too; otherwise they are read
            again by the next run.
        anew: begin without the table's offsets where they are lost.
        reread: go on from where brokers have thrown away what was exported.
        transaction_timeout_ms: from which age on an open transaction counts as hung.
        whole_state_every: one of so many commits has the whole state of a table of many partitions.
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
    """What a run has done.

    Attributes:
        commits: how many, oldest first.
        offsets: what the table holds now.
        spanned: how many offsets they span; those of aborted records and markers count too.
        skipped: the same of chunks without a record, for which no commit was made.
        tail: what of that came from the brokers.
        held_back: partitions that the run could not take farther.
        last: what the table's last commit says; None where there is none.
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
    """Tells nobody."""


def progress_of(table: Table, *, anew: bool) -> Progress | None:
    """What a table says; with `anew`, nothing where it has lost it.

    Raises:
        LostProgressError: it has lost it, and nobody has said `anew`.
    """
    try:
        return table.progress()
    except LostProgressError:
        if not anew:
            raise
        return None


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run begins.

    Attributes:
        held: what the table says.
        tail: what is known besides of what it holds.
        left: what there is to be exported, of each partition.
        first: where the run begins: as `held`, but lower where brokers have thrown away what the
            table has, and it is exported anew.
        behind: partitions that are left out, since their log ends below that.
        last: what the table's last commit says; None where there is none.
    """

    held: Offsets
    tail: Tail
    left: Ranges
    first: Offsets
    behind: tuple[HeldBack, ...] = ()
    last: Progress | None = None


class TableRun:
    """Exports what is stored. One run at a time."""

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
        """Go on from the table's last commit up to what is stored now.

        Raises:
            NotCommittedError: a commit has failed; those before it stand.
            OtherExportError: the table is of another cluster, or of another isolation level.
            BehindError: a partition's log ends below what the table has, and may be another
                topic's.
            MissingRecordsError: records that come next are not stored.
            LogTruncatedError: see `standing`.
            As `Table` and `Planner` say.
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
        """What the table has, and what is left for it; nothing is changed.

        Raises:
            LogTruncatedError: records of the table were thrown away since by the brokers, and
                nobody has said `reread`.
            As `run`.
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
        """What is left of each partition, and the partitions that are left out."""
        errors: list[BehindError] = []
        stored = self._source.stored(first, tail.offsets, errors)
        self._require_same_topics(tail, (*stored, *(one.tp for one in errors)))
        left = continued(stored, first, tail.offsets, errors)
        found = self._source.topic_ids([one.tp for one in errors])
        return left, tuple(behind_of_one_topic(errors, first, tail.topic_ids, found))

    def held_back(self, standing: Standing, reached: Offsets) -> tuple[HeldBack, ...]:
        """The partitions that a run which began at `standing` could not take farther than
        `reached`.
        """
        starts = {tp: span.start for tp, span in standing.left.items()}
        tails = self._source.undecided({**starts, **reached})
        now, timeout = self._terms.now_ms(), self._terms.transaction_timeout_ms
        return (*standing.behind, *waiting_for_transactions(tails, now, timeout))

    def _of_one_history(self, held: Offsets, tail: Tail) -> tuple[Offsets, Tail]:
        """From where the table is gone on with: lower, where that was thrown away."""
        known = _positions(held, tail)
        gone = self._source.truncated(known)
        if not gone:
            return held, tail
        self._require_same_topics(tail, held)
        if not self._terms.reread:
            raise LogTruncatedError(gone, _WAY_ON)
        forks = {one.tp: one.range.start for one in gone}
        # Another fork may come before the next commit of a partition: what is below stays known.
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
        """Whether the archive shows by now that what the table holds was thrown away: a run can be
        long, and what is known of the later offsets must not stand for the earlier ones.
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
        """The table decides: an error may have come after the commit."""
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
    return {tp: Position(held[tp], one) for tp, one in tail.epoch_histories.items() if tp in held}

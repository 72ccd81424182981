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
from dataclasses import dataclass, replace
from typing import Final
from uuid import uuid4

from pyspark.sql import DataFrame

from sidetier.pipeline.export.errors import BehindError, LogTruncatedError
from sidetier.pipeline.export.lineage import Position, is_doubtful
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
from sidetier.pipeline.export.tables.progress import NO_TAIL, Offsets, Progress, Tail
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
    """

    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    most_offsets: int | None = None
    timeout: float = DEFAULT_TIMEOUT
    allow_empty: bool = True
    anew: bool = False
    reread: bool = False
    most_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """What a run has done.

    Attributes:
        commits: how many, oldest first.
        offsets: what the table holds now.
        spanned: how many offsets they span; those of aborted records and markers count too.
        skipped: the same of chunks without a record, for which no commit was made.
        tail: what of that came from the brokers.
    """

    commits: tuple[str, ...]
    offsets: Offsets
    spanned: int
    skipped: int
    tail: Tail = NO_TAIL


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
    """

    held: Offsets
    tail: Tail
    left: Ranges


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
            BehindError, MissingRecordsError: records that come next are not stored.
            SetAsideError: a later run can tell what has become of the table's records.
            LogTruncatedError: see `standing`.
            As `Table` and `Planner` say.
        """
        self._table.recover()
        standing = self.standing()
        left = standing.left
        done = Committed((), standing.held, 0, 0, standing.tail)
        while (chunk := self._next(left)) is not None:
            later = self._source.tail(chunk.reached)
            if self._has_forked(done, later, chunk.ranges):
                standing = self.standing()
                left = standing.left
                done = replace(done, offsets=standing.held, tail=standing.tail)
                continue
            done = self._take(chunk, done, later)
            left = chunk.rest
        return done

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
        return Standing(held, tail, self._left(first, tail))

    def _left(self, first: Offsets, tail: Tail) -> Ranges:
        try:
            stored = self._source.stored(first, tail.offsets)
            self._require_same_topics(tail, stored)
            return continued(stored, first, tail.offsets)
        except BehindError as error:
            self._require_same_topics(tail, first)
            topic, found = error.tp.topic, self._source.topic_ids([error.tp])
            raise error.of_topic(tail.topic_ids.get(topic), found.get(topic)) from None

    def _of_one_history(self, held: Offsets, tail: Tail) -> tuple[Offsets, Tail]:
        """From where the table is gone on with: lower, where that was thrown away."""
        known = _positions(held, tail)
        gone = self._source.truncated(known)
        if not gone:
            return held, tail
        self._require_same_topics(tail, held)
        if not self._terms.reread:
            raise LogTruncatedError(gone, _WAY_ON)
        forks = {one.tp: one.range.first for one in gone}
        return {**held, **forks}, tail.without(forks)

    def _require_same_topics(self, tail: Tail, tps: Iterable[TopicPartition]) -> None:
        require_same_topics(tail, self._source.topic_ids(tps), self._table.name)

    def _next(self, left: Ranges) -> Chunk | None:
        chunk = next_chunk(left, self._terms.most_offsets)
        if chunk is None or self._terms.most_bytes is None:
            return chunk
        return chunk_of(left, self._source.within(chunk.ranges, self._terms.most_bytes))

    def _has_forked(self, done: Committed, later: Tail, ranges: Ranges) -> bool:
        """Whether the archive shows by now that what the table holds was thrown away: a run can be
        long, and what is known of the later offsets must not stand for the earlier ones.
        """
        known = _positions(done.offsets, done.tail)
        doubtful = {
            tp: known[tp]
            for tp, lineage in later.lineages.items()
            if tp in known and is_doubtful(known[tp], Position(ranges[tp].until, lineage))
        }
        return bool(doubtful) and bool(self._source.truncated(doubtful))

    def _take(self, chunk: Chunk, done: Committed, later: Tail) -> Committed:
        progress = Progress(
            self._source.cluster,
            self._terms.isolation,
            offsets_after(done.offsets, chunk),
            since=done.offsets,
            commit=self._new_id(),
            tail=done.tail.and_then(later, done.offsets, chunk.ranges),
        )
        spanned = sum(span.until - span.first for span in chunk.ranges.values())
        frame = self._source.frame(chunk.ranges)
        if not self._terms.allow_empty and frame.isEmpty():
            return replace(done, skipped=done.skipped + spanned)
        self._commit(progress, frame)
        self._report(progress, chunk)
        commits = (*done.commits, progress.commit)
        spanned += done.spanned
        return Committed(commits, progress.offsets, spanned, done.skipped, progress.tail)

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
    return {tp: Position(held[tp], one) for tp, one in tail.lineages.items() if tp in held}

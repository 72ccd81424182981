"""One run: everything that is stored now, in commits of a bounded size.

What a kill leaves behind, step by step:

1. the table's offsets are read: nothing;
2. the offsets up to which this run goes are fixed, on the driver: nothing;
3. the rows are written: files that no commit names, which the next run, or the format's own
   maintenance, removes;
4. the commit: all of it, or nothing of it;
5. the table's offsets are read again: the commit. The next run begins behind it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final
from uuid import uuid4

from pyspark.sql import DataFrame

from sidetier.pipeline.export.tables.chunks import (
    Chunk,
    Ranges,
    continued,
    next_chunk,
    offsets_after,
)
from sidetier.pipeline.export.tables.errors import (
    LostProgressError,
    NotCommittedError,
    StrayCommitError,
)
from sidetier.pipeline.export.tables.history import require_same
from sidetier.pipeline.export.tables.progress import Offsets, Progress
from sidetier.pipeline.export.tables.table import Source, Table
from sidetier.segments.isolation import IsolationLevel

DEFAULT_TIMEOUT: Final = 300.0
"""Seconds; the default of Hudi's sink for the same."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How a run goes about it.

    Attributes:
        isolation: which records are taken.
        most_offsets: how many offsets one commit spans at most, about; None for all.
        timeout: seconds that writing one commit may take.
        allow_empty: whether offsets without a record are committed too; otherwise they are read
            again by the next run.
        anew: begin without the table's offsets where they are lost.
    """

    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    most_offsets: int | None = None
    timeout: float = DEFAULT_TIMEOUT
    allow_empty: bool = True
    anew: bool = False


@dataclass(frozen=True, slots=True)
class Committed:
    """What a run has done.

    Attributes:
        commits: how many, oldest first.
        offsets: what the table holds now.
        spanned: how many offsets they span; those of aborted records and markers count too.
        skipped: the same of chunks without a record, for which no commit was made.
    """

    commits: tuple[str, ...]
    offsets: Offsets
    spanned: int
    skipped: int


Report = Callable[[Progress, Chunk], None]
"""Called after each commit."""


def _silent(_progress: Progress, _chunk: Chunk) -> None:
    """Tells nobody."""


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
            RecordsGoneError, MissingRecordsError: records that come next are not stored.
            As `Table` and `Planner` say.
        """
        self._table.recover()
        held = self._held()
        left: Ranges = continued(self._source.stored(held), held)
        done = Committed((), held, 0, 0)
        while (chunk := next_chunk(left, self._terms.most_offsets)) is not None:
            done = self._take(chunk, done)
            left = chunk.rest
        return done

    def _held(self) -> Offsets:
        progress = self._progress()
        if progress is None:
            return {}
        require_same(progress, self._source.cluster, self._terms.isolation, self._table.name)
        return progress.offsets

    def _progress(self) -> Progress | None:
        try:
            return self._table.progress()
        except LostProgressError:
            if not self._terms.anew:
                raise
            return None

    def _take(self, chunk: Chunk, done: Committed) -> Committed:
        progress = Progress(
            self._source.cluster,
            self._terms.isolation,
            offsets_after(done.offsets, chunk),
            since=done.offsets,
            commit=self._new_id(),
        )
        spanned = sum(span.until - span.first for span in chunk.ranges.values())
        frame = self._source.frame(chunk.ranges)
        if not self._terms.allow_empty and frame.isEmpty():
            return replace(done, skipped=done.skipped + spanned)
        self._commit(progress, frame)
        self._report(progress, chunk)
        commits = (*done.commits, progress.commit)
        return Committed(commits, progress.offsets, done.spanned + spanned, done.skipped)

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
        progress = self._progress()
        return progress.commit if progress else ""

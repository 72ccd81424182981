"""The export to a table of any format: commits of a bounded size, each with its next offsets.

After a kill at each step, this is left:

1. The run reads the table's offsets: nothing is left.
2. The driver fixes the offsets at which the run ends: nothing is left.
3. Tasks write the rows: files that no commit names. The next run, or the format's own maintenance,
   removes them.
4. The table format commits: the whole commit, or nothing of it.
5. The run reads the table's offsets again: the commit is left. The next run starts behind it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol
from uuid import uuid4

from sidetier.pipeline.export.epoch_history import Position, Truncated, is_doubtful, shortened
from sidetier.pipeline.export.errors import (
    LostProgressError,
    NotCommittedError,
    StrayCommitError,
)
from sidetier.pipeline.export.held_back import HeldBack
from sidetier.pipeline.export.run import Chunk, ExportRun, Remaining, Terms
from sidetier.pipeline.export.sinks.tables.commit_metadata import (
    WHOLE_STATE_EVERY,
    Progress,
    following,
    require_same,
)
from sidetier.pipeline.export.state import NO_TAIL, Exported, Offsets, Ranges, Tail
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sidetier.pipeline.export.sinks.tables.frames import Frames, Rows
    from sidetier.pipeline.export.sinks.tables.row_checks import RowCheck

DEFAULT_TIMEOUT: Final = 300.0
"""Time limit of one commit, in seconds. Hudi's sink connector has the same default."""
_REMEDY: Final = (
    "Roll the table back to a commit before them, and run again; or --on-truncation reread adds "
    "the present records, beside the rows of discarded records; or export into another table"
)


class Table(Protocol):
    """A table whose commits store a `Progress`."""

    @property
    def name(self) -> str:
        """The table's name, for errors."""
        ...

    def row_checks(self) -> "tuple[RowCheck, ...]":
        """Return how to find rows that the table refuses."""
        ...

    def recover(self) -> None:
        """Undo what dead writers have left. Called only while no writer is at work."""
        ...

    def progress(self) -> Progress | None:
        """Return the state of the last visible commit of an export; None if there is none yet.

        Raises:
            LostProgressError: such a commit exists, or may have existed, and is not found.
            BrokenProgressError: the last commits do not follow each other.
            NewerStateError, MalformedObjectError: see `from_properties`.
        """
        ...

    def write(
        self, frame: "DataFrame", progress: Progress, seconds: float, rows: Callable[[], int]
    ) -> None:
        """Write the rows and `progress` in one commit, or nothing.

        A kill at any moment leaves the table as before, or with the whole commit. A frame without
        rows is committed too.

        Args:
            frame: the rows.
            progress: the state after the commit.
            seconds: time limit.
            rows: returns the number of rows that the tasks of the frame have returned.

        Raises:
            RecordCountError: the commit has another number of rows. Readers do not see it if the
                format can prevent that.
            OtherWriterError: the table's offsets are not `progress.since`. Nothing is written.
            CommitTimedOutError: the write took longer than `seconds`.
            NotCommittedError: Spark or the table has refused the write.
        """
        ...


@dataclass(frozen=True, slots=True)
class TableTerms(Terms):
    """Settings of a run that writes to a table.

    Attributes:
        isolation: isolation level with which records are read.
        timeout: time limit for writing one commit, in seconds.
        allow_empty: whether to commit offsets without records. Otherwise the next run reads them
            again.
        commits_start: whether a first run without records commits the offsets at which it starts.
            Without them, an export that starts at the latest offset would skip the records that are
            archived until the next run.
        anew: whether to start without the table's offsets if they are lost.
        whole_state_every: for a table of many partitions, at least one of this many commits has the
            whole state.
    """

    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    timeout: float = DEFAULT_TIMEOUT
    allow_empty: bool = True
    commits_start: bool = False
    anew: bool = False
    whole_state_every: int = WHOLE_STATE_EVERY


@dataclass(frozen=True, slots=True)
class TableRemaining(Remaining):
    """What is left to export to a table.

    `state` has the next offsets whose records are checked against the log. It stays as it is while
    chunks without records are skipped, because they are not part of any commit yet.

    Attributes:
        held: next offsets of the table's last commit.
        last: state of that commit; None if there is none.
        commits: names of the commits of this run, oldest first.
        spanned: number of offsets that these commits span.
        skipped: number of offsets in chunks without a record, for which no commit was made.
    """

    held: Offsets = field(default_factory=dict)
    last: Progress | None = None
    commits: tuple[str, ...] = ()
    spanned: int = 0
    skipped: int = 0


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


def offsets_after(held: Offsets, chunk: Chunk) -> dict[TopicPartition, Offset]:
    """Return the table's next offsets, of every partition, after the chunk is committed.

    They include partitions without new records, also if they are new to the table, and partitions
    of the table that are not exported now.
    """
    return dict(held) | {tp: span.start for tp, span in chunk.rest.items()}


@dataclass(frozen=True, slots=True)
class TableRun(ExportRun[TableRemaining, Chunk]):
    """Exports the readable records to a table. One run at a time.

    Attributes:
        table: the table.
        frames: returns the records of a plan as rows.
        report: called after each commit.
        new_id: returns the name of a new commit.
    """

    terms: TableTerms
    table: Table
    frames: "Frames"
    report: Callable[[Progress, Chunk], None] = lambda _progress, _chunk: None
    new_id: Callable[[], str] = lambda: uuid4().hex

    @property
    def output(self) -> str:
        """The name of the table."""
        return self.table.name

    def run(self) -> Committed:
        """Export from the table's last commit up to the present end of the readable records.

        Raises:
            NotCommittedError: a commit has failed. The commits before it remain.
            MissingRecordsError: the next records are not stored.
            SidetierError: see `remaining`, `Table` and `Planner`.
        """
        self.table.recover()
        remaining = self.commit_all()
        if remaining is None:
            raise RuntimeError("nothing stops this run")
        reached = {**remaining.held, **{tp: span.start for tp, span in remaining.ranges.items()}}
        return Committed(
            remaining.commits,
            remaining.held,
            remaining.spanned,
            remaining.skipped,
            remaining.state.tail,
            self.held_back(remaining, reached),
            remaining.last,
        )

    def remaining(self) -> TableRemaining:
        """With `terms.reread`, discarded ranges are part of what remains."""
        progress = progress_of(self.table, anew=self.terms.anew)
        state = Exported() if progress is None else progress.exported
        if progress is not None:
            require_same(progress, self.source.cluster, self.terms.isolation, self.output)
        gone = self.discarded(state, _REMEDY)
        first = _lowered(state, gone) if gone else state
        left, behind = self.left_after(first)
        return TableRemaining(first, left, behind, state.next_offsets, progress)

    def plan_next(self, remaining: TableRemaining) -> Chunk | None:
        """A chunk without ranges commits where the export starts."""
        chunk = self.next_chunk(remaining.ranges)
        is_first = self.terms.commits_start and remaining.last is None and bool(remaining.ranges)
        return Chunk({}, remaining.ranges) if chunk is None and is_first else chunk

    def commit(self, remaining: TableRemaining, plan: Chunk) -> TableRemaining:
        """A chunk without records may be skipped without a commit."""
        later = self.source.tail(plan.reached)
        if self._has_diverged(remaining.state, later, plan.ranges):
            # The state is read again, and the discarded records are refused or exported again.
            return replace(
                self.remaining(),
                commits=remaining.commits,
                spanned=remaining.spanned,
                skipped=remaining.skipped,
            )
        state = remaining.state
        progress = Progress(
            self.source.cluster,
            self.terms.isolation,
            offsets_after(remaining.held, plan),
            since=remaining.held,
            commit=self.new_id(),
            tail=state.tail.and_then(later, state.next_offsets, plan.ranges),
        )
        spanned = sum(span.end - span.start for span in plan.ranges.values())
        # The commit's state was fixed above: if the log grows now, this commit does not change.
        rows = self.frames(self.source.plan(plan.ranges))
        if plan.ranges and not self.terms.allow_empty and rows.frame.isEmpty():
            return replace(remaining, ranges=plan.rest, skipped=remaining.skipped + spanned)
        progress = following(progress, remaining.last, self.terms.whole_state_every)
        self._write(progress, rows)
        self.report(progress, plan)
        return replace(
            remaining,
            state=progress.exported,
            ranges=plan.rest,
            held=progress.offsets,
            last=progress,
            commits=(*remaining.commits, progress.commit),
            spanned=remaining.spanned + spanned,
        )

    def _has_diverged(self, state: Exported, later: Tail, ranges: Ranges) -> bool:
        """Return whether the archive now shows that records of the table were discarded.

        A run can be long, and epochs of later records must not replace unchecked epochs of earlier
        ones.
        """
        known = state.positions
        doubtful = {
            tp: known[tp]
            for tp, epoch_history in later.epoch_histories.items()
            if tp in known and is_doubtful(known[tp], Position(ranges[tp].end, epoch_history))
        }
        return bool(doubtful) and bool(self.source.truncated(doubtful))

    def _write(self, progress: Progress, rows: "Rows") -> None:
        """Write a commit, and check in the table whether it is there.

        An error may have been raised after the commit, so only the table shows whether it failed.
        """
        try:
            self.table.write(rows.frame, progress, self.terms.timeout, rows.count)
        except NotCommittedError:
            # The commit may exist although the write has failed, for example in later cleaning.
            self.table.recover()
            if self._last_commit() != progress.commit:
                raise
            return
        last = self._last_commit()
        if last != progress.commit:
            raise StrayCommitError(
                f"{self.output}: after the commit {progress.commit} the table's last one is "
                f"{last or 'none'}: another writer is at work on it"
            )

    def _last_commit(self) -> str:
        progress = progress_of(self.table, anew=self.terms.anew)
        return progress.commit if progress else ""


def _lowered(state: Exported, gone: tuple[Truncated, ...]) -> Exported:
    """Return the state from which discarded records are exported again."""
    known = state.positions
    divergence_offsets = {discarded.tp: discarded.range.start for discarded in gone}
    # Keep the epochs below the divergence: another one may follow before the next commit.
    kept = {
        tp: shortened(known[tp], divergence_offset)
        for tp, divergence_offset in divergence_offsets.items()
    }
    epoch_histories = {
        tp: epoch_history for tp, epoch_history in kept.items() if epoch_history.entries
    }
    tail = state.tail.without(divergence_offsets)
    return Exported(
        {**state.next_offsets, **divergence_offsets},
        replace(tail, epoch_histories={**tail.epoch_histories, **epoch_histories}),
    )

"""One export of one topic: from its state to a plan, from the plan to files, from files to state.

The steps of a run, each atomic, and what a kill right behind it leaves:

1. The plan is written into the manifest (`pending`): the fixed ranges, and all that decides names
   and contents. Killed here: no file yet; the next run carries the same plan out.
2. Files are put, each whole. Killed here: some of the plan's files, which no manifest names; the
   next run makes the same ones, and finds that they are there.
3. Where an earlier plan was given up, its files are looked for and removed. Killed here: some of
   them are left; the next run looks again.
4. The manifest names the files and the next offsets. Killed here: a finished run.

Two jobs at once carry out the same plan, so that neither can spoil the other's files; the one whose
fourth step comes second is refused.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from time import time_ns
from typing import TypeVar

from sidetier.pipeline.export.errors import BehindError, OtherWriterError
from sidetier.pipeline.export.files.options import FilesOptions
from sidetier.pipeline.export.files.ports import Done, Engine, Source, Spans, Task, ranges_of
from sidetier.pipeline.export.files.review import Review
from sidetier.pipeline.export.files.sweeping import Sweep
from sidetier.pipeline.export.held_back import (
    TRANSACTION_TIMEOUT_MS,
    HeldBack,
    behind_of_one_topic,
    waiting_for_transactions,
)
from sidetier.pipeline.export.state.changes import (
    Tail,
    begun,
    check_same_export,
    check_settled,
    committed,
    waits_for_more,
    with_whole_files,
    withdrawn,
    without,
)
from sidetier.pipeline.export.state.manifest import (
    NO_SCHEMAS,
    FileEntry,
    Manifest,
    MissingEntry,
    Run,
    SchemaIds,
    Span,
)
from sidetier.pipeline.export.state.manifest_file import Held, ManifestFile
from sidetier.pipeline.export.tail.logs import require_same_topic
from sidetier.pipeline.planning.split import Plan
from sidetier.pipeline.planning.trigger import limited_ends
from sidetier.segments.errors import SidetierError
from sidetier.segments.offsets import Offset, TopicPartition

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class RunResult:
    """What one run did.

    Attributes:
        manifest: as it stands now.
        run: what was carried out; None where nothing is new.
        resumed: it was an earlier run that had not ended.
        swept: how many files of runs that were given up were removed.
        held_back: partitions that are left out; told where nothing is new, as the last thing.
    """

    manifest: Manifest
    run: Run | None = None
    done: tuple[Done, ...] = ()
    resumed: bool = False
    swept: int = 0
    held_back: tuple[HeldBack, ...] = ()

    @property
    def missing(self) -> tuple[MissingEntry, ...]:
        """Offsets that were exported over."""
        return () if self.run is None else self.manifest.missing


@dataclass(frozen=True, slots=True)
class NextRun:
    """What an export does next.

    Attributes:
        run: what is to be carried out; None where nothing is new.
        resumed: an earlier run has begun with it.
        held_back: partitions that are left out.
    """

    run: Run | None
    resumed: bool = False
    held_back: tuple[HeldBack, ...] = ()


@dataclass(frozen=True, slots=True)
class FilesJob:
    """The export of one topic into one directory.

    Attributes:
        asked: a given range, in words; None for an export that goes on where it stands.
        chunk: how many offsets one run spans at most, over all Kafka partitions; but what replaces
            files is one run, or readers would miss for a while what later ones bring.
        chunk_bytes: how many archived bytes, about.
        accept_changes: whether a directory may become a mixture of settings.
        reread: whether files are replaced whose records the brokers have thrown away since.
        transaction_timeout_ms: from which age on an open transaction counts as hung.
        now_ms: the wall clock, in ms since 1970.
    """

    cluster: str
    topic: str
    options: FilesOptions
    keeper: ManifestFile
    source: Source
    engine: Engine
    asked: str | None = None
    chunk: int | None = None
    accept_changes: bool = False
    reread: bool = False
    said: Callable[[str], None] = field(default=lambda _text: None)
    chunk_bytes: int | None = None
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    now_ms: Callable[[], int] = field(default=lambda: time_ns() // 1_000_000)

    def look(self) -> Held:
        """The state, once it is known to be this export's, and of the history that the log has.

        Raises:
            LogTruncatedError: it is of another one, and nobody has said `reread`.
            MissingRecordsError: what shares files with what was thrown away is not stored any more.
            OtherExportError, OtherTopicError, NewerStateError, ArchiveError, StorageError.
        """
        held = self.keeper.load(self.cluster, self.topic, self.asked)
        check_same_export(held.manifest, self.cluster, self.asked, self.keeper.where)
        if not self.accept_changes:
            check_settled(held.manifest, self.options, self.keeper.where)
        review = Review(
            self.topic, self.options, self.source, self.keeper, self.said, reread=self.reread
        )
        return replace(held, manifest=review.of(held.manifest))

    def offsets_without_epoch(self) -> dict[TopicPartition, Offset]:
        """The next offsets below which no epoch history is known: a fork there would not be seen.
        Raises as `look`, but for what that compares.
        """
        held = self.keeper.load(self.cluster, self.topic, self.asked)
        return {
            TopicPartition(self.topic, one): Offset(at)
            for one, at in held.manifest.next_offsets.items()
            if not held.manifest.epochs.get(one)
        }

    def next_run(self, held: Held) -> NextRun:
        """What is to be carried out.

        Raises:
            BehindError: a partition's log ends below its next offset, and may be another topic's.
            OtherTopicError, ArchiveError, StorageError.
        """
        manifest = held.manifest
        if manifest.pending is not None:
            return NextRun(manifest.pending, resumed=True)
        behind: list[BehindError] = []
        whole = self.source.spans(manifest.next_offsets, manifest.tail, behind)
        self._require_same_topic(manifest.topic_id)
        held_back = self._held_back(manifest, behind)
        whole = {
            one: span
            for one, span in whole.items()
            if not waits_for_more(manifest, self.options, one, span)
        }
        spans = self._chunk(whole, manifest.replacing)
        if not spans:
            return NextRun(None, held_back=held_back)
        tail = self.source.tail(spans)
        run = begun(manifest, spans, self.options, self.keeper.nonce(), tail).pending
        return NextRun(run, held_back=held_back)

    def _held_back(self, manifest: Manifest, behind: Iterable[BehindError]) -> tuple[HeldBack, ...]:
        offsets = {
            TopicPartition(self.topic, one): Offset(at) for one, at in manifest.next_offsets.items()
        }
        known, found = (
            {} if topic_id is None else {self.topic: topic_id}
            for topic_id in (manifest.topic_id, self.source.topic_id())
        )
        tails = self.source.undecided(manifest.next_offsets)
        at_end = {TopicPartition(self.topic, one): tail for one, tail in tails.items()}
        waiting = waiting_for_transactions(at_end, self.now_ms(), self.transaction_timeout_ms)
        return (
            *behind_of_one_topic(behind, offsets, known, found),
            # No later run goes on with a given range.
            *(replace(one, is_finding=one.is_finding or bool(self.asked)) for one in waiting),
        )

    def plan(self, run: Run, *, refuse: bool = True) -> Plan:
        """What is read for a run.

        Raises:
            MissingRecordsError: see `Source`; unless it is only to be shown (`refuse` is False).
        """
        options = run.options
        if not refuse:
            options = options.model_copy(update={"fail_on_data_loss": False})
        plan = self.source.plan(ranges_of(self.topic, run.spans), options, run.tail)
        self._require_same_topic(run.topic_id)
        return plan

    def _require_same_topic(self, known: str | None) -> None:
        require_same_topic(self.topic, known, self.source.topic_id(), self.keeper.where)

    def once(self) -> RunResult:
        """One run, up to its commit; the one that an earlier job has not ended comes first.

        Raises:
            OtherWriterError: another job was faster. It has the plan now.
            SidetierError: with `retry` the next run carries out the same plan; without, the plan
                was withdrawn, and the next run makes its own. So it is for any other exception.
        """
        held = self.look()
        following = self.next_run(held)
        run, resumed = following.run, following.resumed
        if run is None:
            return RunResult(held.manifest, held_back=following.held_back)
        if resumed:
            self.said(f"{self.topic}: carrying out what an earlier run has begun")
            plan = self._or_give_up(held, lambda: self.plan(run))
        else:
            plan = self.plan(run)  # what is missing is told before anything is written
            held = self._begin(held, run)
        tasks = self._tasks(run, plan, held.manifest.schemas)
        done = tuple(self._or_give_up(held, lambda: self.engine.run(tasks)))
        return self._commit(held, run, plan, done, resumed=resumed)

    def _begin(self, held: Held, run: Run) -> Held:
        tail = Tail(run.tail, run.topic_id, run.epochs)
        manifest = begun(held.manifest, run.spans, run.options, run.nonce, tail)
        return self.keeper.replace(held, manifest)

    def _tasks(self, run: Run, plan: Plan, schemas: Mapping[int, SchemaIds]) -> list[Task]:
        tasks = []
        splits = {tp: tuple(some) for tp, some in groupby(plan.splits, lambda one: one.tp)}
        behind = {tp: tuple(some) for tp, some in groupby(plan.on_broker, lambda one: one.tp)}
        for partition, span in sorted(run.spans.items()):
            tp = TopicPartition(self.topic, partition)
            before = schemas.get(partition, NO_SCHEMAS)
            tasks.append(
                Task(tp, span, splits.get(tp, ()), run.options, run.id, behind.get(tp, ()), before)
            )
        return tasks

    def _commit(
        self, held: Held, run: Run, plan: Plan, done: tuple[Done, ...], *, resumed: bool
    ) -> RunResult:
        if run.options.whole_files:
            held, run, done = _of_whole_files(held, run, done)
        files = sorted(
            (entry for one in done for entry in one.written.files), key=lambda entry: entry.key
        )
        missing = [*plan.missing, *(found for one in done for found in one.missing)]
        entries = [
            MissingEntry(
                partition=one.tp.partition,
                first=one.range.start,
                until=one.range.end,
                detail=one.detail,
            )
            for one in missing
            if one.tp.partition in run.spans and one.range.start < run.spans[one.tp.partition].until
        ]
        replacing = held.manifest.replacing
        # As long as some are not replaced yet, readers have no more than the old ones.
        waiting = frozenset(without(replacing, run.spans))
        replaces = not waiting or waiting != replacing.keys()
        sweep = held.manifest.sweeps > 0 and replaces
        swept_all = sweep and not waiting
        schemas = {one.tp.partition: one.written.schemas for one in done}
        manifest = committed(
            held.manifest,
            files,
            entries,
            self.keeper.nonce(),
            swept=swept_all,
            schemas={at: one for at, one in schemas.items() if one != NO_SCHEMAS},
        )
        swept = self._sweep(held.manifest, run, files, waiting) if sweep else 0
        held = self.keeper.replace(held, manifest)
        return RunResult(held.manifest, run, done, resumed, swept)

    def _sweep(
        self, before: Manifest, run: Run, files: Iterable[FileEntry], waiting: frozenset[int]
    ) -> int:
        """By what was named before and what the run has written, be it more than is named then."""
        return Sweep(
            self.topic,
            tuple(sorted(run.directories.union(before.swept_directories))),
            {one.key for one in (*before.files, *files)},
            {one: span.first for one, span in run.spans.items()} | before.named_from,
            run.generation,
            waiting,
        ).run(self.keeper.store)

    def _or_give_up(self, held: Held, step: Callable[[], _Result]) -> _Result:
        """Carry out a step of a plan that is in the manifest. Withdraw the plan where a second try
        does not help: the next run would meet the same error, with the same old options.

        Killed before the withdrawal is written: the next run meets the same error, and withdraws.
        """
        try:
            return step()
        except Exception as error:
            if _ends_plan(error):
                self._withdraw(held)
            raise

    def _withdraw(self, held: Held) -> None:
        try:
            self.keeper.replace(held, withdrawn(held.manifest, self.keeper.nonce()))
        except SidetierError as error:
            self.said(f"{self.topic}: the plan of this run could not be given up: {error}")

    def abandon_plan(self) -> bool:
        """Withdraw the plan that an earlier run has not carried out; False where there is none. A
        job that is at work on it is refused at its commit.

        Raises:
            OtherExportError, OtherWriterError, NewerStateError, StorageError.
        """
        held = self.keeper.load(self.cluster, self.topic, self.asked)
        check_same_export(held.manifest, self.cluster, self.asked, self.keeper.where)
        if held.manifest.pending is None:
            return False
        self.keeper.replace(held, withdrawn(held.manifest, self.keeper.nonce()))
        return True

    def _chunk(self, spans: Spans, replacing: Mapping[int, int]) -> Spans:
        if self.chunk is None and self.chunk_bytes is None:
            return spans
        replaced = {
            one: Span(first=span.first, until=min(span.until, replacing[one]))
            for one, span in spans.items()
            if one in replacing
        }
        return replaced or self._limited(spans)

    def _limited(self, spans: Spans) -> Spans:
        starts = {TopicPartition(self.topic, one): span.first for one, span in spans.items()}
        ends = {TopicPartition(self.topic, one): span.until for one, span in spans.items()}
        limited = limited_ends(starts, ends, self.chunk)
        taken = {tp.partition: Span(first=starts[tp], until=end) for tp, end in limited.items()}
        if self.chunk_bytes is None or not taken:
            return taken
        return self.source.within(taken, self.chunk_bytes)


def _of_whole_files(
    held: Held, run: Run, done: tuple[Done, ...]
) -> tuple[Held, Run, tuple[Done, ...]]:
    """The run as far as whole files go; what lies above, a later run reads again."""
    ends = {one.tp.partition: one.written.until for one in done}
    manifest = with_whole_files(
        held.manifest.model_copy(update={"pending": run}),
        {partition: end for partition, end in ends.items() if end is not None},
    )
    if manifest.pending is None:
        raise ValueError("no run is under way")
    kept = tuple(one for one in done if one.tp.partition in manifest.pending.spans)
    return Held(manifest, held.etag), manifest.pending, kept


def _ends_plan(error: Exception) -> bool:
    """Whether a second try of the same plan meets the same error. Unexpected exceptions count: a
    plan that is withdrawn costs its files, and a plan that stays can block the topic for good.
    """
    if isinstance(error, OtherWriterError):
        return False  # the manifest is the other writer's
    return not (isinstance(error, SidetierError) and error.retry)

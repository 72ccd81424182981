"""The export of one topic to files: plan a run, write its files, commit them to the manifest.

Each step of a run is atomic. A kill right after it leaves this:

1. The job writes the plan to the manifest (`pending`): the fixed ranges, and all options that
   determine names and contents. After a kill there is no file; the next run carries out this plan.
2. Tasks store the files, each whole. After a kill some of the plan's files exist, which no manifest
   names; the next run makes the same files, and finds those that exist.
3. If an earlier plan was withdrawn, the job removes its files. After a kill some of them are left;
   the next run sweeps again.
4. The job names the files and the next offsets in the manifest. After a kill the run is finished.

Two jobs at once carry out the same plan, so neither can damage the other's files. The store refuses
the fourth step of the slower job.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import groupby
from time import time_ns
from typing import TypeVar

from sidetier.pipeline.export.errors import BehindError, OtherWriterError
from sidetier.pipeline.export.files.names import parse_file_name, topic_prefix
from sidetier.pipeline.export.files.options import FilesOptions
from sidetier.pipeline.export.files.ports import Done, Engine, Source, Spans, Task, ranges_of
from sidetier.pipeline.export.files.review import Review
from sidetier.pipeline.export.files.sink import noted
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
from sidetier.pipeline.planning.resolving import limited_ends
from sidetier.pipeline.planning.split import Plan
from sidetier.segments.errors import ObjectNotFoundError, PreconditionFailedError, SidetierError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.port import IfMatch, RemoteStorage


@dataclass(frozen=True, slots=True)
class Sweep:
    """One search for files of this topic that no manifest names.

    Attributes:
        directories: directories to search.
        named: keys that manifests name.
        named_from: the offset from which on `named` has all files, by Kafka partition.
        generation: generation of the run that sweeps. Only files of earlier runs are removed, so a
            late sweep cannot remove newer files.
        waiting: Kafka partitions whose files stay, because their replacements are not written yet.
    """

    topic: str
    directories: tuple[str, ...]
    named: AbstractSet[str]
    named_from: Mapping[int, int]
    generation: int
    waiting: frozenset[int] = frozenset()

    def suspects(self, store: RemoteStorage) -> Iterator[str]:
        """Yield keys that may belong to withdrawn runs by their names. Their metadata is not read
        yet.
        """
        for directory in self.directories:
            for row in store.list_objects(topic_prefix(directory, self.topic)):
                name = parse_file_name(row.key.rpartition("/")[2])
                if name is None or name.tp.topic != self.topic or row.key in self.named:
                    continue
                if name.tp.partition in self.waiting:
                    continue
                if name.start >= self.named_from.get(name.tp.partition, 0):
                    yield row.key

    def run(self, store: RemoteStorage) -> int:
        """Remove the files; return their number. After a kill, another sweep removes the rest.

        Raises:
            StorageError: see `RemoteStorage`.
        """
        return sum(self._remove(store, key) for key in self.suspects(store))

    def _remove(self, store: RemoteStorage, key: str) -> int:
        try:
            head = store.head_object(key)
            note = noted(head)
            if note is None or note.generation >= self.generation:
                return 0
            store.delete_object(key, condition=IfMatch(head.etag))
        except (ObjectNotFoundError, PreconditionFailedError):
            return 0
        return 1


_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of one run.

    Attributes:
        manifest: the manifest after the run.
        run: the run that was carried out; None if there was nothing new.
        done: results of the tasks.
        resumed: whether an earlier job had begun the run.
        swept: number of files of withdrawn runs that were removed.
        held_back: partitions that are left out. Set only if there was nothing new.
    """

    manifest: Manifest
    run: Run | None = None
    done: tuple[Done, ...] = ()
    resumed: bool = False
    swept: int = 0
    held_back: tuple[HeldBack, ...] = ()

    @property
    def missing(self) -> tuple[MissingEntry, ...]:
        """Ranges that the run skipped because they are not stored."""
        return () if self.run is None else self.manifest.missing


@dataclass(frozen=True, slots=True)
class NextRun:
    """The run that an export carries out next.

    Attributes:
        run: the run; None if there is nothing new.
        resumed: whether an earlier job has begun it.
        held_back: partitions that are left out.
    """

    run: Run | None
    resumed: bool = False
    held_back: tuple[HeldBack, ...] = ()


@dataclass(frozen=True, slots=True)
class FilesJob:
    """The export of one topic into one directory.

    Attributes:
        asked: the requested range, in words; None for an export that continues from its next
            offsets.
        chunk: most offsets of one run, over all Kafka partitions; None for no limit. A run that
            replaces files is not limited, because readers would miss records until the following
            runs.
        accept_changes: whether the output may mix records of different settings.
        reread: whether to replace files whose records the brokers have discarded.
        said: receives messages for the user.
        chunk_bytes: approximate limit of a run in archived bytes; None for no limit.
        transaction_timeout_ms: age in ms from which on an open transaction counts as hung.
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
        """Load the state, and check that it belongs to this export and to the log that exists now.

        Raises:
            LogTruncatedError: exported records were discarded, and `reread` is False.
            MissingRecordsError: records that share files with discarded ones are not stored any
                more.
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
        """Return the next offsets below which no leader epochs are known.

        A divergence below them cannot be detected.

        Raises:
            NewerStateError, MalformedObjectError, StorageError: see `ManifestFile.load`.
        """
        held = self.keeper.load(self.cluster, self.topic, self.asked)
        return {
            TopicPartition(self.topic, partition): Offset(offset)
            for partition, offset in held.manifest.next_offsets.items()
            if not held.manifest.epochs.get(partition)
        }

    def next_run(self, held: Held) -> NextRun:
        """Return the run that comes next: the unfinished one of the manifest, or a new one.

        Raises:
            BehindError: a partition's log ends below its next offset, and the topic may be another
                one.
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
            partition: span
            for partition, span in whole.items()
            if not waits_for_more(manifest, self.options, partition, span)
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
        known, present = (
            {} if topic_id is None else {self.topic: topic_id}
            for topic_id in (manifest.topic_id, self.source.topic_id())
        )
        tails = self.source.undecided(manifest.next_offsets)
        at_end = {TopicPartition(self.topic, one): tail for one, tail in tails.items()}
        waiting = waiting_for_transactions(at_end, self.now_ms(), self.transaction_timeout_ms)
        return (
            *behind_of_one_topic(behind, offsets, known, present),
            # A requested range has no later run, so each open transaction is a finding.
            *(replace(one, is_finding=one.is_finding or bool(self.asked)) for one in waiting),
        )

    def plan(self, run: Run, *, refuse: bool = True) -> Plan:
        """Plan the reading of a run.

        Args:
            run: the run.
            refuse: False to plan it although records are missing, in order to show the plan.

        Raises:
            MissingRecordsError: see `Source.plan`; only if `refuse` is True.
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
        """Carry out one run up to its commit. The unfinished run of an earlier job comes first.

        Raises:
            OtherWriterError: another job was faster, and works on the plan now.
            SidetierError: if `retry` is True, the next run carries out the same plan. Otherwise,
                and after any other exception, the plan was withdrawn and the next run makes its
                own.
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
            plan = self.plan(run)  # missing records are an error before anything is written
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
        splits = {tp: tuple(items) for tp, items in groupby(plan.splits, lambda item: item.tp)}
        behind = {tp: tuple(items) for tp, items in groupby(plan.on_broker, lambda item: item.tp)}
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
        missing = [*plan.missing, *(gap for one in done for gap in one.missing)]
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
        # The old files of waiting partitions stay, so that readers do not miss their records.
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
        """Remove files of withdrawn runs that neither the earlier manifest nor this run names."""
        return Sweep(
            self.topic,
            tuple(sorted(run.directories.union(before.swept_directories))),
            {one.key for one in (*before.files, *files)},
            {one: span.first for one, span in run.spans.items()} | before.named_from,
            run.generation,
            waiting,
        ).run(self.keeper.store)

    def _or_give_up(self, held: Held, step: Callable[[], _Result]) -> _Result:
        """Run a step of the manifest's plan, and withdraw the plan after an error that would
        repeat.

        Otherwise each following run would carry out the same plan, with its old options, and fail.
        After a kill before the withdrawal is written, the next run meets the same error and
        withdraws the plan.
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
        """Withdraw the plan that an earlier run has not finished; return False if there is none.

        If a job still works on the plan, its commit is refused.

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
            partition: Span(first=span.first, until=min(span.until, replacing[partition]))
            for partition, span in spans.items()
            if partition in replacing
        }
        return replaced or self._limited(spans)

    def _limited(self, spans: Spans) -> Spans:
        starts = {
            TopicPartition(self.topic, partition): span.first for partition, span in spans.items()
        }
        ends = {
            TopicPartition(self.topic, partition): span.until for partition, span in spans.items()
        }
        limited = limited_ends(starts, ends, self.chunk)
        taken = {tp.partition: Span(first=starts[tp], until=end) for tp, end in limited.items()}
        if self.chunk_bytes is None or not taken:
            return taken
        return self.source.within(taken, self.chunk_bytes)


def _of_whole_files(
    held: Held, run: Run, done: tuple[Done, ...]
) -> tuple[Held, Run, tuple[Done, ...]]:
    """Cut the run back to whole files. A later run reads the records above them again."""
    ends = {result.tp.partition: result.written.until for result in done}
    manifest = with_whole_files(
        held.manifest.model_copy(update={"pending": run}),
        {partition: end for partition, end in ends.items() if end is not None},
    )
    if manifest.pending is None:
        raise ValueError("no run is under way")
    kept = tuple(result for result in done if result.tp.partition in manifest.pending.spans)
    return Held(manifest, held.etag), manifest.pending, kept


def _ends_plan(error: Exception) -> bool:
    """Return whether another attempt at the same plan would meet the same error.

    Unexpected exceptions count as such: a withdrawn plan costs only the work on its files, but a
    plan that stays can block the topic forever.
    """
    if isinstance(error, OtherWriterError):
        return False  # the other writer has changed the manifest
    return not (isinstance(error, SidetierError) and error.retry)

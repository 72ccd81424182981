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

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final, TypeVar

from sidetier.pipeline.errors import (
    MissingRecordsError,
    UndecidedRecordsError,
    describe_missing,
)
from sidetier.pipeline.export.epoch_history import Truncated
from sidetier.pipeline.export.errors import BehindError, OtherWriterError, RecordCountError
from sidetier.pipeline.export.held_back import HeldBack
from sidetier.pipeline.export.run import ExportRun, Remaining, require_same_topics
from sidetier.pipeline.export.sinks.files.manifest import (
    NO_SCHEMAS,
    FileEntry,
    Manifest,
    ManifestFile,
    MissingEntry,
    Run,
    SchemaIds,
    Span,
    StoredManifest,
    offsets_of,
    ranges_of,
)
from sidetier.pipeline.export.sinks.files.manifest_changes import (
    begun,
    check_same_export,
    check_settled,
    committed,
    planned_positions,
    rewound,
    waits_for_more,
    with_whole_files,
    withdrawn,
    without,
)
from sidetier.pipeline.export.sinks.files.names import parse_file_name, topic_prefix
from sidetier.pipeline.export.sinks.files.options import FilesOptions
from sidetier.pipeline.export.sinks.files.tasks import Done, Engine, Task
from sidetier.pipeline.export.sinks.files.upload import file_metadata
from sidetier.pipeline.export.state import Offsets, Ranges
from sidetier.pipeline.planning.request import NoMatch, ReadRequest, Topics
from sidetier.pipeline.planning.split import Plan
from sidetier.segments.errors import ObjectNotFoundError, PreconditionFailedError, SidetierError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition
from sidetier.storage.port import IfMatch, RemoteStorage

_REMEDY: Final = (
    "--on-truncation reread replaces the files that hold them by files of the present records; or "
    "export the topic into another directory"
)
_WHOLE: Final = 1 << 40
"""Split size in bytes, larger than any range: one task reads a Kafka partition from the first
record to the last, so each range is one split.
"""


def files_read(topic: str, isolation: IsolationLevel) -> ReadRequest:
    """Return how the records of a topic are read for files: all of them, from the first one."""
    return ReadRequest(
        Topics((topic,)),
        starting_option="--from",
        ending_option="--to",
        isolation=isolation,
        no_match=NoMatch.LATEST,
        max_split_bytes=_WHOLE,
    )


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
                name = parse_file_name(row.key.rpartition("/")[2], self.topic)
                if name is None or row.key in self.named:
                    continue
                if name.tp.partition in self.waiting:
                    continue
                # Below this offset, a file that is not named can be part of the output.
                if name.start >= self.named_from.get(name.tp.partition, 0):
                    yield row.key

    def run(self, store: RemoteStorage) -> int:
        """Remove the files; return their number. After a kill, another sweep removes the rest."""
        return sum(self._remove(store, key) for key in self.suspects(store))

    def _remove(self, store: RemoteStorage, key: str) -> int:
        try:
            head = store.head_object(key)
            metadata = file_metadata(head)
            if metadata is None or metadata.generation >= self.generation:
                return 0  # the file of another program, or of a run that has overtaken this one
            store.delete_object(key, condition=IfMatch(head.etag))
        except (ObjectNotFoundError, PreconditionFailedError):
            return 0  # another sweep was faster, or a newer run has replaced the file
        return 1


_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of one run that was carried out.

    Attributes:
        manifest: the manifest after the run.
        run: the run.
        done: results of the tasks.
        resumed: whether an earlier job had begun the run.
        swept: number of files of withdrawn runs that were removed.
    """

    manifest: Manifest
    run: Run
    done: tuple[Done, ...]
    resumed: bool
    swept: int

    @property
    def missing(self) -> tuple[MissingEntry, ...]:
        """Ranges that the run skipped because they are not stored."""
        return self.manifest.missing


@dataclass(frozen=True, slots=True)
class FilesRemaining(Remaining):
    """What is left to export to files.

    `ranges` and `behind` are empty if the manifest has a plan, which is carried out first.

    Attributes:
        held: the manifest, without a plan that cannot be carried out.
    """

    held: StoredManifest

    @property
    def resumes(self) -> bool:
        """Whether an earlier job has begun the next run."""
        return self.held.manifest.pending is not None


@dataclass(frozen=True, slots=True)
class FilesRun(ExportRun[FilesRemaining, Run]):
    """The export of one topic into one directory.

    `terms.most_offsets` and `terms.most_bytes` do not limit a run that replaces files, because
    readers would miss records until the following runs.

    Attributes:
        options: what determines names and contents of files.
        manifest_file: the manifest.
        engine: runs the tasks.
        requested: the requested range, in words; None for an export that continues from its next
            offsets.
        accept_changes: whether the output may mix records of different settings.
        say: receives messages for the user.
        report: called after each commit.
    """

    topic: str
    options: FilesOptions
    manifest_file: ManifestFile
    engine: Engine
    requested: str | None = None
    accept_changes: bool = False
    say: Callable[[str], None] = field(default=lambda _text: None)
    report: Callable[[RunResult], None] = field(default=lambda _result: None)

    @property
    def output(self) -> str:
        """The address of the manifest."""
        return self.manifest_file.where

    def offsets_without_epoch(self) -> Offsets:
        """Return the next offsets below which no leader epochs are known.

        A divergence below them cannot be detected.

        Raises:
            NewerStateError, MalformedObjectError, StorageError: see `ManifestFile.load`.
        """
        return self._load().manifest.exported.offsets_without_epoch

    def remaining(self) -> FilesRemaining:
        """The next plan's write stores a changed manifest. A kill before that leaves the old
        manifest, and the next run makes the same changes.

        Raises:
            MissingRecordsError: records that share files with discarded ones are not stored any
                more.
        """
        held = self._load()
        check_same_export(held.manifest, self.source.cluster, self.requested, self.output)
        if not self.accept_changes:
            check_settled(held.manifest, self.options, self.output)
        manifest = self._without_discarded(held.manifest)
        held = replace(held, manifest=manifest)
        if manifest.pending is not None:
            # Nothing is asked about newer records: the plan's ranges are fixed, and come first.
            return FilesRemaining(manifest.exported, {}, (), held)
        left, behind = self.left_after(manifest.exported)
        left = {
            tp: span
            for tp, span in left.items()
            if span.start < span.end and not waits_for_more(manifest, self.options, tp, span.end)
        }
        return FilesRemaining(manifest.exported, left, behind, held)

    def plan_next(self, remaining: FilesRemaining) -> Run | None:
        """Return the unfinished run of the manifest, or a new one.

        Raises:
            OtherTopicError, ArchiveError, StorageError.
        """
        manifest = remaining.held.manifest
        if manifest.pending is not None:
            return manifest.pending
        ranges = self._replaced(remaining.ranges, manifest.replacing)
        if not ranges:
            chunk = self.next_chunk(remaining.ranges)
            if chunk is None:
                return None
            ranges = chunk.ranges
        spans = {
            tp.partition: Span(first=span.start, until=span.end) for tp, span in ranges.items()
        }
        tail = self.source.tail(ranges)
        return begun(manifest, spans, self.options, self.manifest_file.nonce(), tail).pending

    def commit(self, remaining: FilesRemaining, plan: Run) -> None:
        """Read the manifest again, since other jobs may change it."""
        self.report(self.carry_out(remaining, plan))

    def carry_out(self, remaining: FilesRemaining, run: Run) -> RunResult:
        """Carry out a run of `plan_next` up to its commit.

        Raises:
            OtherWriterError: another job was faster, and works on the plan now.
            SidetierError: if `retry` is True, the next run carries out the same plan. Otherwise,
                and after any other exception, the plan was withdrawn and the next run makes its
                own.
        """
        held = remaining.held
        if remaining.resumes:
            self.say(f"{self.topic}: carrying out the plan of an earlier run")
            plan = self._or_withdraw(held, lambda: self.plan(run))
        else:
            # Missing records are an error before anything is written: a plan in the manifest that
            # cannot be carried out would block the topic.
            plan = self.plan(run)
            held = self.begin(held, run)
        tasks = self._tasks(run, plan, held.manifest.schemas)
        done = tuple(self._or_withdraw(held, lambda: _counted(tasks, self.engine.run(tasks))))
        return self._commit(held, run, plan, done, resumed=remaining.resumes)

    def begin(self, held: StoredManifest, run: Run) -> StoredManifest:
        """Write a new run to the manifest, before any of its files exists.

        Raises:
            OtherWriterError: another job has changed the manifest.
        """
        changes = {"generation": run.generation, "pending": run, "nonce": run.nonce}
        return self.manifest_file.replace(held, held.manifest.model_copy(update=changes))

    def plan(self, run: Run, *, refuse: bool = True) -> Plan:
        """Plan the reading of a run, with the isolation level that it was begun with.

        Args:
            run: the run.
            refuse: False to plan it although records are missing, in order to show the plan.

        Raises:
            MissingRecordsError: see `Source.plan`; only if `refuse` is True.
        """
        plan = self.source.plan(
            ranges_of(self.topic, run.spans),
            offsets_of(self.topic, run.tail),
            isolation=IsolationLevel(run.options.isolation),
            fail_on_data_loss=refuse and run.options.fail_on_data_loss,
        )
        # After the plan: `topic_ids` gives the ids in the snapshots that it has read.
        known = {} if run.topic_id is None else {self.topic: run.topic_id}
        require_same_topics(known, self.source.topic_ids(plan.ranges), self.output)
        return plan

    def held_back(self, remaining: FilesRemaining, reached: Offsets) -> tuple[HeldBack, ...]:
        """A requested range has no later run, so each open transaction is a finding."""
        if remaining.resumes:
            return ()  # this run has not asked yet what is left
        held_back = super(FilesRun, self).held_back(remaining, reached)
        if self.requested is None:
            return held_back
        return tuple(replace(partition, is_finding=True) for partition in held_back)

    def _load(self) -> StoredManifest:
        return self.manifest_file.load(self.source.cluster, self.topic, self.requested)

    def _without_discarded(self, manifest: Manifest) -> Manifest:
        """Return the manifest without discarded records, and without a plan that cannot be carried
        out.
        """
        gone = self.discarded(manifest.exported, _REMEDY)
        run = manifest.pending
        why = None if run is None else self._why_to_withdraw(run, gone)
        if why is not None:
            self.say(f"{self.topic}: the plan of an earlier run was withdrawn: {why}")
            manifest = withdrawn(manifest, self.manifest_file.nonce())
        return self._rewound(manifest, gone) if gone else manifest

    def _why_to_withdraw(self, run: Run, gone: tuple[Truncated, ...]) -> str | None:
        """Return why a plan cannot be carried out after a change of the archive; None to try it."""
        positions = {
            TopicPartition(self.topic, item): position
            for item, position in planned_positions(run).items()
        }
        if gone or self.source.truncated(positions):
            return "the brokers have discarded records that it reads"
        try:
            plan = self.source.plan(
                ranges_of(self.topic, run.spans),
                offsets_of(self.topic, run.tail),
                isolation=IsolationLevel(run.options.isolation),
                fail_on_data_loss=run.options.fail_on_data_loss,
            )
        except UndecidedRecordsError as error:
            return f"{error}; the records before it are exported"
        except BehindError as error:
            return error.fact
        except MissingRecordsError as error:
            missing = error.missing
        except SidetierError:
            return None  # the run itself meets the error again, and reports it
        else:
            ends = {item: span.until for item, span in run.spans.items()}
            missing = tuple(
                item for item in plan.missing if item.range.end == ends[item.tp.partition]
            )
        # The archive's end may have been quarantined: a new plan ends where the archive ends now.
        return (
            f"it reads records that are not stored: {describe_missing(missing[0])}"
            if missing
            else None
        )

    def _rewound(self, manifest: Manifest, gone: tuple[Truncated, ...]) -> Manifest:
        divergence_offsets = {discarded.tp.partition: discarded.range.start for discarded in gone}
        manifest = rewound(manifest, divergence_offsets, self.output)
        # Records below a divergence that share its file are written again: they must be stored.
        shared = {
            discarded.tp: OffsetRange(
                Offset(manifest.next_offsets[discarded.tp.partition]), discarded.range.start
            )
            for discarded in gone
        }
        isolation = IsolationLevel(self.options.isolation)
        self.source.plan(shared, isolation=isolation, fail_on_data_loss=True)
        self.say(f"to be exported again: {'; '.join(map(str, gone))}")
        return manifest

    def _tasks(self, run: Run, plan: Plan, schemas: Mapping[int, SchemaIds]) -> list[Task]:
        tasks = []
        splits = {tp: tuple(items) for tp, items in groupby(plan.splits, lambda item: item.tp)}
        behind = {tp: tuple(items) for tp, items in groupby(plan.on_broker, lambda item: item.tp)}
        for partition, span in sorted(run.spans.items()):
            tp = TopicPartition(self.topic, partition)
            before = schemas.get(partition, NO_SCHEMAS)
            tasks.append(
                Task(
                    tp,
                    span,
                    splits.get(tp, ()),
                    run.options,
                    run.id,
                    behind.get(tp, ()),
                    before,
                    plan.with_tail,
                )
            )
        return tasks

    def _commit(
        self, held: StoredManifest, run: Run, plan: Plan, done: tuple[Done, ...], *, resumed: bool
    ) -> RunResult:
        if run.options.whole_files:
            held, run, done = _of_whole_files(held, run, done)
        files = sorted(
            (entry for result in done for entry in result.written.files),
            key=lambda entry: entry.key,
        )
        missing = [*plan.missing, *(gap for result in done for gap in result.missing)]
        # A run that was cut back to whole files reports only what is missing below its new ends.
        entries = [
            MissingEntry(
                partition=gap.tp.partition,
                first=gap.range.start,
                until=gap.range.end,
                detail=gap.detail,
            )
            for gap in missing
            if gap.tp.partition in run.spans and gap.range.start < run.spans[gap.tp.partition].until
        ]
        replacing = held.manifest.replacing
        # The old files of waiting partitions stay, so that readers do not miss their records.
        waiting = frozenset(without(replacing, run.spans))
        replaces = not waiting or waiting != replacing.keys()
        sweep = held.manifest.sweeps > 0 and replaces
        swept_all = sweep and not waiting
        schemas = {result.tp.partition: result.written.schemas for result in done}
        manifest = committed(
            held.manifest,
            files,
            entries,
            self.manifest_file.nonce(),
            swept=swept_all,
            schemas={item: ids for item, ids in schemas.items() if ids != NO_SCHEMAS},
        )
        # Sweep before the manifest counts the sweep as done: a kill in between repeats it.
        swept = self._sweep(held.manifest, run, files, waiting) if sweep else 0
        held = self.manifest_file.replace(held, manifest)
        return RunResult(held.manifest, run, done, resumed, swept)

    def _sweep(
        self, before: Manifest, run: Run, files: Iterable[FileEntry], waiting: frozenset[int]
    ) -> int:
        """Remove files of withdrawn runs that neither the earlier manifest nor this run names."""
        return Sweep(
            self.topic,
            tuple(sorted(run.directories.union(before.swept_directories))),
            {entry.key for entry in (*before.files, *files)},
            {item: span.first for item, span in run.spans.items()} | before.named_from,
            run.generation,
            waiting,
        ).run(self.manifest_file.store)

    def _or_withdraw(self, held: StoredManifest, step: Callable[[], _Result]) -> _Result:
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

    def _withdraw(self, held: StoredManifest) -> None:
        try:
            self.manifest_file.replace(held, withdrawn(held.manifest, self.manifest_file.nonce()))
        except SidetierError as error:
            self.say(f"{self.topic}: the plan of this run could not be withdrawn: {error}")

    def abandon_plan(self) -> bool:
        """Withdraw the plan that an earlier run has not finished; return False if there is none.

        If a job still works on the plan, its commit is refused.

        Raises:
            OtherExportError, OtherWriterError, NewerStateError, StorageError.
        """
        held = self._load()
        check_same_export(held.manifest, self.source.cluster, self.requested, self.output)
        if held.manifest.pending is None:
            return False
        self.manifest_file.replace(held, withdrawn(held.manifest, self.manifest_file.nonce()))
        return True

    def _replaced(self, left: Ranges, replacing: Mapping[int, int]) -> Ranges:
        """Return the ranges whose old files a run must replace at once, if runs are limited."""
        if self.terms.most_offsets is None and self.terms.most_bytes is None:
            return {}
        return {
            tp: OffsetRange(span.start, Offset(min(span.end, replacing[tp.partition])))
            for tp, span in left.items()
            if tp.partition in replacing
        }


def _counted(tasks: Sequence[Task], done: Sequence[Done]) -> Sequence[Done]:
    """Return the results; raise RecordCountError unless they are of these tasks, and complete."""
    if sorted(task.tp for task in tasks) != sorted(result.tp for result in done):
        raise RecordCountError(
            tasks[0].tp.topic, f"of {len(tasks)} Kafka partitions, {len(done)} were exported"
        )
    for result in done:
        result.written.check(str(result.tp))
    return done


def _of_whole_files(
    held: StoredManifest, run: Run, done: tuple[Done, ...]
) -> tuple[StoredManifest, Run, tuple[Done, ...]]:
    """Cut the run back to whole files. A later run reads the records above them again."""
    ends = {result.tp.partition: result.written.until for result in done}
    manifest = with_whole_files(
        held.manifest.model_copy(update={"pending": run}),
        {partition: end for partition, end in ends.items() if end is not None},
    )
    if manifest.pending is None:
        raise ValueError("no run is under way")
    kept = tuple(result for result in done if result.tp.partition in manifest.pending.spans)
    return StoredManifest(manifest, held.etag), manifest.pending, kept


def _ends_plan(error: Exception) -> bool:
    """Return whether another attempt at the same plan would meet the same error.

    Unexpected exceptions count as such: a withdrawn plan costs only the work on its files, but a
    plan that stays can block the topic forever.
    """
    if isinstance(error, OtherWriterError):
        return False  # the other writer has changed the manifest
    return not (isinstance(error, SidetierError) and error.retry)

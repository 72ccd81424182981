"""Copy an archive into topics of a running cluster, each record exactly once."""

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from prometheus_client import CollectorRegistry

from sidetier.archive.access import ArchiveAccess, open_archive, require_directory
from sidetier.archive.folders import ArchiveFolder
from sidetier.archive.objects.cluster_snapshots import last_definitions
from sidetier.archive.objects.layout import read_note
from sidetier.archive.positions import BEGINNING, END, PartitionRange, Position, plan_ranges
from sidetier.archive.reader.reader import ArchiveReader
from sidetier.archive.tailed_archive import SharedTails
from sidetier.archive.topics import archived_partitions, numbers_by_topic
from sidetier.config.model import Config
from sidetier.config.types import References, resolved
from sidetier.leadership.cluster import as_texts
from sidetier.mirror.copy.archive_source import ArchiveSource
from sidetier.mirror.copy.engine import Copy, Engine
from sidetier.mirror.copy.offset_map import OffsetMap
from sidetier.mirror.copy.run import CopyReport, CopyRequest, OnCounts, run_engine
from sidetier.mirror.copy.source import KafkaSource
from sidetier.mirror.copy.target import KafkaTarget
from sidetier.mirror.hydrate.verify import BrokerSide
from sidetier.mirror.offsets.translate import read_offset_map
from sidetier.mirror.restore.copy_check import ArchivedRecords, CheckedCopy, CopiedRange, check_copy
from sidetier.mirror.restore.folders import (
    FolderChoice,
    FolderKind,
    folder_archive,
    partitions_with_folders,
)
from sidetier.mirror.restore.plan import (
    ArchivedTopics,
    PartitionRestore,
    RestoreNote,
    archived_topic,
    decode_note,
    offset_map_problem,
    progress_problem,
    same_topic_problem,
    settings_left,
    target_problems,
)
from sidetier.mirror.spark_copy import (
    PACK_SECONDS,
    PartitionTask,
    SparkCopy,
    TaskArchive,
    plan_tasks,
    rivals_of_one_process,
)
from sidetier.mirror.spark_driver import SparkEngine, check_spark_request, copy_on_spark
from sidetier.mirror.topics.catalog import Catalog
from sidetier.mirror.topics.planning import CatalogOptions, PlannedCopy
from sidetier.mirror.topics.rules import MirrorNames, TopicRules, decode_lineage, topic_rules
from sidetier.segments.cluster_state import TopicDefinition
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.names import DirectoryState, parse_partition_directory
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition
from sidetier.storage.attempt import monotonic
from sidetier.wire.cluster import Cluster
from sidetier.wire.requests import (
    EARLIEST,
    LATEST,
    CommittedOffset,
    committed_offsets,
    list_offsets,
)
from sidetier.wire.settings import ClientSettings
from sidetier.wire.topics import topic_settings

_CONNECTIONS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRequest:
    """What a restore copies, and how.

    Attributes:
        name: Name of the restore; its progress is kept under it. None for the cluster's name.
        copy: The topics, and the limits of the copy.
        partitions: Names of partitions, such as `orders-3`; their topics need no pattern.
        begin: First record, inclusive; None for the beginning. A restore that continues keeps the
            start of its first run.
        end: Where to stop, exclusive; None for the end of the archive.
        from_quarantine: Restore from the folder with this name into which a sidecar has moved
            segments; empty if there is only one; None to not do so.
        from_retired: Restore the retired archive in the folder with this name; as above.
        abort_open: Whether a transaction that is open at the end of the archive counts as aborted.
            Otherwise its partition's records are left out from its first record on.
        accept_cleanup: Restore also into topics whose retention or compaction may delete records.
        verify: Consume the restored records, and compare them with the archive.
        with_tail: Restore the records of tail packs, too.
    """

    name: str | None = None
    copy: CopyRequest = field(default_factory=CopyRequest)
    partitions: tuple[str, ...] = ()
    begin: Position | None = None
    end: Position | None = None
    from_quarantine: str | None = None
    from_retired: str | None = None
    abort_open: bool = False
    accept_cleanup: bool = False
    verify: bool = True
    with_tail: bool = False


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The plan of a restore.

    Attributes:
        name: Name of the restore.
        partitions: The partitions with their ranges.
        exists: Target topics that exist.
        problems: By target topic, why it cannot take records.
        settings_left: By target topic, the archived settings that it is not created with.
    """

    name: str
    partitions: Sequence[PartitionRestore]
    exists: frozenset[str] = frozenset()
    problems: Mapping[str, str] = field(default_factory=dict)
    settings_left: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def leaves_out(self) -> bool:
        """Whether archived records cannot be restored because a transaction is open."""
        return any(partition.undecided for partition in self.partitions)


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """The result of a restore, and of its comparison with the archive.

    `checked` is None if nothing was compared.
    """

    plan: RestorePlan
    copied: CopyReport
    stopped: bool = False
    checked: Mapping[TopicPartition, CheckedCopy] | None = None

    @property
    def differs(self) -> bool:
        """Whether the target differs from the archive."""
        return any(partition.problems for partition in (self.checked or {}).values())

    @property
    def is_complete(self) -> bool:
        """Whether every archived record is on the target, and equal if they were compared."""
        return (
            not (self.stopped or self.differs or self.plan.leaves_out) and self.copied.is_complete
        )


OnCompared = Callable[[int, int], None]
_VIEW_SECONDS: Final = 3600.0
"""Maximum age of a snapshot of the archive: all ranges are planned from the same one."""


@dataclass(frozen=True, slots=True)
class Restore:
    """A restore with an open archive and target; `open_restore` returns it.

    Attributes:
        archive: The live archive.
        source: The archive to restore: the live one, or folders of it.
        all_partitions: All archived partitions.
        wanted: The partitions to restore.
        references: The target's client properties; secrets are references.
        properties: The same properties with secrets resolved.
        folders: Folder of each partition; empty for the live archive.
        tails: The tail packs; None to restore the archive alone.
    """

    config: Config
    request: RestoreRequest
    names: MirrorNames
    rules: TopicRules
    archive: ArchiveAccess
    source: ArchiveAccess
    records: ArchivedRecords
    target: Cluster
    references: References
    properties: Mapping[str, str]
    all_partitions: Sequence[TopicPartition]
    wanted: Sequence[TopicPartition]
    folders: Mapping[TopicPartition, ArchiveFolder]
    choice: FolderChoice | None
    stop: threading.Event
    spark: SparkEngine | None
    registry: CollectorRegistry | None
    on_note: Callable[[str], None]
    tails: SharedTails | None = None

    def plan(self) -> RestorePlan:
        """Return ranges and targets, and the problems of targets. Changes nothing.

        Raises:
            ConfigurationError: The range is empty or wrong in every partition.
            SidetierError: The archive or the target cannot be asked.
        """
        definitions = self._definitions()
        catalog = self._catalog(definitions)
        planned = catalog.plan()
        targets = {topic.source: topic for topic in planned}
        # By name, so that offsets of an open transaction are waited for: see `committed_offsets`.
        progress = committed_offsets(
            self.target,
            self.names.group,
            [TopicPartition(targets[tp.topic].target, tp.partition) for tp in self.wanted],
        )
        partitions = self._partitions(targets, progress)
        existing = {topic.target for topic in planned if topic.exists}
        return RestorePlan(
            self.names.name,
            partitions,
            frozenset(existing),
            self._problems(planned, partitions, progress),
            {
                targets[name].target: settings_left(definition.configs, targets[name].settings)
                for name, definition in definitions.items()
                if targets[name].target not in existing - {tp.topic for tp in progress}
            },
        )

    def _problems(
        self,
        planned: Sequence[PlannedCopy],
        partitions: Sequence[PartitionRestore],
        progress: Mapping[TopicPartition, CommittedOffset],
    ) -> dict[str, str]:
        """Return, by target topic, a reason why it cannot take the records.

        If several reasons apply, the one that names the archived topic itself as the target comes
        first. Otherwise the first reason that was found is kept.
        """
        problems = {topic.target: topic.problem for topic in planned if topic.problem is not None}
        # A retired archive is of an earlier topic, so it may be restored into the archived cluster.
        if self.choice is None or self.choice.kind is not FolderKind.RETIRED:
            cluster_id = self.target.metadata(()).cluster_id
            same = ((topic.target, same_topic_problem(topic, cluster_id)) for topic in planned)
            problems |= {name: problem for name, problem in same if problem is not None}
        for partition in partitions:
            if partition.target in progress:
                note = decode_note(progress[partition.target].metadata)
                problem = progress_problem(partition, note)
                if problem is not None:
                    problems.setdefault(partition.target.topic, problem)
        orphaned = self._mapped_without_progress(
            [partition.target for partition in partitions if partition.target not in progress]
        )
        for tp in orphaned:
            problems.setdefault(tp.topic, offset_map_problem(self.names.offsets_topic, orphaned))
        existing = {topic.target for topic in planned if topic.exists}
        sized = [
            partition.target
            for partition in partitions
            if partition.target.topic in existing - problems.keys()
        ]
        return problems | target_problems(
            [topic for topic in planned if topic.target not in problems],
            progress,
            topic_settings(self.target, existing, only_set=False),
            self._sizes(sized),
            accept_cleanup=self.request.accept_cleanup,
        )

    def _mapped_without_progress(self, tps: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Return those of these partitions without progress that are in the offset map."""
        topic = self.names.offsets_topic
        if not tps or topic not in self.target.metadata([topic]).topics:
            return []
        maps = read_offset_map(self.target, topic)
        return [tp for tp in tps if tp in maps]

    def _sizes(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the number of offsets in the log of each target partition."""
        starts = list_offsets(self.target, dict.fromkeys(tps, EARLIEST))
        ends = list_offsets(self.target, dict.fromkeys(tps, LATEST))
        return {tp: ends[tp].offset - starts[tp].offset for tp in tps}

    def run(
        self,
        plan: RestorePlan,
        *,
        on_counts: OnCounts = lambda _: None,
        on_compared: OnCompared = lambda _done, _total: None,
    ) -> RestoreReport:
        """Create the topics, copy, and compare.

        Args:
            plan: The result of `plan`, in the same block.
            on_counts: Called every second of a copy in this process.
            on_compared: Called with the number of compared offsets, and of all; both sides count.

        Raises:
            ConfigurationError: A target cannot take the records; nothing was restored.
            SidetierError: As `Engine.run`, or the comparison cannot be made.
        """
        if plan.problems:
            raise ConfigurationError("\n".join(plan.problems.values()))
        by_source = {partition.source: partition for partition in plan.partitions}
        catalog = self._catalog(self._definitions())
        created = catalog.copies()
        if catalog.refused:
            raise ConfigurationError("\n".join(catalog.refused.values()))
        copies = {
            tp: replace(created[tp], lineage=_note_with_topic_ids(partition.note, created[tp]))
            for tp, partition in by_source.items()
        }
        if self.spark is not None:
            copied = self._copy_on_spark(plan, copies, self.spark)
        else:
            copied = self._copy_here(plan, copies, on_counts)
        # Spark tasks copy only the partitions that are not complete yet.
        reached = {tp: partition.restored_to for tp, partition in by_source.items()}
        reached |= {tp: lag.position for tp, lag in copied.counts.lags.items()}
        ends = {tp: partition.end for tp, partition in by_source.items()}
        if any(offset is None or offset < ends[tp] for tp, offset in reached.items()):
            return RestoreReport(plan, copied, stopped=True)
        if not self.request.verify:
            return RestoreReport(plan, copied)
        return self._checked(RestoreReport(plan, copied), copies, on_compared)

    def _copy_here(
        self, plan: RestorePlan, copies: Mapping[TopicPartition, Copy], on_counts: OnCounts
    ) -> CopyReport:
        by_source = {partition.source: partition for partition in plan.partitions}
        source = KafkaSource(
            None,
            ArchiveSource(self.source, abort_open=self.request.abort_open, tails=self.tails),
            until={tp: partition.end for tp, partition in by_source.items()},
            on_gap=self.request.copy.on_gap,
        )
        targets = [copy.target for copy in copies.values()]
        target = KafkaTarget(
            self.target,
            self.names.group,
            self.names.transactional_id(),
            rivals=lambda: rivals_of_one_process(self.target, self.names, targets),
        )
        engine = Engine(
            source,
            target,
            lambda: copies,
            lambda tps: {tp: by_source[tp].start for tp in tps},
            offsets_topic=self.names.offsets_topic,
            limits=self.request.copy.limits,
            refresh_seconds=None,
            stop=self.stop,
        )
        try:
            return run_engine(engine, self.stop, registry=self.registry, on_counts=on_counts)
        finally:
            source.close()
            target.close()

    def _copy_on_spark(
        self, plan: RestorePlan, copies: Mapping[TopicPartition, Copy], spark: SparkEngine
    ) -> CopyReport:
        tasks = [
            PartitionTask(
                copies[partition.source],
                partition.start,
                partition.end,
                is_begun=partition.restored_to is not None,
            )
            for partition in plan.partitions
        ]
        progress = {
            partition.target: partition.restored_to
            for partition in plan.partitions
            if partition.restored_to is not None
        }
        copy = SparkCopy(
            self.names,
            plan_tasks(tasks, progress),
            self.request.copy.limits,
            self.references,
            archive=TaskArchive(
                self.config.cluster.name,
                self.config.storage,
                self.folders,
                self.request.abort_open,
                self.request.with_tail,
            ),
            rivals=(self.names.transactional_id(),),
        )
        return copy_on_spark(spark, copy, self.target, self.stop, planned=tasks)

    def _checked(
        self,
        result: RestoreReport,
        copies: Mapping[TopicPartition, Copy],
        on_compared: OnCompared,
    ) -> RestoreReport:
        partitions = result.plan.partitions
        maps = read_offset_map(self.target, self.names.offsets_topic, max_runs=sys.maxsize)
        starts = list_offsets(
            self.target, dict.fromkeys([copy.target for copy in copies.values()], EARLIEST)
        )
        source, brokers = self._stored(), BrokerSide(self.properties)
        checked: dict[TopicPartition, CheckedCopy] = {}
        total = 2 * sum(partition.end - partition.start for partition in partitions)
        seen = 0

        def tell(records: int) -> None:
            nonlocal seen
            seen += records
            on_compared(seen, total)
            if self.stop.is_set():
                raise _StoppedError

        for partition in partitions:
            view = source.view(partition.source)
            # Records that the store's lifecycle rules have deleted since cannot be compared.
            start = partition.start if view is None else max(partition.start, view.start)
            copied = CopiedRange(
                partition.source,
                partition.target,
                start,
                partition.end,
                partition.last_stable_offset,
            )
            try:
                checked[partition.target] = check_copy(
                    copied,
                    maps.get(partition.target, OffsetMap(())),
                    starts[partition.target].offset,
                    self.records.records(copied, view),
                    brokers,
                    with_timestamps=not self.request.copy.accept_log_append_time,
                    progress=tell,
                )
            except _StoppedError:
                return replace(result, stopped=True, checked=checked)

        return replace(result, checked=checked)

    def _stored(self) -> ArchiveSource:
        """Return what is restored, as it is stored now."""
        return ArchiveSource(self.source, tails=self.tails)

    def _definitions(self) -> dict[str, TopicDefinition]:
        """Return the definitions of the topics in the lost cluster, as far as snapshots
        have them.
        """
        topics: dict[str, str | None] = {tp.topic: None for tp in self.wanted}
        if self.choice is not None and self.choice.kind is FolderKind.RETIRED:
            # The folder's name is the topic id: a later topic of the same name is another one.
            topics = {
                tp.topic: folder.prefix.rstrip("/").rpartition("/")[2]
                for tp, folder in self.folders.items()
            }
        store = self.archive.default_store
        return last_definitions(store, self.archive.layout, topics)

    def _catalog(self, definitions: Mapping[str, TopicDefinition]) -> Catalog:
        wanted = {tp.topic for tp in self.wanted}
        topics = {
            name: archived_topic(name, numbers, definitions.get(name))
            for name, numbers in numbers_by_topic(self.all_partitions).items()
            if name in wanted
        }
        note = read_note(self.archive.default_store, self.archive.layout)
        cluster_id = None if note is None else note.kafka_cluster_id
        return Catalog(
            ArchivedTopics(cluster_id or self.archive.layout.cluster, topics),
            self.target,
            self.rules,
            self.names,
            CatalogOptions(
                replication_factor=self.request.copy.replication_factor or -1,
                accept_log_append_time=self.request.copy.accept_log_append_time,
                accept_records=True,  # `target_problems` checks them
                refuse_loops=False,
            ),
        )

    def _partitions(
        self,
        targets: Mapping[str, PlannedCopy],
        progress: Mapping[TopicPartition, CommittedOffset],
    ) -> list[PartitionRestore]:
        archive = self._stored()
        partitions = []
        for course in self._courses(archive):
            planned = targets[course.tp.topic]
            target = TopicPartition(planned.target, course.tp.partition)
            before = progress.get(target)
            note = None if before is None else decode_note(before.metadata)
            start = Offset(course.start)
            # Without `--from`, a restore that continues keeps the start of its first run.
            if note is not None and self.request.begin is None:
                start = note.start
            view = archive.view(course.tp, _VIEW_SECONDS)
            last_stable_offset = archive.last_stable_offset(course.tp, _VIEW_SECONDS)
            end = Offset(max(start, course.end or 0))
            partitions.append(
                PartitionRestore(
                    course.tp,
                    target,
                    start,
                    end,
                    archive_end=end if view is None else view.archived_end,
                    last_stable_offset=end if last_stable_offset is None else last_stable_offset,
                    note=RestoreNote(
                        replace(
                            planned.lineage,
                            source_id=None if view is None else view.watermark.topic_id,
                        ),
                        start,
                        self.folders[course.tp].prefix if course.tp in self.folders else "",
                    ),
                    restored_to=None if before is None else before.offset,
                    above_end=archive.above_end(course.tp),
                    tail_end=None if self.tails is None or view is None else view.end,
                )
            )
        return partitions

    def _courses(self, archive: ArchiveSource) -> list[PartitionRange]:
        """Return the range of each partition; those without `offset.wm` are left out."""
        now_ms = time.time_ns() // 1_000_000
        begin, end = self.request.begin or BEGINNING, self.request.end or END
        known = [tp for tp in self.wanted if archive.view(tp, _VIEW_SECONDS) is not None]
        for tp in sorted(set(self.wanted) - set(known)):
            self.on_note(
                f"{self.records.committed.where(tp)} has no offset.wm, so {tp} is left out"
            )
        if not known:
            raise ConfigurationError(
                "none of the selected partitions has an offset.wm; the messages above name them"
            )
        return [
            course
            for topic, numbers in sorted(numbers_by_topic(known).items())
            for course in plan_ranges(
                ArchiveRanges(archive, self.records.committed, numbers, self.request.abort_open),
                topic,
                begin,
                end,
                now_ms,
                on_note=self.on_note,
            )
        ]


@contextmanager
def open_restore(  # noqa: PLR0913 -- six have a default
    config: Config,
    request: RestoreRequest,
    target: References,
    *,
    stop: threading.Event | None = None,
    spark: SparkEngine | None = None,
    registry: CollectorRegistry | None = None,
    on_note: Callable[[str], None] = lambda _: None,
) -> Iterator["Restore"]:
    """Open the archive and the target of a restore; closed on exit.

    Args:
        config: Configuration of the archive; `cluster` and `storage` are read.
        request: What is restored.
        target: Properties of the target's Kafka client, in librdkafka's names.
        stop: Ends the restore when it is set. Also set after a failure.
        spark: Copies in Spark tasks; None to copy in this process.
        registry: Gets the metrics of a copy in this process.
        on_note: Receives the reason why a partition is left out or empty.

    Raises:
        ConfigurationError: A setting does not fit, or nothing is archived of the selection.
        SidetierError: The archive cannot be read.
    """
    names = MirrorNames(request.name or config.cluster.name, "restore")
    rules, partitions = _selection(request)
    choice = _folder_choice(request)
    if spark is not None:
        check_spark_request(request.copy, {"target": target}, has_registry=registry is not None)
    properties = as_texts(resolved(target))
    settings = ClientSettings.from_properties(properties)
    require_directory(config.storage.url)
    stop = stop or threading.Event()
    with ExitStack() as stack:
        archive = stack.enter_context(
            open_archive(config.cluster.name, config.storage, connections=_CONNECTIONS, stop=stop)
        )
        tails = SharedTails(archive, monotonic, PACK_SECONDS) if request.with_tail else None

        def selected(tp: TopicPartition) -> bool:
            named = [known for known in partitions if known.topic == tp.topic]
            return rules.selects(tp.topic) and (not named or tp in named)

        all_partitions, source, folders = archived_partitions(archive), archive, None
        if tails is not None:
            all_partitions = sorted({*all_partitions, *_in_packs(archive, tails)})
        if choice is not None:
            source, folders = folder_archive(archive, choice, selected)
            all_partitions = sorted(
                {*all_partitions, *partitions_with_folders(archive, choice.kind)}
            )
        wanted = [
            tp for tp in all_partitions if selected(tp) and (folders is None or tp in folders)
        ]
        _require_archived(config, request, wanted, partitions)
        records = stack.enter_context(
            closing(
                ArchivedRecords(source, request.copy.max_batch_bytes, with_tail=request.with_tail)
            )
        )
        cluster = stack.enter_context(Cluster(settings))
        yield Restore(
            config,
            request,
            names,
            rules,
            archive,
            source,
            records,
            cluster,
            target,
            properties,
            all_partitions,
            wanted,
            folders or {},
            choice,
            stop,
            spark,
            registry,
            on_note,
            tails,
        )


def _in_packs(archive: ArchiveAccess, tails: SharedTails) -> Iterator[TopicPartition]:
    """Yield the partitions of which tail packs have records."""
    for endpoint in archive.provider.endpoints:
        contents = tails.read_store(endpoint, PACK_SECONDS).contents
        found = tails.partitions(endpoint, PACK_SECONDS)
        yield from (tp for tp in found if contents.may_have_tail(tp))


class _StoppedError(Exception):
    """A signal has stopped the comparison."""


@dataclass(frozen=True, slots=True)
class ArchiveRanges:
    """Offsets of a topic's partitions that can be restored; with the tail, if `archive` has it."""

    archive: ArchiveSource
    reader: ArchiveReader
    numbers: Sequence[int]
    aborts_open: bool

    def partitions(self) -> Sequence[int]:
        """Return the archived partitions of the topic."""
        return self.numbers

    def bounds(self, tp: TopicPartition) -> OffsetRange:
        """The end is the first record of a transaction that is open at the archive's end, unless
        such transactions count as aborted. Both bounds are 0 without an archive.
        """
        view = self.archive.view(tp, _VIEW_SECONDS)
        if view is None:
            return OffsetRange(Offset(0), Offset(0))
        end = view.end if self.aborts_open else self.archive.last_stable_offset(tp, _VIEW_SECONDS)
        return OffsetRange(view.start, max(view.start, end or view.start))

    def offset_for_time(self, tp: TopicPartition, timestamp_ms: int) -> int | None:
        """Search what is stored."""
        return self.reader.offset_for_time(tp, timestamp_ms)


def _selection(request: RestoreRequest) -> tuple[TopicRules, Sequence[TopicPartition]]:
    """Return the topic rules, and the partitions that are named."""
    partitions = [_partition(text) for text in request.partitions]
    named = tuple(re.escape(tp.topic) for tp in partitions)
    rules = topic_rules((*request.copy.topics, *named), request.copy.exclude, request.copy.rename)
    return rules, partitions


def _partition(text: str) -> TopicPartition:
    parsed = parse_partition_directory(text)
    if parsed is None or parsed.state is not DirectoryState.LIVE:
        raise ConfigurationError(f"--partition {text!r}: give TOPIC-N, such as orders-3")
    return parsed.topic_partition


def _folder_choice(request: RestoreRequest) -> FolderChoice | None:
    names = {
        FolderKind.QUARANTINE: request.from_quarantine,
        FolderKind.RETIRED: request.from_retired,
    }
    chosen = [FolderChoice(kind, name) for kind, name in names.items() if name is not None]
    if len(chosen) > 1:
        raise ConfigurationError("--from-quarantine and --from-retired exclude each other")
    if chosen and request.with_tail:
        raise ConfigurationError(
            f"--with-tail and {chosen[0].kind.option} exclude each other: a tail follows the live "
            "archive"
        )
    return chosen[0] if chosen else None


def _require_archived(
    config: Config,
    request: RestoreRequest,
    wanted: Sequence[TopicPartition],
    partitions: Sequence[TopicPartition],
) -> None:
    """Refuse a selection without an archived partition, and a named partition that has none."""
    missing = [str(tp) for tp in partitions if tp not in wanted]
    if wanted and not missing:
        return
    names = ", ".join(missing or request.copy.topics)
    raise ConfigurationError(
        f"nothing is archived of {names} in the archive of cluster {config.cluster.name} at "
        f"{config.storage.url}; `sidetier ls` lists the archived topics"
    )


def _note_with_topic_ids(note: RestoreNote, created: Copy) -> str:
    """Return the note that the progress is committed with, with the ids of the archived and the
    created topic.
    """
    lineage = decode_lineage(created.lineage)
    if lineage is None:
        return note.encoded()
    return replace(note, lineage=replace(lineage, source_id=note.lineage.source_id)).encoded()

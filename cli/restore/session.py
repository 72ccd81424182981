"""One call of `sidetier restore`, from the configuration to the exit code.

Needs the packages of the extra `mirror`.
"""

import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sidetier.archive.access import ArchiveAccess, require_directory
from sidetier.archive.folders import ArchiveFolder
from sidetier.archive.objects.cluster_snapshots import last_definitions
from sidetier.archive.objects.layout import read_note
from sidetier.archive.positions import BEGINNING, END, PartitionRange, plan_ranges
from sidetier.archive.reader.reader import ArchiveReader
from sidetier.archive.topics import numbers_by_topic
from sidetier.cli.consume.reading import say
from sidetier.cli.export.spark_session import SUBMITTED
from sidetier.cli.mirror.on_spark import SPARK, copy_on_spark, require_engine
from sidetier.cli.mirror.options import ClusterOption, require_bootstrap, topic_rules
from sidetier.cli.mirror.session import copy_limits, run_engine
from sidetier.cli.mirror.view import CopyResult
from sidetier.cli.output import OutputFormat, emit
from sidetier.cli.progress import records_shown
from sidetier.cli.restore.folders import (
    FolderChoice,
    FolderKind,
    folder_archive,
    partitions_with_folders,
)
from sidetier.cli.restore.view import RestorePlan, RestoreResult
from sidetier.cli.stores import open_archive
from sidetier.config.model import Config
from sidetier.config.types import PropertyValue, References, SecretRef, resolved
from sidetier.leadership.cluster import as_texts
from sidetier.mirror.copy.archive_source import ArchiveSource
from sidetier.mirror.copy.engine import Copy, Engine
from sidetier.mirror.copy.offset_map import OffsetMap
from sidetier.mirror.copy.source import KafkaSource, OnGap
from sidetier.mirror.copy.target import KafkaTarget
from sidetier.mirror.hydrate.survey import archived_partitions
from sidetier.mirror.hydrate.verify import BrokerSide
from sidetier.mirror.offsets.translate import read_offset_map
from sidetier.mirror.restore.copy_check import ArchivedRecords, CheckedCopy, CopiedRange, check_copy
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
    PartitionTask,
    SparkCopy,
    TaskArchive,
    plan_tasks,
    rivals_of_one_process,
)
from sidetier.mirror.topics.catalog import Catalog
from sidetier.mirror.topics.planning import CatalogOptions, PlannedCopy
from sidetier.mirror.topics.rules import MirrorNames, TopicRules, decode_lineage
from sidetier.segments.cluster_state import TopicDefinition
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.names import DirectoryState, parse_partition_directory
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition
from sidetier.uploader.clock import SYSTEM_CLOCK
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

_CONNECTIONS = 16


def restore(config: Config, given: Mapping[str, Any], output: OutputFormat) -> int:
    """Restore the selected partitions; return the exit code.

    Raises:
        ConfigurationError: A setting or a target topic does not fit; nothing was restored.
        SidetierError: The archive or the target cannot be read or written.
    """
    with _opened(config, given) as session:
        plan = session.plan()
        if given["dry_run"]:
            emit(plan, output)
            return plan.exit_code
        if plan.problems:
            raise ConfigurationError("\n".join(plan.problems.values()))
        result = session.run(plan)
        emit(result, output)
        return result.exit_code


def target_references(config: Config, given: Mapping[str, Any]) -> References:
    """Return the target's client properties: those of `--target`, or else of the configuration.

    Raises:
        ConfigurationError: The address of the target is missing.
    """
    option = ClusterOption("target", given["target_properties"], given["target_config"])
    properties: dict[str, PropertyValue | SecretRef] = {**option.references()}
    if not properties:
        properties = config.broker.client_references()
    if given["bootstrap"] is not None:
        properties["bootstrap.servers"] = given["bootstrap"]
    return require_bootstrap(properties, "target")


def target_properties(config: Config, given: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the same properties with secrets resolved.

    Raises:
        ConfigurationError: The address of the target is missing, or a secret cannot be read.
    """
    return as_texts(resolved(target_references(config, given)))


@contextmanager
def _opened(config: Config, given: Mapping[str, Any]) -> Iterator["_Session"]:
    names = MirrorNames(given["name"] or config.cluster.name, "restore")
    rules, partitions = _selection(given)
    references = target_references(config, given)
    require_engine(given, {"target": references})
    properties = as_texts(resolved(references))
    settings = ClientSettings.from_properties(properties)
    require_directory(config.storage.url)
    stop = threading.Event()
    with ExitStack() as stack:
        archive = stack.enter_context(open_archive(config, connections=_CONNECTIONS, stop=stop))
        choice = _folder_choice(given)

        def selected(tp: TopicPartition) -> bool:
            named = [known for known in partitions if known.topic == tp.topic]
            return rules.selects(tp.topic) and (not named or tp in named)

        all_partitions, source, folders = archived_partitions(archive), archive, None
        if choice is not None:
            source, folders = folder_archive(archive, choice, selected)
            all_partitions = sorted(
                {*all_partitions, *partitions_with_folders(archive, choice.kind)}
            )
        wanted = [
            tp for tp in all_partitions if selected(tp) and (folders is None or tp in folders)
        ]
        _require_archived(config, given, wanted, partitions)
        records = stack.enter_context(closing(ArchivedRecords(source, given["max_batch_bytes"])))
        target = stack.enter_context(Cluster(settings))
        yield _Session(
            config,
            given,
            names,
            rules,
            archive,
            source,
            records,
            target,
            references,
            properties,
            all_partitions,
            wanted,
            folders or {},
            choice,
            stop,
        )


@dataclass(frozen=True, slots=True)
class _Session:
    """The open clients and stores of a running restore.

    Attributes:
        archive: The live archive.
        source: The archive to restore: the live one, or folders of it.
        all_partitions: All archived partitions.
        wanted: The partitions to restore.
        references: The target's client properties; secrets are references.
        properties: The same properties with secrets resolved.
        folders: Folder of each partition; empty for the live archive.
    """

    config: Config
    given: Mapping[str, Any]
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
            accept_cleanup=self.given["accept_cleanup"],
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

    def run(self, plan: RestorePlan) -> RestoreResult:
        """Create the topics, copy, and compare.

        Raises:
            SidetierError: As `Engine.run`, or the comparison cannot be made.
        """
        by_source = {partition.source: partition for partition in plan.partitions}
        catalog = self._catalog(self._definitions())
        created = catalog.copies()
        if catalog.refused:
            raise ConfigurationError("\n".join(catalog.refused.values()))
        copies = {
            tp: replace(created[tp], lineage=_note_with_topic_ids(partition.note, created[tp]))
            for tp, partition in by_source.items()
        }
        copy = self._copy_on_spark if self.given["engine"] == SPARK else self._copy_here
        copied = copy(plan, copies)
        # Spark tasks copy only the partitions that are not complete yet.
        reached = {tp: partition.restored_to for tp, partition in by_source.items()}
        reached |= {tp: lag.position for tp, lag in copied.counts.lags.items()}
        ends = {tp: partition.end for tp, partition in by_source.items()}
        if any(offset is None or offset < ends[tp] for tp, offset in reached.items()):
            return RestoreResult(plan, copied, stopped=True)
        if not self.given["verify"]:
            return RestoreResult(plan, copied)
        return self._checked(RestoreResult(plan, copied), copies)

    def _copy_here(self, plan: RestorePlan, copies: Mapping[TopicPartition, Copy]) -> CopyResult:
        by_source = {partition.source: partition for partition in plan.partitions}
        source = KafkaSource(
            None,
            ArchiveSource(self.source, abort_open=self._aborts_open),
            until={tp: partition.end for tp, partition in by_source.items()},
            on_gap=OnGap(self.given["on_gap"]),
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
            limits=copy_limits(self.given),
            refresh_seconds=None,
            stop=self.stop,
        )
        try:
            return run_engine(engine, self.stop, metrics_port=self.given["metrics_port"])
        finally:
            source.close()

    def _copy_on_spark(
        self, plan: RestorePlan, copies: Mapping[TopicPartition, Copy]
    ) -> CopyResult:
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
            copy_limits(self.given),
            self.references,
            archive=TaskArchive(
                self.config.cluster.name, self.config.storage, self.folders, self._aborts_open
            ),
            rivals=(self.names.transactional_id(),),
        )
        return copy_on_spark(
            copy, self.given["master"] or SUBMITTED, self.target, self.stop, planned=tasks
        )

    @property
    def _aborts_open(self) -> bool:
        """Whether transactions that are open at the archive's end count as aborted."""
        return bool(self.given["open_transactions"] == "abort")

    def _checked(
        self, result: RestoreResult, copies: Mapping[TopicPartition, Copy]
    ) -> RestoreResult:
        partitions = result.plan.partitions
        maps = read_offset_map(self.target, self.names.offsets_topic, max_runs=sys.maxsize)
        starts = list_offsets(
            self.target, dict.fromkeys([copy.target for copy in copies.values()], EARLIEST)
        )
        source, brokers = ArchiveSource(self.source), BrokerSide(self.properties)
        checked: dict[TopicPartition, CheckedCopy] = {}
        total = 2 * sum(partition.end - partition.start for partition in partitions)
        seen = 0
        with records_shown(total, wanted=True) as update:

            def tell(records: int) -> None:
                nonlocal seen
                seen += records
                update(seen, seen)
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
                        with_timestamps=not self.given["accept_log_append_time"],
                        progress=tell,
                    )
                except _StoppedError:
                    return replace(result, stopped=True, checked=checked)
        return replace(result, checked=checked)

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
                replication_factor=self.given["replication_factor"] or -1,
                accept_log_append_time=self.given["accept_log_append_time"],
                accept_records=True,  # `target_problems` checks them
                refuse_loops=False,
            ),
        )

    def _partitions(
        self,
        targets: Mapping[str, PlannedCopy],
        progress: Mapping[TopicPartition, CommittedOffset],
    ) -> list[PartitionRestore]:
        archive = ArchiveSource(self.source)
        partitions = []
        for course in self._courses(archive):
            planned = targets[course.tp.topic]
            target = TopicPartition(planned.target, course.tp.partition)
            before = progress.get(target)
            note = None if before is None else decode_note(before.metadata)
            start = Offset(course.start)
            # Without `--from`, a restore that continues keeps the start of its first run.
            if note is not None and self.given["begin"] is None:
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
                    archive_end=end if view is None else view.end,
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
                )
            )
        return partitions

    def _courses(self, archive: ArchiveSource) -> list[PartitionRange]:
        """Return the range of each partition; those without `offset.wm` are left out."""
        now_ms = int(SYSTEM_CLOCK.wall() * 1000)
        begin, end = self.given["begin"] or BEGINNING, self.given["end"] or END
        known = [tp for tp in self.wanted if archive.view(tp, _VIEW_SECONDS) is not None]
        for tp in sorted(set(self.wanted) - set(known)):
            say(f"{self.records.committed.where(tp)} has no offset.wm, so {tp} is left out")
        if not known:
            raise ConfigurationError(
                "none of the selected partitions has an offset.wm; the messages above name them"
            )
        return [
            course
            for topic, numbers in sorted(numbers_by_topic(known).items())
            for course in plan_ranges(
                ArchiveRanges(archive, self.records.committed, numbers, self._aborts_open),
                topic,
                begin,
                end,
                now_ms,
                on_note=say,
            )
        ]


_VIEW_SECONDS = 3600.0
"""Maximum age of a snapshot of the archive: all ranges are planned from the same one."""


class _StoppedError(Exception):
    """A signal has stopped the comparison."""


@dataclass(frozen=True, slots=True)
class ArchiveRanges:
    """Offsets of a topic's partitions that can be restored."""

    archive: ArchiveSource
    reader: ArchiveReader
    numbers: Sequence[int]
    aborts_open: bool

    def partitions(self) -> Sequence[int]:
        """See `Bounded`."""
        return self.numbers

    def bounds(self, tp: TopicPartition) -> OffsetRange:
        """See `Bounded`.

        The end is the first record of a transaction that is open at the archive's end, unless such
        transactions count as aborted.
        """
        view = self.archive.view(tp, _VIEW_SECONDS)
        if view is None:
            return OffsetRange(Offset(0), Offset(0))
        end = view.end if self.aborts_open else self.archive.last_stable_offset(tp, _VIEW_SECONDS)
        return OffsetRange(view.start, max(view.start, end or view.start))

    def offset_for_time(self, tp: TopicPartition, timestamp_ms: int) -> int | None:
        """See `Bounded`."""
        return self.reader.offset_for_time(tp, timestamp_ms)


def _selection(given: Mapping[str, Any]) -> tuple[TopicRules, Sequence[TopicPartition]]:
    """Return the topic rules, and the partitions that are named."""
    partitions = [_partition(text) for text in given["partitions"]]
    named = tuple(re.escape(tp.topic) for tp in partitions)
    rules = topic_rules((*given["topics"], *named), given["exclude"], given["rename"])
    return rules, partitions


def _partition(text: str) -> TopicPartition:
    parsed = parse_partition_directory(text)
    if parsed is None or parsed.state is not DirectoryState.LIVE:
        raise ConfigurationError(f"--partition {text!r}: give TOPIC-N, such as orders-3")
    return parsed.topic_partition


def _folder_choice(given: Mapping[str, Any]) -> FolderChoice | None:
    chosen = [
        FolderChoice(kind, given[f"from_{kind}"])
        for kind in FolderKind
        if given[f"from_{kind}"] is not None
    ]
    if len(chosen) > 1:
        raise ConfigurationError("--from-quarantine and --from-retired exclude each other")
    return chosen[0] if chosen else None


def _require_archived(
    config: Config,
    given: Mapping[str, Any],
    wanted: Sequence[TopicPartition],
    partitions: Sequence[TopicPartition],
) -> None:
    """Refuse a selection without an archived partition, and a named partition that has none."""
    missing = [str(tp) for tp in partitions if tp not in wanted]
    if wanted and not missing:
        return
    names = ", ".join(missing or given["topics"])
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

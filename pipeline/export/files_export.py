"""Export of topics to files, over all of its runs."""

import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from sidetier.archive.access import ArchiveAccess
from sidetier.config.model import Config
from sidetier.config.storage import StorageConfig
from sidetier.pipeline.errors import NoSuchTopicError
from sidetier.pipeline.export.exporting import (
    HeldBackReporter,
    Note,
    OnRound,
    broker_ends,
    no_notes,
    paused,
    wait_for_archive,
    waits,
    will_retry,
)
from sidetier.pipeline.export.held_back import HeldBack
from sidetier.pipeline.export.output import require_fencing
from sidetier.pipeline.export.report import ExportPlan, FilesReport
from sidetier.pipeline.export.request import FilesRequest
from sidetier.pipeline.export.sinks.files.engines import LocalEngine, SparkEngine, Watcher
from sidetier.pipeline.export.sinks.files.manifest import ManifestFile, manifest_key
from sidetier.pipeline.export.sinks.files.run import FilesRun, RunResult, files_read
from sidetier.pipeline.export.sinks.files.tasks import Connections, Engine
from sidetier.pipeline.export.source import ArchiveSource, Source, TailedSource
from sidetier.pipeline.export.tail.topics import TopicLogs
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.request import TopicPattern
from sidetier.pipeline.planning.split import Plan
from sidetier.pipeline.spark.session import spark_session
from sidetier.segments.errors import SidetierError, StorageError
from sidetier.segments.isolation import IsolationLevel
from sidetier.storage.port import RemoteStorage

_Each = Callable[[Callable[[str], None], list[str]], Iterable[None]]


@contextmanager
def open_files_export(
    config: Config,
    request: FilesRequest,
    target: StorageConfig,
    *,
    on_note: Note = no_notes,
    watcher: Watcher | None = None,
) -> Iterator["FilesExport"]:
    """Connect an export to the archive and its output; closed on exit.

    Args:
        config: Its `storage` is the archive, and its `broker` has the records of the tail.
        request: What is exported.
        target: The store of the output.
        on_note: Receives messages for an operator.
        watcher: Receives the progress of tasks that run in threads of this process.

    Raises:
        SidetierError: A store cannot be opened, or Spark does not start.
    """
    places = Connections(
        config.cluster.name, config.storage, target, config.broker, request.registry
    )
    with ExitStack() as stack:
        archive, store = stack.enter_context(places.open())
        require_fencing(store, target)
        shared = stack.enter_context(request.planner(archive))
        engine = stack.enter_context(_engine(request, places, archive, store, watcher))
        yield FilesExport(request, places, shared, store, engine, on_note)


@contextmanager
def _engine(
    request: FilesRequest,
    places: Connections,
    archive: ArchiveAccess,
    store: RemoteStorage,
    watcher: Watcher | None,
) -> Iterator[Engine]:
    # A dry run has no tasks, so it starts no Spark session.
    if request.master is None or request.dry_run:
        with LocalEngine(
            archive,
            store,
            request.workers,
            places.broker,
            watcher,
            request.max_batch_bytes,
            places.registry,
        ) as engine:
            yield engine
        return
    name = f"sidetier export files {' '.join((*request.topics, *request.patterns))}"
    with spark_session(request.master, name) as spark:
        yield SparkEngine(spark, places, request.max_batch_bytes)


@dataclass(frozen=True, slots=True)
class _Planned:
    """What the next run of a topic would do."""

    plan: Plan | None
    held_back: tuple[HeldBack, ...]
    resumes: bool


@dataclass(slots=True)
class FilesExport:
    """Exports topics in parallel, with a planner for each topic and one engine for all.

    An error of a topic ends that topic alone. With a single topic by name, the error ends the call.

    Attributes:
        shared: the planner of which each topic's planner is a part.
        topics: topics by name, and those that matched a pattern when it was last compared.
    """

    request: FilesRequest
    places: Connections
    shared: Planner
    store: RemoteStorage
    engine: Engine
    on_note: Note
    planners: dict[str, Planner] = field(default_factory=dict)
    topics: tuple[str, ...] = ()
    report: FilesReport = field(init=False)
    waiting: set[str] = field(default_factory=set)
    """Topics that wait until the archive has the outcome of a transaction."""
    reporter: HeldBackReporter = field(init=False)
    guard: threading.Lock = field(default_factory=threading.Lock)
    """Protects state that the threads of several topics change."""

    def __post_init__(self) -> None:
        into = f"{self.places.target.url}/{self.request.options.topics_dir}"
        self.report = FilesReport(into)
        self.reporter = HeldBackReporter(self.on_note)
        self._include(self.request.topics)

    def _include(self, topics: Iterable[str]) -> None:
        self.topics = tuple(dict.fromkeys((*self.topics, *topics)))
        for topic in self.topics:
            if topic not in self.planners:
                self.planners[topic] = self.shared.another()

    def _find_topics(self) -> None:
        """Include the archived topics that match a pattern.

        Raises:
            NoSuchTopicError: no archived topic matches a pattern, and the export does not follow.
            StorageError: the archive cannot be listed, and the export does not follow.
        """
        for pattern in self.request.patterns:
            try:
                self._include(self._matching(pattern))
            except (NoSuchTopicError, StorageError) as error:
                if self.request.follow is None:
                    raise
                self.on_note(f"{error}; compared again in {self.request.follow:g} s")

    def _matching(self, pattern: str) -> list[str]:
        found = sorted({tp.topic for tp in self.shared.partitions(TopicPattern(pattern))})
        if not found:
            raise NoSuchTopicError(
                f"{pattern}: matches the whole name of no archived topic of the cluster "
                f"{self.places.cluster}; `sidetier ls` lists the archived topics"
            )
        return found

    def _open(self) -> list[str]:
        return [topic for topic in self.topics if topic not in self._failed]

    @property
    def _waits_for_topics(self) -> bool:
        return self.request.follow is not None and not self.topics

    @property
    def _is_alone(self) -> bool:
        return len(self.request.topics) == 1 and not self.request.patterns

    def dry_run(self) -> ExportPlan:
        """Return what a run would do."""
        planned: list[_Planned] = []
        self._find_topics()
        for topic in self.topics:
            self._or_fail(topic, lambda: planned.append(self._planned(topic)))  # noqa: B023 -- called at once
        held_back = tuple(partition for topic in planned for partition in topic.held_back)
        self.reporter.report(held_back)
        return ExportPlan(
            self.report.into,
            tuple(topic.plan for topic in planned if topic.plan is not None),
            any(topic.resumes for topic in planned),
            held_back,
            topics=len(self.topics),
            failed=self._failed,
            waits=bool(self.waiting),
        )

    def _planned(self, topic: str) -> _Planned:
        files_run = self._files_run(topic)
        remaining = files_run.remaining()
        run = files_run.plan_next(remaining)
        held_back = files_run.held_back(remaining, remaining.state.next_offsets)
        plan = None if run is None else files_run.plan(run, refuse=False)
        self._note_waiting(topic, files_run.source)
        return _Planned(plan, held_back, remaining.resumes)

    def run(
        self, stop: threading.Event, on_round: OnRound = lambda _held_back, _failed: None
    ) -> FilesReport:
        """Export; with `follow` until `stop`, which takes effect between two runs.

        Raises:
            SidetierError: The export failed; what was committed remains.
        """
        follow = self.request.follow
        self._find_topics()
        if self.request.abandon_plan:
            for topic in self.topics:
                self._or_fail(topic, lambda: self._abandon_plan(topic))  # noqa: B023
        self.report.is_missing = self._wait_for_tail(stop)
        with self._side_by_side(stop) as each:
            while (topics := self._open()) or self._waits_for_topics:
                list(each(lambda topic: self._export(topic, stop), topics))
                on_round(self.report.held_back.values(), len(self._failed))
                if follow is None or stop.wait(follow):
                    break
                self._find_topics()
        self.report.topics, self.report.waits = len(self.topics), bool(self.waiting)
        return self.report

    @property
    def _failed(self) -> dict[str, Exception]:
        return self.report.failed

    @contextmanager
    def _side_by_side(self, stop: threading.Event) -> Iterator[_Each]:
        """Yield a function that calls another one with each topic, `workers` at once."""
        if self._is_alone:
            yield map
            return
        pool = ThreadPoolExecutor(self.request.workers, "export-topic")
        try:
            yield pool.map
        except BaseException:  # after Ctrl-C the topics' threads would go on
            stop.set()
            self.engine.cancel()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _export(self, topic: str, stop: threading.Event) -> None:
        """Export one topic up to what is available now."""
        files_run = self._files_run(topic)

        def export() -> None:
            remaining = files_run.commit_all(stop.is_set)
            if remaining is not None:
                held_back = files_run.held_back(remaining, remaining.state.next_offsets)
                with self.guard:
                    self.report.hold_back(topic, held_back)
                self.reporter.report(held_back, topic)
            self._note_waiting(topic, files_run.source)

        self._or_fail(topic, export, self._can_pass)

    def _committed(self, topic: str, result: RunResult) -> None:
        with self.guard:
            self.report.add(topic, result)

    def _or_fail(
        self,
        topic: str,
        step: Callable[[], object],
        can_pass: Callable[[str, SidetierError], bool] = lambda _topic, _error: False,
    ) -> None:
        """Run a step for one topic.

        With several topics, its error ends this topic alone. An error that `can_pass` accepts ends
        nothing.
        """
        try:
            step()
        except Exception as error:
            if isinstance(error, SidetierError) and can_pass(topic, error):
                return
            if self._is_alone:
                raise
            if not isinstance(error, SidetierError | OSError):
                self.on_note(traceback.format_exc())
            self.on_note(f"{topic}: failed, and is left out: {str(error) or type(error).__name__}")
            with self.guard:
                self._failed[topic] = error

    def _abandon_plan(self, topic: str) -> None:
        if self._files_run(topic).abandon_plan():
            self.on_note(f"{topic}: the plan of an earlier run was withdrawn")

    def _note_waiting(self, topic: str, source: Source) -> None:
        with self.guard:
            (self.waiting.add if waits(source) else self.waiting.discard)(topic)

    def _can_pass(self, topic: str, error: SidetierError) -> bool:
        blind = self._files_run(topic).offsets_without_epoch
        follows = self.request.follow is not None
        return follows and will_retry(error, self.planners[topic], blind, self.on_note)

    def _files_run(self, topic: str) -> FilesRun:
        request = self.request
        key = manifest_key(request.options.topics_dir, topic)
        return FilesRun(
            self._source(topic),
            request.terms,
            topic,
            request.options,
            ManifestFile(self.store, key, self.places.target.url),
            self.engine,
            None if request.requested is None else str(request.requested),
            request.accept_changes,
            self.on_note,
            partial(self._committed, topic),
        )

    def _source(self, topic: str) -> Source:
        archived = self._archived(topic)
        if self.request.tail != "kafka":
            return archived
        logs = TopicLogs(self.planners[topic], self.places.broker, (topic,), say=self.on_note)
        return TailedSource(archived, logs)

    def _archived(self, topic: str) -> ArchiveSource:
        read = files_read(topic, IsolationLevel(self.request.options.isolation))
        planner = self.planners[topic]
        return ArchiveSource(
            self.places.cluster, planner, read, self.request.requested, self.on_note
        )

    def _wait_for_tail(self, stop: threading.Event) -> bool:
        """Wait as long as allowed; return whether records are still on the brokers alone."""
        if self.request.tail != "wait":
            return False
        pause = paused(stop, self.request.patience)
        missing: list[bool] = []
        for topic in self.topics:
            self._or_fail(topic, lambda: missing.append(self._lacks(topic, pause)))  # noqa: B023
        return any(missing)

    def _lacks(self, topic: str, pause: Callable[[], bool]) -> bool:
        isolation = self.request.options.isolation
        wanted = broker_ends(self.places.broker, topic, isolation)
        stored = partial(self._archived(topic).archive_ends, topic)
        return wait_for_archive(
            topic, wanted, stored, pause, self.on_note, partial(self._can_pass, topic)
        )

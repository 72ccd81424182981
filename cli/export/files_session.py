"""One call of `sidetier export files`, from the configuration to the exit code."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Final

import click

from sidetier.cli.export.files_request import FilesRequest
from sidetier.cli.export.progress import Counter, shown
from sidetier.cli.export.session import spark_session
from sidetier.cli.export.tail import broker_ends, exit_code, read_by, told_lacking
from sidetier.cli.export.targets import target_of
from sidetier.cli.export.view import DryRun, ExportResult
from sidetier.cli.output import OutputFormat, emit
from sidetier.config.model import Config
from sidetier.pipeline.export.engines.local import LocalEngine
from sidetier.pipeline.export.engines.places import Places, require_fencing
from sidetier.pipeline.export.engines.spark import SparkEngine
from sidetier.pipeline.export.files.job import FilesJob
from sidetier.pipeline.export.files.parts import Engine, Source
from sidetier.pipeline.export.files.source import ArchiveSource
from sidetier.pipeline.export.files.tailed import TailedSource
from sidetier.pipeline.export.rounds import is_worth_another
from sidetier.pipeline.export.state.keeping import ManifestKeeper, manifest_key
from sidetier.pipeline.export.tables.progress import Offsets
from sidetier.pipeline.export.tail.topics import TopicLogs
from sidetier.pipeline.planning.planner import Planner
from sidetier.segments.errors import SidetierError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.endpoints import ArchiveAccess
from sidetier.storage.port import RemoteStorage

_TAIL_SECONDS: Final = 5.0


def export_files(config: Config, request: FilesRequest, output: OutputFormat) -> int:
    """Export what was asked for; the exit code.

    Raises:
        SidetierError: it cannot be done; what was committed stays.
    """
    target = target_of(config.storage, request.into, request.into_config)
    broker = config.broker
    if request.tail == "kafka":
        broker = read_by(broker, request.bootstrap, request.kafka)
    places = Places(config.cluster.name, config.storage, target, broker)
    with ExitStack() as stack:
        archive, store = stack.enter_context(places.open())
        require_fencing(store, target)
        planner = stack.enter_context(Planner(archive, max_batch_bytes=request.max_batch_bytes))
        counter = stack.enter_context(shown(wanted=not request.dry_run))
        engine = stack.enter_context(_engine(request, places, archive, store, counter))
        calls = _Calls(config, request, places, planner, store, engine)
        return calls.dry_run(output) if request.dry_run else calls.run(output)


@contextmanager
def _engine(
    request: FilesRequest,
    places: Places,
    archive: ArchiveAccess,
    store: RemoteStorage,
    counter: Counter,
) -> Iterator[Engine]:
    if request.master is None or request.dry_run:
        yield LocalEngine(
            archive,
            store,
            request.workers,
            places.broker,
            counter.add,
            request.max_batch_bytes,
        )
        return
    name = f"sidetier export files {' '.join(request.topics)}"
    with spark_session(request.master, name) as spark:
        yield SparkEngine(spark, places, request.max_batch_bytes)


def _waits(job: FilesJob) -> bool:
    return isinstance(job.source, TailedSource) and bool(job.source.logs.waiting)


def say(text: str) -> None:
    """A word beside the result."""
    click.echo(f"sidetier: {text}", err=True)


@dataclass(frozen=True, slots=True)
class _Calls:
    config: Config
    request: FilesRequest
    places: Places
    planner: Planner
    store: RemoteStorage
    engine: Engine

    def dry_run(self, output: OutputFormat) -> int:
        """Show what would be done."""
        plans, resumed, waits = [], False, False
        for job in map(self._job, self.request.topics):
            run, goes_on = job.next_run(job.look())
            resumed |= goes_on
            if run is not None:
                plans.append(job.plan(run, refuse=False))
            waits |= _waits(job)
        emit(DryRun(self._into, tuple(plans), resumed), output)
        missing = any(plan.missing for plan in plans)
        return exit_code(findings=missing, waits=waits, fail_on_data_loss=False)

    def run(self, output: OutputFormat) -> int:
        """Export; with `follow` until a signal says stop, which ends between two runs."""
        result = ExportResult(self._into)
        with stopping(wanted=self.request.follow is not None) as stop:
            lacking = self._wait_for_tail(stop)
            while True:
                waits = self._round(result, stop)
                if self.request.follow is None or stop.wait(self.request.follow):
                    break
        emit(result, output)
        return exit_code(
            findings=result.has_findings or lacking,
            waits=waits,
            fail_on_data_loss=self.request.options.fail_on_data_loss,
        )

    @property
    def _into(self) -> str:
        return f"{self.places.target.url}/{self.request.options.topics_dir}"

    def _round(self, result: ExportResult, stop: threading.Event) -> bool:
        """Each topic up to what is there now; whether one has to wait for the archive."""
        waits = False
        for topic in self.request.topics:
            job = self._job(topic)
            while not stop.is_set():
                try:
                    done = job.once()
                except SidetierError as error:
                    if not self._can_pass(error):
                        raise
                    break
                letters = None if done.run is None else done.run.options.dead_letters
                result.add(topic, done, letters)
                if done.run is None:
                    break
            waits |= _waits(job)
        return waits

    def _can_pass(self, error: SidetierError) -> bool:
        follows = self.request.follow is not None
        return follows and told_again(error, self.planner, self._exported_blindly)

    def _exported_blindly(self) -> dict[TopicPartition, Offset]:
        jobs = map(self._job, self.request.topics)
        return {tp: offset for job in jobs for tp, offset in job.exported_blindly().items()}

    def _job(self, topic: str) -> FilesJob:
        options = self.request.options
        key = manifest_key(options.topics_dir, topic)
        return FilesJob(
            self.places.cluster,
            topic,
            options,
            ManifestKeeper(self.store, key, self.places.target.url),
            self._source(topic),
            self.engine,
            None if self.request.asked is None else str(self.request.asked),
            self.request.chunk,
            self.request.accept_changes,
            self.request.reread,
            say,
            self.request.chunk_bytes,
        )

    def _source(self, topic: str) -> Source:
        archived = self._archived(topic)
        if self.request.tail != "kafka":
            return archived
        logs = TopicLogs(self.planner, self.places.broker, (topic,), said=say)
        return TailedSource(archived, logs)

    def _archived(self, topic: str) -> ArchiveSource:
        isolation = IsolationLevel(self.request.options.isolation)
        return ArchiveSource(self.planner, topic, isolation, self.request.asked, say)

    def _wait_for_tail(self, stop: threading.Event) -> bool:
        """Whether records are on the broker alone, after as long a wait as is allowed."""
        if self.request.tail != "wait":
            return False
        pause = paused(stop, self.request.patience)
        lacking = False
        for topic in self.request.topics:
            isolation = self.request.options.isolation
            wanted = broker_ends(self.config.broker, self.request.bootstrap, topic, isolation)
            stored = self._archived(topic).ends
            lacking |= told_lacking(topic, wanted, stored, pause, say, self._can_pass)
        return lacking


def told_again(
    error: SidetierError, planner: Planner, exported_blindly: Callable[[], Offsets]
) -> bool:
    """`is_worth_another`, and say so."""
    again = is_worth_another(error, planner, exported_blindly)
    if again:
        say(f"{error}; tried again")
    return again


def paused(stop: threading.Event, patience: float) -> Callable[[], bool]:
    """Waits a while; False once so many seconds are over, or somebody says stop."""
    end = monotonic() + patience

    def pause() -> bool:
        left = end - monotonic()
        return left > 0 and not stop.wait(min(left, _TAIL_SECONDS))

    return pause


@contextmanager
def stopping(*, wanted: bool) -> Iterator[threading.Event]:
    """Is set by SIGTERM or SIGINT, where that is wanted; a second one ends at once."""
    stop = threading.Event()
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}

    def heard(number: int, _frame: object) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, heard)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

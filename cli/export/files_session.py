"""One call of `sidetier export files`, from the configuration to the exit code."""

import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Final, TextIO

import click

from sidetier.archive.access import ArchiveAccess
from sidetier.cli import exits
from sidetier.cli.export.metrics_file import write_metrics
from sidetier.cli.export.request import FilesRequest
from sidetier.cli.export.session import spark_session
from sidetier.cli.export.tail import broker_ends, exit_code, read_by, told_lacking
from sidetier.cli.export.targets import target_of
from sidetier.cli.export.view import DryRun, ExportResult
from sidetier.cli.output import OutputFormat, emit
from sidetier.config.model import Config
from sidetier.pipeline.export.engines.local import LocalEngine
from sidetier.pipeline.export.engines.spark import SparkEngine
from sidetier.pipeline.export.engines.tasks import Places, require_fencing
from sidetier.pipeline.export.files.job import FilesJob, NextRun
from sidetier.pipeline.export.files.ports import Engine, Source
from sidetier.pipeline.export.files.source import ArchiveSource
from sidetier.pipeline.export.files.tailed import TailedSource
from sidetier.pipeline.export.held_back import Cause, HeldBack
from sidetier.pipeline.export.retries import should_retry
from sidetier.pipeline.export.state.manifest_file import ManifestFile, manifest_key
from sidetier.pipeline.export.tables.progress import Offsets
from sidetier.pipeline.export.tail.topics import TopicLogs
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.split import Plan
from sidetier.segments.errors import ConfigurationError, SidetierError
from sidetier.segments.isolation import IsolationLevel
from sidetier.storage.port import RemoteStorage


@dataclass(slots=True)
class Counter:
    """Adds up the progress of an export's tasks, which call it on their threads.

    Attributes:
        show: Called with the offsets that are done, their total so far, and the records that were
            read. The total grows with each run that begins: with `--chunk`, and for each topic.
    """

    show: Callable[[int, int, int], None] = field(default=lambda _done, _total, _records: None)
    done: int = 0
    total: int = 0
    records: int = 0
    guard: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, offsets: int) -> None:
        """See `Watcher`."""
        with self.guard:
            self.total += offsets
            self.show(self.done, self.total, self.records)

    def advance(self, offsets: int, records: int) -> None:
        """See `Watcher`."""
        with self.guard:
            self.done += offsets
            self.records += records
            self.show(self.done, self.total, self.records)


@contextmanager
def shown(*, wanted: bool, stream: TextIO | None = None) -> Iterator[Counter]:
    """Show a bar on standard error; nothing if it is not a terminal."""
    target = stream if stream is not None else sys.stderr
    if not wanted or not target.isatty():
        yield Counter()
        return
    from rich.console import Console  # noqa: PLC0415 -- only needed on a terminal
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.fields[records]:,} records"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} offsets"),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=Console(file=target), transient=True) as drawn:
        task = drawn.add_task("", total=0, records=0)
        yield Counter(
            lambda done, total, records: drawn.update(
                task, completed=done, total=total, records=records
            )
        )


_TAIL_SECONDS: Final = 5.0

_Each = Callable[[Callable[[str], None], list[str]], Iterable[None]]


def export_files(config: Config, request: FilesRequest, output: OutputFormat) -> int:
    """Export what the request names; return the exit code.

    Raises:
        SidetierError: The export failed; what was committed remains.
    """
    target = target_of(config.storage, request.into, request.into_config)
    broker = config.broker
    if request.tail == "kafka":
        broker = read_by(broker, request.bootstrap, request.kafka)
    places = Places(config.cluster.name, config.storage, target, broker, request.registry)
    with ExitStack() as stack:
        archive, store = stack.enter_context(places.open())
        require_fencing(store, target)
        shared = stack.enter_context(Planner(archive, max_batch_bytes=request.max_batch_bytes))
        planners = {topic: shared.another() for topic in request.topics}
        counter = stack.enter_context(shown(wanted=not request.dry_run))
        engine = stack.enter_context(_engine(request, places, archive, store, counter))
        call = _Call(config, request, places, planners, store, engine)
        return call.dry_run(output) if request.dry_run else call.run(output)


@contextmanager
def _engine(
    request: FilesRequest,
    places: Places,
    archive: ArchiveAccess,
    store: RemoteStorage,
    counter: Counter,
) -> Iterator[Engine]:
    if request.master is None or request.dry_run:
        with LocalEngine(
            archive,
            store,
            request.workers,
            places.broker,
            counter,
            request.max_batch_bytes,
            places.registry,
        ) as engine:
            yield engine
        return
    name = f"sidetier export files {' '.join(request.topics)}"
    with spark_session(request.master, name) as spark:
        yield SparkEngine(spark, places, request.max_batch_bytes)


def say(text: str) -> None:
    """Print a message to standard error."""
    click.echo(f"sidetier: {text}", err=True)


class Teller:
    """Prints which partitions are held back and need attention.

    It prints each change once: with `--follow`, every run reports all of them again.
    """

    def __init__(self) -> None:
        self._told: dict[str, set[tuple[str, Cause, int]]] = {}

    def tell(self, held_back: Iterable[HeldBack], topic: str = "") -> None:
        """Report what is held back now, of one topic or of all."""
        findings = {
            (str(finding.tp), finding.cause, finding.offset): finding.detail
            for finding in held_back
            if finding.is_finding
        }
        reported = self._told.get(topic, set())
        self._told[topic] = set(findings)
        for finding, detail in findings.items():
            if finding not in reported:
                say(detail)


@dataclass(slots=True)
class _Call:
    """Exports topics in parallel, with a planner for each topic and one engine for all.

    An error of a topic ends that topic alone. With a single topic, the error ends the call.
    """

    config: Config
    request: FilesRequest
    places: Places
    planners: Mapping[str, Planner]
    store: RemoteStorage
    engine: Engine
    result: ExportResult = field(init=False)
    waiting: set[str] = field(default_factory=set)
    """Topics that wait until the archive has the outcome of a transaction."""
    teller: Teller = field(default_factory=Teller)
    guard: threading.Lock = field(default_factory=threading.Lock)
    """Protects state that the threads of several topics change."""

    def __post_init__(self) -> None:
        into = f"{self.places.target.url}/{self.request.options.topics_dir}"
        self.result = ExportResult(into)

    def dry_run(self, output: OutputFormat) -> int:
        """Show what a run would do; return the exit code."""
        planned: list[tuple[Plan | None, NextRun]] = []
        for topic in self.request.topics:
            self._or_fail(topic, lambda: planned.append(self._planned(topic)))  # noqa: B023 -- called at once
        plans = tuple(plan for plan, _ in planned if plan is not None)
        held_back = tuple(partition for _, next_run in planned for partition in next_run.held_back)
        self.teller.tell(held_back)
        resumed = any(next_run.resumed for _, next_run in planned)
        emit(DryRun(self.result.into, plans, resumed, held_back), output)
        missing = any(plan.missing for plan in plans)
        return self._code(findings=missing or any(partition.is_finding for partition in held_back))

    def _planned(self, topic: str) -> tuple[Plan | None, NextRun]:
        job = self._job(topic)
        next_run = job.next_run(job.look())
        plan = None if next_run.run is None else job.plan(next_run.run, refuse=False)
        self._note_waiting(job)
        return plan, next_run

    def run(self, output: OutputFormat) -> int:
        """Export; with `follow` until a signal, which takes effect between two runs."""
        follow = self.request.follow
        with stopping(wanted=follow is not None) as stop:
            if self.request.abandon_plan:
                for topic in self.request.topics:
                    self._or_fail(topic, lambda: self._abandon_plan(topic))  # noqa: B023
            is_missing = self._wait_for_tail(stop)
            with self._side_by_side(stop) as each:
                while topics := [name for name in self.request.topics if name not in self._failed]:
                    list(each(lambda topic: self._export(topic, stop), topics))
                    self._write_metrics()
                    if follow is None or stop.wait(follow):
                        break
        emit(self.result, output)
        return self._code(findings=self.result.has_findings or is_missing)

    def _write_metrics(self) -> None:
        if self.request.metrics_file is not None:
            held_back = self.result.held_back.values()
            write_metrics(self.request.metrics_file, held_back, len(self._failed))

    @property
    def _failed(self) -> dict[str, Exception]:
        return self.result.failed

    def _code(self, *, findings: bool) -> int:
        if self._failed:
            errors = self._failed.values()
            is_usage = all(isinstance(error, ConfigurationError) for error in errors)
            is_all = len(errors) == len(self.request.topics)
            return exits.MISCONFIGURED if is_usage and is_all else exits.FAILED
        return exit_code(
            findings=findings,
            waits=bool(self.waiting),
            fail_on_data_loss=not self.request.dry_run and self.request.options.fail_on_data_loss,
        )

    @contextmanager
    def _side_by_side(self, stop: threading.Event) -> Iterator[_Each]:
        """Yield a function that calls another one with each topic, `workers` at once."""
        if len(self.request.topics) == 1:
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
        job = self._job(topic)

        def export() -> None:
            while not stop.is_set():
                done = job.once()
                with self.guard:
                    letters = None if done.run is None else done.run.options.dead_letters
                    self.result.add(topic, done, letters)
                if done.run is None:
                    self.teller.tell(done.held_back, topic)
                    break
            self._note_waiting(job)

        self._or_fail(topic, export, self._can_pass)

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
            if len(self.request.topics) == 1:
                raise
            if not isinstance(error, SidetierError | OSError):
                click.echo(traceback.format_exc(), err=True)
            say(f"{topic}: failed, and is left out: {str(error) or type(error).__name__}")
            with self.guard:
                self._failed[topic] = error

    def _abandon_plan(self, topic: str) -> None:
        if self._job(topic).abandon_plan():
            say(f"{topic}: the plan of an earlier run was withdrawn")

    def _note_waiting(self, job: FilesJob) -> None:
        waits = isinstance(job.source, TailedSource) and bool(job.source.logs.waiting)
        with self.guard:
            (self.waiting.add if waits else self.waiting.discard)(job.topic)

    def _can_pass(self, topic: str, error: SidetierError) -> bool:
        blind = self._job(topic).offsets_without_epoch
        follows = self.request.follow is not None
        return follows and told_again(error, self.planners[topic], blind)

    def _job(self, topic: str) -> FilesJob:
        options = self.request.options
        key = manifest_key(options.topics_dir, topic)
        return FilesJob(
            self.places.cluster,
            topic,
            options,
            ManifestFile(self.store, key, self.places.target.url),
            self._source(topic),
            self.engine,
            None if self.request.asked is None else str(self.request.asked),
            self.request.chunk,
            self.request.accept_changes,
            self.request.reread,
            say,
            self.request.chunk_bytes,
            round(self.request.transaction_timeout * 1000),
        )

    def _source(self, topic: str) -> Source:
        archived = self._archived(topic)
        if self.request.tail != "kafka":
            return archived
        logs = TopicLogs(self.planners[topic], self.places.broker, (topic,), said=say)
        return TailedSource(archived, logs)

    def _archived(self, topic: str) -> ArchiveSource:
        isolation = IsolationLevel(self.request.options.isolation)
        return ArchiveSource(self.planners[topic], topic, isolation, self.request.asked, say)

    def _wait_for_tail(self, stop: threading.Event) -> bool:
        """Wait as long as allowed; return whether records are still on the brokers alone."""
        if self.request.tail != "wait":
            return False
        pause = paused(stop, self.request.patience)
        missing: list[bool] = []
        for topic in self.request.topics:
            self._or_fail(topic, lambda: missing.append(self._lacks(topic, pause)))  # noqa: B023
        return any(missing)

    def _lacks(self, topic: str, pause: Callable[[], bool]) -> bool:
        isolation = self.request.options.isolation
        wanted = broker_ends(self.config.broker, self.request.bootstrap, topic, isolation)
        stored = self._archived(topic).ends
        can_pass = partial(self._can_pass, topic)
        return told_lacking(topic, wanted, stored, pause, say, can_pass)


def told_again(
    error: SidetierError, planner: Planner, offsets_without_epoch: Callable[[], Offsets]
) -> bool:
    """Return `should_retry`, and print a message if it is true."""
    again = should_retry(error, planner, offsets_without_epoch)
    if again:
        say(f"{error}; tried again")
    return again


def paused(stop: threading.Event, patience: float) -> Callable[[], bool]:
    """Return a function that waits a while.

    It returns False once `patience` seconds have passed, or when `stop` is set.
    """
    end = monotonic() + patience

    def pause() -> bool:
        left = end - monotonic()
        return left > 0 and not stop.wait(min(left, _TAIL_SECONDS))

    return pause


@contextmanager
def stopping(*, wanted: bool) -> Iterator[threading.Event]:
    """Yield an event that SIGTERM or SIGINT sets, if that is wanted; a second signal ends
    at once.
    """
    stop = threading.Event()
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT)}

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

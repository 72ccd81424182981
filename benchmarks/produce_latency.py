"""Produce latency: the effect of a catch-up on the broker's clients."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

import click
from lib import steady
from lib.backlog import broker, create_topic, fill
from lib.clock import monotonic, pause
from lib.options import benchmark_options, work_directory
from lib.processes import give_way
from lib.results import Report, Spread, Target
from lib.sidecar import Setup, Sidecar
from lib.stores import StandIn

from devtools.sandbox.kafka import KraftCluster

_STEADY, _BACKLOG = "steady", "backlog"
_STEADY_PARTITIONS, _BACKLOG_PARTITIONS = 8, 8
_RATE, _VALUE_BYTES = 2000, 1000
_SEGMENT_BYTES = 64 << 20
_WARM_SECONDS = 10.0
_READY_TIMEOUT = 60.0
_KINDS = ("without", "with", "with a cap", "curl in its place")
_CURLS = 8
_HOW = """\
A producer sends {rate:,} records of 1 kB a second to a KRaft broker (4.3.1), for all of a round;
the latency of a record is the time from its due moment to its acknowledgement. Each round has a
window per kind, in changing order: no sidecar; the sidecar catching up another topic of the same
broker, {backlog:.1f} GiB in segments of 64 MiB, with its default settings; the same with
`uploader.max_bytes_per_second: {cap}`; and, to compare with the same load without a sidecar,
{curls} curl processes in the sidecar's place, which send the same segments at the lowest priority
(SCHED_IDLE). A window begins once the sidecar is ready, and ends before the catch-up does, after
{window:g} s at the latest. The store is {store}. {runs} rounds; ratios compare windows of the same
round. Sent bytes are counted as they arrive."""

_STAND_IN = """\
a stand-in that discards data, at the lowest priority: in production it would be another machine"""


@dataclass(frozen=True, slots=True)
class Plan:
    """Duration, amount of data, and bandwidth cap."""

    rounds: int
    window: float
    backlog_bytes: int
    cap: str


@dataclass(frozen=True, slots=True)
class Window:
    """One kind in one round; latencies in seconds."""

    kind: str
    seconds: float
    records: int
    median: float
    p99: float
    most: float
    uploaded_bytes: int
    sidecar_cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Span:
    """A time span, and the work done in it."""

    kind: str
    began: float
    ended: float
    uploaded_bytes: int = 0
    cpu_seconds: float = 0.0


class Bench:
    """A broker with a backlog, and a store."""

    def __init__(self, directory: Path, cluster: KraftCluster, store: StandIn, plan: Plan) -> None:
        self._directory = directory
        self._cluster = cluster
        self._store = store
        self._plan = plan
        self._settings: Mapping[str, Mapping[str, Any]] = {
            "with": {},
            "with a cap": {"max_bytes_per_second": plan.cap},
        }

    def round(self, number: int) -> list[Window]:
        """Run each kind once beside the producer."""
        kinds = list(_KINDS)
        turn = number % len(kinds)
        arguments = [
            self._cluster.bootstrap_servers,
            _STEADY,
            _STEADY_PARTITIONS,
            _RATE,
            _VALUE_BYTES,
        ]
        line = [sys.executable, steady.__file__, *map(str, arguments)]
        with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as producer:
            try:
                pause(_WARM_SECONDS)
                spans = [self._span(kind) for kind in kinds[turn:] + kinds[:turn]]
            finally:
                producer.terminate()
            text, _ = producer.communicate(timeout=60)
        rows = [tuple(map(float, line.split())) for line in text.splitlines()]
        return [_window(span, rows) for span in spans]

    def _span(self, kind: str) -> Span:
        self._store.clear()
        self._store.reset()
        if kind in self._settings:
            return self._catch_up(kind, self._settings[kind])
        pause(2.0)
        with self._curls() if kind != "without" else nullcontext():
            began, before = monotonic(), self._store.received_bytes()
            pause(self._plan.window)
            return Span(kind, began, monotonic(), self._store.received_bytes() - before)

    @contextmanager
    def _curls(self) -> Iterator[None]:
        """Upload the closed segments repeatedly, with one curl process per sidecar thread."""
        files = sorted(self._cluster.log_dirs(1)[0].glob(f"{_BACKLOG}-*/*.log"))
        started = []
        for number in range(_CURLS):
            config = self._directory / f"curl-{number}"
            lines = [
                f'upload-file = "{path}"\nurl = "{self._store.url}/curl/{path.parent.name}"'
                for path in files[number::_CURLS]
                if path.stat().st_size > _SEGMENT_BYTES // 2
            ]
            config.write_text("silent\nfail\n" + "\nnext\nsilent\nfail\n".join(lines * 100))
            line = ["chrt", "--idle", "0", "curl", "--disable", "--config", str(config)]
            started.append(subprocess.Popen(line, start_new_session=True))
            give_way(started[-1].pid)
        try:
            yield
        finally:
            for process in started:
                process.kill()
                process.wait()

    def _catch_up(self, kind: str, uploader: Mapping[str, Any]) -> Span:
        """Run a catch-up. Only time with uploads counts."""
        more = {
            "broker": {"bootstrap_servers": self._cluster.bootstrap_servers},
            "leadership": {"source": "auto"},
            "topics": {"include": [_BACKLOG]},
            "uploader": uploader,
        }
        setup = Setup(
            self._directory,
            self._cluster.log_dirs(1),
            self._store.storage,
            more,
            self._store.environment,
        )
        with Sidecar(setup) as sidecar:
            sidecar.wait_until_ready(_READY_TIMEOUT)
            began, cpu = monotonic(), sidecar.cpu_seconds
            before = self._store.received_bytes()
            with suppress(TimeoutError):
                sidecar.wait_until(self._is_nearly_done, self._plan.window, "", poll=0.1)
            ended, cpu = monotonic(), sidecar.cpu_seconds - cpu
            return Span(kind, began, ended, self._store.received_bytes() - before, cpu)

    def _is_nearly_done(self) -> bool:
        """Return whether few segments are left: idle workers would distort the result."""
        last = 2 * _BACKLOG_PARTITIONS * _SEGMENT_BYTES
        return self._store.received_bytes() >= self._plan.backlog_bytes - last


def _window(span: Span, rows: Sequence[tuple[float, ...]]) -> Window:
    latencies = [latency for due, latency in rows if span.began <= due < span.ended]
    cuts = quantiles(latencies, n=100, method="inclusive")
    window = Window(
        span.kind,
        span.ended - span.began,
        len(latencies),
        cuts[49],
        cuts[98],
        max(latencies),
        span.uploaded_bytes,
        span.cpu_seconds,
    )
    print(window, file=sys.stderr)
    return window


def measure(directory: Path, plan: Plan) -> list[list[Window]]:
    """Measure all rounds."""
    with ExitStack() as stack:
        cluster = stack.enter_context(broker(directory / "kafka"))
        store = stack.enter_context(StandIn(directory, gives_way=True))
        create_topic(cluster, _STEADY, _STEADY_PARTITIONS, 1 << 30)
        create_topic(cluster, _BACKLOG, _BACKLOG_PARTITIONS, _SEGMENT_BYTES)
        fill(cluster, _BACKLOG, _BACKLOG_PARTITIONS, plan.backlog_bytes)
        os.sync()  # finish writing the backlog to disk before the measurement
        bench = Bench(directory, cluster, store, plan)
        return [bench.round(number) for number in range(plan.rounds)]


def _report(rounds: list[list[Window]], how: str) -> Report:
    report = Report("produce_latency", "The broker's own users", how)
    by_kind = {
        kind: [window for windows in rounds for window in windows if window.kind == kind]
        for kind in _KINDS
    }
    ratios = {
        kind: Spread.of(
            compared.p99 / base.p99
            for compared, base in zip(by_kind[kind], by_kind["without"], strict=True)
        )
        for kind in by_kind
    }
    report.table(
        ["catch-up", "median, ms", "p99, ms", "p99 against without", "uploaded, MB/s"],
        [
            [
                kind,
                Spread.of(window.median * 1000 for window in windows).text(1),
                Spread.of(window.p99 * 1000 for window in windows).text(1),
                ratios[kind].text(),
                Spread.of(window.uploaded_bytes / window.seconds / 1e6 for window in windows).text(
                    0
                ),
            ]
            for kind, windows in by_kind.items()
        ],
    )
    report.targets = [
        Target("p99 with a catch-up, against without", ratios["with"].middle, 1.1),
        Target("p99 with a capped catch-up, against without", ratios["with a cap"].middle, 1.1),
    ]
    report.raw = {"rounds": [[asdict(window) for window in windows] for windows in rounds]}
    return report


@click.command()
@benchmark_options
@click.option("--window", type=float, help="Seconds per kind and round; 10 by default.")
@click.option("--backlog", type=float, help="GiB to catch up; 8 by default.")
@click.option("--cap", default="50MB", show_default=True, help="The bandwidth cap.")
def main(  # noqa: PLR0913 - one parameter for each option
    *,
    quick: bool,
    runs: int | None,
    record: bool,
    json_path: Path | None,
    window: float | None,
    backlog: float | None,
    cap: str,
) -> None:
    """Compare the 99th percentile of produce latency with and without a catch-up."""
    plan = Plan(
        runs or (1 if quick else 7),
        window or (3.0 if quick else 10.0),
        int((backlog or (3.0 if quick else 8.0)) * (1 << 30)),
        cap,
    )
    with work_directory() as directory:
        rounds = measure(directory, plan)
    how = _HOW.format(
        rate=_RATE,
        window=plan.window,
        backlog=plan.backlog_bytes / (1 << 30),
        cap=cap,
        store=_STAND_IN,
        curls=_CURLS,
        runs=plan.rounds,
    )
    sys.exit(_report(rounds, how).finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()

"""Produce latency: what the broker's own users notice of a catch-up beside it."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

import click
from lib import steady
from lib.backlog import broker, create_topic, fill
from lib.clock import monotonic, pause
from lib.options import benchmark_options, work_directory
from lib.results import Report, Spread, Target
from lib.sidecar import Setup, Sidecar
from lib.stores import RealStore, StandIn, real_store

from sidetier.sandbox.kafka import KraftCluster

_STEADY, _BACKLOG = "steady", "backlog"
_STEADY_PARTITIONS, _BACKLOG_PARTITIONS = 8, 8
_RATE, _VALUE_BYTES = 2000, 1000
_SEGMENT_BYTES = 64 << 20
_WARM_SECONDS = 10.0
_READY_TIMEOUT = 60.0
_KINDS = ("without", "with", "with a cap", "with, giving way")
_HOW = """\
A producer sends {rate:,} records of 1 kB a second to a KRaft broker (4.3.1), for all of a round;
the latency of a record is from the moment in which it was due to its acknowledgement. Each round
has a window per kind, in changing order: no sidecar; the sidecar catching up another topic of the
same broker, {backlog:.1f} GiB in segments of 64 MiB, with its default settings; and the same with
`uploader.max_bytes_per_second: {cap}`; and the defaults at the least priority (`nice -n 19`). A
window begins once the sidecar is ready, and ends before the catch-up does, after {window:g} s at
the latest. The store is {store}. {runs} rounds; ratios are of windows of the same round."""

_STAND_IN = """\
a stand-in that throws data away, at the least priority: in service it would be another machine"""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, how much, and with which cap."""

    rounds: int
    window: float
    backlog_bytes: int
    cap: str
    store: str


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
    """When, and what was done meanwhile."""

    kind: str
    began: float
    ended: float
    uploaded_bytes: int = 0
    cpu_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Kind:
    """How the sidecar runs: its settings under `uploader`, and whether at the least priority."""

    uploader: Mapping[str, Any] = field(default_factory=dict)
    gives_way: bool = False


class Bench:
    """A broker with a backlog, and a store."""

    def __init__(
        self, directory: Path, cluster: KraftCluster, store: RealStore | StandIn, plan: Plan
    ) -> None:
        self._directory = directory
        self._cluster = cluster
        self._store = store
        self._plan = plan
        self._kinds: Mapping[str, Kind | None] = {
            "without": None,
            "with": Kind(),
            "with a cap": Kind({"max_bytes_per_second": plan.cap}),
            "with, giving way": Kind(gives_way=True),
        }

    def round(self, number: int) -> list[Window]:
        """Each kind once, while the producer runs."""
        kinds = list(self._kinds)
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
        how = self._kinds[kind]
        if how is None:
            pause(2.0)
            began = monotonic()
            pause(self._plan.window)
            return Span(kind, began, monotonic())
        return self._catch_up(kind, how)

    def _catch_up(self, kind: str, how: Kind) -> Span:
        """Only time in which something goes up is counted."""
        self._store.clear()
        more = {
            "broker": {"bootstrap_servers": self._cluster.bootstrap_servers},
            "leadership": {"source": "auto"},
            "topics": {"include": [_BACKLOG]},
            "uploader": how.uploader,
        }
        setup = Setup(
            self._directory,
            self._cluster.log_dirs(1),
            self._store.storage,
            more,
            self._store.environment,
            how.gives_way,
        )
        with Sidecar(setup) as sidecar:
            sidecar.wait_until_ready(_READY_TIMEOUT)
            began, cpu = monotonic(), sidecar.cpu_seconds
            with suppress(TimeoutError):
                sidecar.wait_until(lambda: self._is_nearly_done(sidecar), self._plan.window, "")
            ended, cpu = monotonic(), sidecar.cpu_seconds - cpu
            return Span(kind, began, ended, _uploaded(sidecar), cpu)

    def _is_nearly_done(self, sidecar: Sidecar) -> bool:
        """The last segments would leave workers idle, and so would not count."""
        last = 2 * _BACKLOG_PARTITIONS * _SEGMENT_BYTES
        return _uploaded(sidecar) >= self._plan.backlog_bytes - last


def _uploaded(sidecar: Sidecar) -> int:
    return sum(row["bytes"] for row in sidecar.events("segment.uploaded"))


def _window(span: Span, rows: Sequence[tuple[float, ...]]) -> Window:
    latencies = [latency for due, latency in rows if span.began <= due < span.ended]
    cuts = quantiles(latencies, n=100, method="inclusive")
    found = Window(
        span.kind,
        span.ended - span.began,
        len(latencies),
        cuts[49],
        cuts[98],
        max(latencies),
        span.uploaded_bytes,
        span.cpu_seconds,
    )
    print(found, file=sys.stderr)
    return found


def measure(directory: Path, plan: Plan) -> list[list[Window]]:
    """All rounds."""
    with ExitStack() as stack:
        cluster = stack.enter_context(broker(directory / "kafka"))
        store: RealStore | StandIn = (
            stack.enter_context(real_store(directory / "store"))
            if plan.store == "versitygw"
            else stack.enter_context(StandIn(directory, gives_way=True))
        )
        create_topic(cluster, _STEADY, _STEADY_PARTITIONS, 1 << 30)
        create_topic(cluster, _BACKLOG, _BACKLOG_PARTITIONS, _SEGMENT_BYTES)
        fill(cluster, _BACKLOG, _BACKLOG_PARTITIONS, plan.backlog_bytes)
        os.sync()  # the disk is not to be busy with the backlog
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
            ours.p99 / base.p99
            for ours, base in zip(by_kind[kind], by_kind["without"], strict=True)
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
        Target(
            "p99 with a catch-up that gives way, against without",
            ratios["with, giving way"].middle,
            1.1,
        ),
    ]
    report.raw = {"rounds": [[asdict(window) for window in windows] for windows in rounds]}
    return report


@click.command()
@benchmark_options
@click.option("--window", type=float, help="Seconds per kind and round; 15 by default.")
@click.option("--backlog", type=float, help="GiB to catch up; 6 by default.")
@click.option("--cap", default="50MB", show_default=True, help="The bandwidth cap.")
@click.option("--store", type=click.Choice(["stand-in", "versitygw"]), default="stand-in")
def main(  # noqa: PLR0913 - the options of a command line
    *,
    quick: bool,
    runs: int | None,
    record: bool,
    json_path: Path | None,
    window: float | None,
    backlog: float | None,
    cap: str,
    store: str,
) -> None:
    """The 99th percentile of produce latency, with a catch-up against without."""
    plan = Plan(
        runs or (1 if quick else 7),
        window or (3.0 if quick else 15.0),
        int((backlog or (3.0 if quick else 6.0)) * (1 << 30)),
        cap,
        store,
    )
    with work_directory() as directory:
        rounds = measure(directory, plan)
    text = "versitygw, on the same cores" if store == "versitygw" else _STAND_IN
    how = _HOW.format(
        rate=_RATE,
        window=plan.window,
        backlog=plan.backlog_bytes / (1 << 30),
        cap=cap,
        store=text,
        runs=plan.rounds,
    )
    sys.exit(_report(rounds, how).finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()

"""Cost of safety: catch-up and roll to stored, with and without the checks."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click
from lib import processes, unchecked_sidecar
from lib.backlog import broker, create_topic, delete_topic
from lib.clock import stopwatch
from lib.installed import installed_programs
from lib.log_dirs import LogDir, Shape, cached_log_dir
from lib.options import benchmark_options, work_directory
from lib.results import Report, Spread, Target
from lib.rolls import Passage, Traffic, observe, percentile
from lib.sidecar import Setup, Sidecar
from lib.stores import RealStore, real_store
from lib.unchecked_sidecar import CONDITIONS, EPOCH_HISTORY, NOTHING

Run = TypeVar("Run")
_GIB = 1 << 30
_TIMEOUT = 300.0
_SEGMENT_BYTES = 16 << 20
_AS_IT_IS = "as it is"
_KINDS: Mapping[str, str] = {
    _AS_IT_IS: NOTHING,
    "without epoch history": EPOCH_HISTORY,
    "without conditions": CONDITIONS,
    "without either": f"{EPOCH_HISTORY},{CONDITIONS}",
}
_REQUESTS = "sidetier_store_request_seconds_count"
_HOW = """\
Four kinds of the sidecar take turns, in the other order in every second round; ratios are to the
kind "as it is" of the same round. The product has no switch that leaves a check out:
`benchmarks/lib/unchecked_sidecar.py` starts all four, and removes the checks from outside.
**Without epoch history**: batches are not compared with `leader-epoch-checkpoint`, the log is not
compared with the archive, stored segments are not compared with the log, and no epoch history is
stored; every byte is still read and summed before it is sent. **Without conditions**: no put has
If-Match or If-None-Match, so nothing is ever refused. **Catch-up**: {gib:.2f} GiB in {segments}
closed segments of {partitions} partitions, as in the section "Catch-up", to versitygw over HTTP;
{runs} rounds. Requests are those that the sidecar counts, all of them, per segment. **Roll to
stored**: a KRaft broker (4.3.1) takes 30 MB/s over eight partitions in segments of 16 MiB for
{window:g} s per kind and round, as in the section "Roll to stored"; {rolls} rounds."""


@dataclass(frozen=True, slots=True)
class CatchUp:
    """One catch-up of all segments."""

    seconds: float
    size: int
    cpu_seconds: float
    server_cpu_seconds: float
    requests: float
    segments: int

    @property
    def megabytes_per_second(self) -> float:
        """MB/s."""
        return self.size / self.seconds / 1e6

    @property
    def cpu_per_gib(self) -> float:
        """CPU seconds of the sidecar per GiB."""
        return self.cpu_seconds / self.size * _GIB

    @property
    def server_cpu_per_gib(self) -> float:
        """CPU seconds of the server per GiB."""
        return self.server_cpu_seconds / self.size * _GIB

    @property
    def requests_per_segment(self) -> float:
        """Requests of all kinds per segment."""
        return self.requests / self.segments


@dataclass(frozen=True, slots=True)
class Rolls:
    """One window of roll to stored, in seconds."""

    segments: int
    median: float
    p99: float

    @classmethod
    def of(cls, passages: Sequence[Passage]) -> "Rolls":
        """Summarize a window.

        Raises:
            RuntimeError: Fewer than two segments were stored; the window was too short.
        """
        values = [passage.rolled_to_stored for passage in passages]
        if len(values) < 2:
            raise RuntimeError(f"{len(values)} segments were rolled: --window must be longer")
        return cls(len(values), percentile(values, 50), percentile(values, 99))


@dataclass(frozen=True, slots=True)
class Plan:
    """Number of rounds, and duration."""

    runs: int
    rolls: int
    window: float


def tampered(setup: Setup, kind: str) -> Setup:
    """Return the setup of a sidecar that a script starts without some checks."""
    script = unchecked_sidecar.__file__
    return replace(
        setup, program=(str(installed_programs("runtime") / "python"), "-P", script, _KINDS[kind])
    )


def rounds_of(count: int) -> Iterator[list[str]]:
    """Yield the kinds for each round, alternately forwards and backwards."""
    for number in range(count):
        kinds = list(_KINDS)
        yield kinds[::-1] if number % 2 else kinds


def catch_up(directory: Path, store: RealStore, log_dir: LogDir, kind: str) -> CatchUp:
    """Measure from the start of the process until the last `offset.wm` has moved."""
    store.clear()
    os.sync()  # no run writes back another run's data
    setup = Setup(directory, [log_dir.path], store.storage, environment=store.environment)
    before = processes.cpu_seconds(store.server.process.pid)
    sidecar = Sidecar(tampered(setup, kind))
    with stopwatch() as watch, sidecar:
        sidecar.wait_until(lambda: store.holds_all_of(log_dir), _TIMEOUT, "the catch-up")
        cpu = sidecar.cpu_seconds
        watch.stop()
        served = processes.cpu_seconds(store.server.process.pid) - before
        samples = sidecar.samples()
    store.check_objects(log_dir)
    requests = sum(value for (name, _), value in samples.items() if name == _REQUESTS)
    size, segments = log_dir.closed_bytes(), log_dir.shape.closed_segments
    result = CatchUp(watch.seconds, size, cpu, served, requests, segments)
    print(f"{kind}: {result}", file=sys.stderr)
    return result


def measure_catch_up(log_dir: LogDir, runs: int) -> list[dict[str, CatchUp]]:
    """Measure all rounds. A first run, which fills the page cache, is not counted."""
    with work_directory() as directory, real_store(directory / "store") as store:
        catch_up(directory, store, log_dir, _AS_IT_IS)
        results = [
            {kind: catch_up(directory, store, log_dir, kind) for kind in kinds}
            for kinds in rounds_of(runs)
        ]
        store.clear()
    return results


def measure_rolls(plan: Plan) -> list[dict[str, Rolls]]:
    """Measure all rounds; each window has its own topic."""
    results: list[dict[str, Rolls]] = []
    with (
        work_directory() as directory,
        broker(directory / "kafka") as cluster,
        real_store(directory / "store") as store,
    ):
        (log_dir,) = cluster.log_dirs(1)

        def window(kind: str, topic: str) -> Rolls:
            traffic = Traffic(topic)
            create_topic(cluster, topic, traffic.partitions, _SEGMENT_BYTES)
            more: dict[str, Any] = {
                "broker": {"bootstrap_servers": cluster.bootstrap_servers},
                "leadership": {"source": "auto"},
                "topics": {"include": [topic]},
            }
            setup = Setup(directory, [log_dir], store.storage, more, store.environment)
            with Sidecar(tampered(setup, kind)) as sidecar:
                sidecar.wait_until_ready(60)
                servers = cluster.bootstrap_servers
                passages = observe(sidecar, log_dir, store, traffic, servers, plan.window)
            delete_topic(cluster, topic)
            store.clear()
            os.sync()
            rolls = Rolls.of(passages)
            print(f"{kind}: {rolls}", file=sys.stderr)
            return rolls

        for number, kinds in enumerate(rounds_of(plan.rolls)):
            results.append(
                {kind: window(kind, f"rolls-{number}-{at}") for at, kind in enumerate(kinds)}
            )
    return results


def report_on_catch_up(report: Report, rounds: list[dict[str, CatchUp]]) -> None:
    """Fill the report with values, ratios and targets."""
    figures: Mapping[str, tuple[Callable[[CatchUp], float], int]] = {
        "MB/s": (lambda run: run.megabytes_per_second, 0),
        "CPU s/GiB": (lambda run: run.cpu_per_gib, 2),
        "the server's CPU s/GiB": (lambda run: run.server_cpu_per_gib, 2),
        "requests per segment": (lambda run: run.requests_per_segment, 2),
    }
    rows: list[list[object]] = []
    for kind in _KINDS:
        spreads = [
            Spread.of(value(runs_by_kind[kind]) for runs_by_kind in rounds).text(digits)
            for value, digits in figures.values()
        ]
        rows.append([kind, *spreads])
    for kind in list(_KINDS)[1:]:
        ratios = [ratio(rounds, kind, value).text() for value, _ in figures.values()]
        rows.append([f"{kind}, ratio", *ratios])
    report.table(["catch-up", *figures], rows)
    bare = "without either"
    saved = Spread.of(
        runs_by_kind[_AS_IT_IS].requests_per_segment - runs_by_kind[bare].requests_per_segment
        for runs_by_kind in rounds
    )
    report.targets += [
        Target(
            "MB/s as it is, against without either",
            1 / ratio(rounds, bare, lambda run: run.megabytes_per_second).middle,
            0.9,
            at_least=True,
        ),
        Target(
            "CPU seconds per GiB as it is, against without either",
            1 / ratio(rounds, bare, lambda run: run.cpu_per_gib).middle,
            1.1,
        ),
        Target("requests per segment that either costs", saved.middle, 0.5),
    ]
    report.raw["catch_up"] = [
        {kind: asdict(run) for kind, run in runs_by_kind.items()} for runs_by_kind in rounds
    ]


def report_on_rolls(report: Report, rounds: list[dict[str, Rolls]]) -> None:
    """Fill the report with values, ratios and a target."""
    rows: list[list[object]] = []
    for kind in _KINDS:
        windows = [rolls_by_kind[kind] for rolls_by_kind in rounds]
        rows.append(
            [
                kind,
                sum(window.segments for window in windows),
                Spread.of(window.median for window in windows).text(3),
                Spread.of(window.p99 for window in windows).text(3),
            ]
        )
    for kind in list(_KINDS)[1:]:
        median = ratio(rounds, kind, lambda window: window.median)
        late = ratio(rounds, kind, lambda window: window.p99)
        rows.append([f"{kind}, ratio", "", median.text(), late.text()])
    report.table(["from roll to stored", "segments", "median, s", "p99, s"], rows)
    bare = ratio(rounds, "without either", lambda window: window.median).middle
    report.targets.append(
        Target("median roll to stored as it is, against without either", 1 / bare, 1.1)
    )
    report.raw["roll_to_stored"] = [
        {kind: asdict(window) for kind, window in rolls_by_kind.items()} for rolls_by_kind in rounds
    ]


def ratio(rounds: Sequence[Mapping[str, Run]], kind: str, value: Callable[[Run], float]) -> Spread:
    """Return the ratio of a kind to the unmodified sidecar, round by round."""
    return Spread.of(
        value(runs_by_kind[kind]) / value(runs_by_kind[_AS_IT_IS]) for runs_by_kind in rounds
    )


@click.command()
@benchmark_options
@click.option("--window", type=float, help="Seconds of roll to stored per kind and round; 25.")
@click.option("--only", type=click.Choice(["catch-up", "rolls"]), help="Only this part.")
def main(
    *,
    quick: bool,
    runs: int | None,
    record: bool,
    json_path: Path | None,
    window: float | None,
    only: str | None,
) -> None:
    """Measure 2 GiB in 32 closed segments, and 30 MB/s over eight partitions, kind by kind."""
    shape = Shape(4, 4, 8 << 20) if quick else Shape(8, 4, 64 << 20)
    rounds = runs or (1 if quick else 5)
    plan = Plan(rounds, min(rounds, 3), window or (15.0 if quick else 25.0))
    log_dir = cached_log_dir(shape)
    how = _HOW.format(
        gib=log_dir.closed_bytes() / _GIB,
        segments=shape.closed_segments,
        partitions=shape.partitions,
        runs=plan.runs,
        rolls=plan.rolls,
        window=plan.window,
    )
    report = Report("safety", "What safety costs", how)
    if only != "rolls":
        report_on_catch_up(report, measure_catch_up(log_dir, plan.runs))
    if only != "catch-up":
        report_on_rolls(report, measure_rolls(plan))
    sys.exit(report.finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()

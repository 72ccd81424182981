"""Many partitions: start, requests, idle cost and memory with 200, 2,000 and 10,000 partitions."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click
from lib import appender, processes
from lib.clock import monotonic, pause
from lib.log_dirs import LogDir, Shape, make_log_dir
from lib.options import benchmark_options, work_directory
from lib.results import Report, Spread, Target
from lib.sidecar import Setup, Sidecar
from lib.stores import LAYOUT, StandIn

from sidetier.archive.objects.watermark import Watermark, encode_watermark
from sidetier.segments.offsets import BaseOffset, BrokerId, Offset

_DELAY = 0.05
_SEGMENTS = 5
_SEGMENT_BYTES = 24 << 10
_TARGET = 2000
_READY_LIMITS = {2000: 8, 10_000: 35}
_IDLE_REQUESTS = 10
"""Requests per run, not per partition: periodic reads of unresolved cases and cluster snapshots."""
_WRITTEN, _APPENDS = 500, 20_000
_READY_TIMEOUT = 180.0
_ONCE = ("get layout.json", "put layout.json", "get offset.wm", "list")
_SETTLE_SECONDS = 3.0
_HOW = """\
Five closed segments per partition, of 24 KiB each, in a synthetic log dir, and a store that takes
{delay:.0f} ms per request (a stand-in, which counts them). **First start**: nothing is stored; the
time until `/readyz` answers ready counts from the start of the process; requests are all requests
per stored segment, listings, `offset.wm` and `_metadata` included, until all segments are stored or
{drain:g} s have passed. **Start with all stored**: the cost of a restart; then {window:g} s with
nothing to do (the log dirs are listed again every 30 s meanwhile), then {window:g} s in which a
writer appends {appends:,} times a second to the active segments of {written} partitions. CPU is the
sidecar's, in percent of one core, over the window. {runs} runs."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Durations of the observations, in seconds."""

    drain: float
    idle: float


@dataclass(frozen=True, slots=True)
class FirstStart:
    """Result of a start over an empty store."""

    ready_seconds: float
    closed_segments: int
    stored_segments: int
    requests: dict[str, int]
    seconds: float
    cpu_seconds: float
    peak_bytes: int

    @property
    def requests_per_segment(self) -> float:
        """Requests per segment.

        If all segments were stored, it is the average. Otherwise the one-time requests of a
        partition are spread over all of its segments, and the others over those that were stored.
        """
        once = sum(count for kind, count in self.requests.items() if kind in _ONCE)
        other_requests = sum(self.requests.values()) - once
        return once / self.closed_segments + other_requests / max(1, self.stored_segments)


@dataclass(slots=True)
class Restart:
    """Result of a start with everything stored."""

    ready_seconds: float = 0.0
    start_requests: int = 0
    idle_requests: dict[str, int] = field(default_factory=dict)
    idle_cpu_percent: float = 0.0
    append_cpu_percent: float = 0.0
    appends_per_second: float = 0.0
    peak_bytes: int = 0


def first_start(setup: Setup, store: StandIn, log_dir: LogDir, windows: Windows) -> FirstStart:
    """Start over an empty store, and store everything, or as much as the time allows."""
    store.clear()
    store.reset()
    with Sidecar(setup) as sidecar:
        began = monotonic()
        ready = sidecar.wait_until_ready(_READY_TIMEOUT)
        wanted = log_dir.shape.closed_segments
        with contextlib.suppress(TimeoutError):
            sidecar.wait_until(
                lambda: committed(sidecar) >= wanted, windows.drain, "all is stored", poll=1.0
            )
        seconds = monotonic() - began
        # Requests in flight are counted, but their segments are not, so the result is pessimistic.
        return FirstStart(
            ready,
            wanted,
            committed(sidecar),
            store.counts(),
            seconds,
            sidecar.cpu_seconds,
            sidecar.peak_resident_bytes,
        )


def committed(sidecar: Sidecar) -> int:
    """Return the number of segments that moves of `offset.wm` have covered."""
    return sum(row["segments"] for row in sidecar.events("watermark.moved"))


def restart(setup: Setup, store: StandIn, log_dir: LogDir, windows: Windows) -> Restart:
    """Start with everything stored, then stay idle, then run beside appends by another process."""
    store.set_delay(0)
    store.clear()
    store.put_all(watermarks(log_dir))
    store.set_delay(_DELAY)
    store.reset()
    result = Restart()
    with Sidecar(setup) as sidecar:
        result.ready_seconds = sidecar.wait_until_ready(_READY_TIMEOUT)
        pause(_SETTLE_SECONDS)
        result.start_requests = sum(store.counts().values())
        store.reset()
        result.idle_cpu_percent = _cpu_percent(sidecar, windows.idle)
        result.idle_requests = store.counts()
        with appending(log_dir) as appends:
            result.append_cpu_percent = _cpu_percent(sidecar, windows.idle)
        result.appends_per_second = appends.rate
        result.peak_bytes = sidecar.peak_resident_bytes
    return result


def watermarks(log_dir: LogDir) -> Iterator[tuple[str, bytes]]:
    """Yield the `offset.wm` objects of partitions with every closed segment stored."""
    last = BaseOffset(log_dir.shape.bases[-1])
    watermark = Watermark(last, Offset(log_dir.shape.next_offset), broker_id=BrokerId(1), nonce="0")
    for tp in log_dir.shape.topic_partitions():
        yield LAYOUT.watermark_key(tp), encode_watermark(watermark)


def _cpu_percent(sidecar: Sidecar, seconds: float) -> float:
    pid = sidecar.process.pid
    before, began = processes.cpu_seconds(pid), monotonic()
    pause(seconds)
    return 100 * (processes.cpu_seconds(pid) - before) / (monotonic() - began)


@dataclass(slots=True)
class Appends:
    """Number of appends per second; known after the end."""

    rate: float = 0.0


@contextlib.contextmanager
def appending(log_dir: LogDir) -> Iterator[Appends]:
    """Let another process append while the context is entered."""
    arguments = [str(log_dir.path), str(log_dir.shape.next_offset), str(_WRITTEN), str(_APPENDS)]
    process = subprocess.Popen(
        [sys.executable, appender.__file__, *arguments], stdout=subprocess.PIPE, text=True
    )
    appends = Appends()
    try:
        pause(1.0)
        yield appends
    finally:
        process.terminate()
        appends.rate = float(process.communicate(timeout=20)[0] or 0)


def measure(
    partitions: int, directory: Path, runs: int, windows: Windows
) -> list[tuple[FirstStart, Restart]]:
    """Measure all runs with one number of partitions."""
    shape = Shape(
        partitions,
        _SEGMENTS,
        _SEGMENT_BYTES,
        batch_bytes=8 << 10,
        topics=max(1, partitions // 100),
        shared=True,
    )
    log_dir = make_log_dir(directory / f"log-dir-{partitions}", shape)
    pairs = []
    with StandIn(directory, _DELAY) as store:
        for _ in range(runs):
            setup = Setup(directory, [log_dir.path], store.storage, environment=store.environment)
            pair = (
                first_start(setup, store, log_dir, windows),
                restart(setup, store, log_dir, windows),
            )
            print(partitions, *pair, sep="\n  ", file=sys.stderr)
            pairs.append(pair)
    return pairs


def _report(report: Report, found: dict[int, list[tuple[FirstStart, Restart]]]) -> None:
    report.table(
        ["first start", "ready, s", "requests per segment", "segments stored", "peak, MB"],
        [
            [
                f"{partitions:,} partitions",
                Spread.of(first.ready_seconds for first, _ in pairs).text(1),
                Spread.of(first.requests_per_segment for first, _ in pairs).text(),
                Spread.of(first.stored_segments for first, _ in pairs).text(0),
                Spread.of(first.peak_bytes / 1e6 for first, _ in pairs).text(0),
            ]
            for partitions, pairs in found.items()
        ],
    )
    report.table(
        [
            "all stored",
            "ready, s",
            "requests to start",
            "idle requests",
            "idle CPU %",
            f"CPU % at {_APPENDS:,} appends/s",
            "peak, MB",
        ],
        [
            [
                f"{partitions:,} partitions",
                Spread.of(again.ready_seconds for _, again in pairs).text(1),
                Spread.of(again.start_requests for _, again in pairs).text(0),
                sum(sum(again.idle_requests.values()) for _, again in pairs),
                Spread.of(again.idle_cpu_percent for _, again in pairs).text(1),
                Spread.of(again.append_cpu_percent for _, again in pairs).text(1),
                Spread.of(again.peak_bytes / 1e6 for _, again in pairs).text(0),
            ]
            for partitions, pairs in found.items()
        ],
    )
    at = _TARGET if _TARGET in found else max(found)
    pairs = found[at]
    name = f"{at:,} partitions"
    per_segment = Spread.of(first.requests_per_segment for first, _ in pairs).middle
    idle = max(sum(again.idle_requests.values()) for pairs in found.values() for _, again in pairs)
    cpu = Spread.of(again.append_cpu_percent for _, again in pairs).middle
    appends = min(again.appends_per_second for _, again in pairs)
    report.targets = [
        *(
            Target(
                f"seconds until ready, {partitions:,} partitions",
                Spread.of(first.ready_seconds for first, _ in found[partitions]).middle,
                limit,
            )
            for partitions, limit in _READY_LIMITS.items()
            if partitions in found
        ),
        Target(f"requests per stored segment, {name}", per_segment, 6),
        Target("requests while idle, each run", idle, _IDLE_REQUESTS),
        Target(f"CPU % of a core under appends, {name}", cpu, 5),
        Target("appends per second that were made", appends, 0.95 * _APPENDS, at_least=True),
    ]
    report.raw = {
        str(partitions): [
            {"first_start": asdict(first), "restart": asdict(again)} for first, again in pairs
        ]
        for partitions, pairs in found.items()
    }


@click.command()
@benchmark_options
@click.option("--partitions", type=int, multiple=True, help="Instead of 200, 2,000, 10,000.")
@click.option("--drain", type=float, help="Seconds for storing, at most; 420 by default.")
def main(
    *,
    quick: bool,
    runs: int | None,
    record: bool,
    json_path: Path | None,
    partitions: tuple[int, ...],
    drain: float | None,
) -> None:
    """Measure 200, 2,000 and 10,000 partitions in front of a slow store."""
    windows = Windows(drain or (20.0 if quick else 420.0), 5.0 if quick else 35.0)
    times = runs or 1
    how = _HOW.format(
        delay=_DELAY * 1000,
        drain=windows.drain,
        window=windows.idle,
        appends=_APPENDS,
        written=_WRITTEN,
        runs=times,
    )
    report = Report("many_partitions", "Many partitions", how)
    results = {}
    with work_directory() as directory:
        for number in partitions or ((200,) if quick else (200, 2000, 10_000)):
            results[number] = measure(number, directory, times, windows)
    _report(report, results)
    sys.exit(report.finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()

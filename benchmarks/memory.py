"""Memory: resident memory while sixteen segments are uploaded by eight workers, by segment size."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from lib.log_dirs import LogDir, Shape, cached_log_dir
from lib.options import benchmark_options, work_directory
from lib.results import Report, Spread, Target
from lib.sidecar import Setup, Sidecar
from lib.stores import RealStore, StandIn, real_store

_MIB = 1 << 20
_SEGMENTS = 16
_UNWANTED = ("cramjam", "numpy", "pyarrow", "pyspark")
_TIMEOUT = 600.0
_LIMIT_MB = 100
_HOW = """\
Sixteen closed segments of as many partitions are uploaded by eight workers, the default. They are
one file with sixteen names. The stand-in reads the bodies and discards them; versitygw keeps them.
Figures are VmHWM of the sidecar's process in MB (10^6 bytes), its maximum resident memory, read
after the last write of `offset.wm`; "idle" is a sidecar with nothing to do. {runs} runs in turns.
For the imports, modules with the unwanted names come first on the path of every sidecar here, and
note it when they are imported."""
_MARK = """\
import os
with open({path!r}, "a") as marks:
    marks.write(__name__ + "\\n")
raise ImportError(__name__ + " is not wanted here")
"""


@dataclass(frozen=True, slots=True)
class Found:
    """Result of one run."""

    store: str
    segment_bytes: int
    peak_bytes: int
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Place:
    """A running store, and a check that everything is stored."""

    name: str
    storage: dict[str, Any]
    environment: dict[str, str]
    done: Callable[[Sidecar, LogDir], bool]
    clear: Callable[[], None]


class Marks:
    """Fake modules that record whether a module was imported that must not be."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "imported"
        self.directory = directory / "unwanted"
        self.directory.mkdir()
        for name in _UNWANTED:
            (self.directory / f"{name}.py").write_text(_MARK.format(path=str(self._path)))

    def imported(self) -> list[str]:
        """Return the names of the modules that were imported."""
        return sorted(set(self._path.read_text().split())) if self._path.exists() else []


def _is_moved_everywhere(sidecar: Sidecar, log_dir: LogDir) -> bool:
    """Return whether every archive end has moved, from the log: the stand-in keeps no segments."""
    if not log_dir.shape.segments:
        return True
    moved = {row["partition"]: row["next_offset"] for row in sidecar.events("watermark.moved")}
    done = [offset for offset in moved.values() if offset >= log_dir.shape.next_offset]
    return len(done) == log_dir.shape.partitions


@contextmanager
def _discarding(directory: Path) -> Iterator[Place]:
    with StandIn(directory) as stand_in:
        yield Place(
            "stand-in",
            stand_in.storage,
            stand_in.environment,
            _is_moved_everywhere,
            stand_in.clear,
        )


@contextmanager
def _versitygw(directory: Path) -> Iterator[Place]:
    def done(_: Sidecar, log_dir: LogDir) -> bool:
        return store.holds_all_of(log_dir)

    store: RealStore
    with real_store(directory / "store") as store:
        yield Place("versitygw", store.storage, store.environment, done, store.clear)


def measure(directory: Path, marks: Marks, place: Place, log_dir: LogDir) -> Found:
    """Measure one catch-up from an empty store."""
    place.clear()
    environment = {**place.environment, "PYTHONPATH": str(marks.directory)}
    setup = Setup(directory, [log_dir.path], place.storage, environment=environment)
    with Sidecar(setup) as sidecar:
        sidecar.wait_until_ready(60)
        sidecar.wait_until(lambda: place.done(sidecar, log_dir), _TIMEOUT, "the catch-up")
        peak, cpu = sidecar.peak_resident_bytes, sidecar.cpu_seconds
    size = log_dir.shape.segment_bytes if log_dir.shape.segments else 0
    result = Found(place.name, size, peak, cpu)
    print(result, file=sys.stderr)
    return result


def _inputs(*, quick: bool) -> list[LogDir]:
    """Return an input without closed segments, and inputs of sixteen segments of rising size."""
    sizes = (4, 16) if quick else (64, 256, 1024)
    shapes = [Shape(_SEGMENTS, 0, 1, shared=True)]
    shapes += [Shape(_SEGMENTS, 1, size * _MIB, shared=True) for size in sizes]
    return [cached_log_dir(shape) for shape in shapes]


def _report(found: list[Found], imported: list[str], how: str) -> Report:
    report = Report("memory", "Memory", how)
    kinds = sorted({(run.store, run.segment_bytes) for run in found})
    peaks = {
        kind: Spread.of(
            run.peak_bytes / 1e6 for run in found if (run.store, run.segment_bytes) == kind
        )
        for kind in kinds
    }
    report.table(
        ["store", "sixteen segments of", "peak resident, MB"],
        [
            [store, f"{size // _MIB} MiB" if size else "none: idle", peaks[store, size].text(1)]
            for store, size in kinds
        ],
    )
    sizes = sorted(size for store, size in kinds if size and store == "stand-in")
    most = max(peak.high for peak in peaks.values())
    growth = peaks["stand-in", sizes[-1]].middle - peaks["stand-in", sizes[0]].middle
    report.targets = [
        Target("most resident in any run, MB", most, _LIMIT_MB),
        Target(f"growth from {sizes[0] // _MIB} to {sizes[-1] // _MIB} MiB, MB", growth, 5),
        Target(f"unwanted imports ({', '.join(_UNWANTED)})", len(imported), 0),
    ]
    report.raw = {"runs": [asdict(run) for run in found], "imported": imported}
    return report


@click.command()
@benchmark_options
def main(*, quick: bool, runs: int | None, record: bool, json_path: Path | None) -> None:
    """Measure resident memory while sixteen segments are uploaded by eight workers."""
    times = runs or (1 if quick else 3)
    log_dirs = _inputs(quick=quick)
    with ExitStack() as stack:
        directory = stack.enter_context(work_directory())
        marks = Marks(directory)
        discarding = stack.enter_context(_discarding(directory))
        results = [
            measure(directory, marks, discarding, log_dir)
            for _ in range(times)
            for log_dir in log_dirs
        ]
        real = stack.enter_context(_versitygw(directory))
        results.append(measure(directory, marks, real, log_dirs[-1]))
        imported = marks.imported()
    report = _report(results, imported, _HOW.format(runs=times))
    sys.exit(report.finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()

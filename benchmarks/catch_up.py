"""Catch-up: CPU time and speed of the sidecar against parallel curl, over HTTP and HTTPS."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from lib.clock import stopwatch
from lib.log_dirs import LogDir, Shape, cached_log_dir
from lib.options import benchmark_options, work_directory
from lib.results import Report, Spread, Target
from lib.sidecar import Setup, Sidecar
from lib.stores import BUCKET, RealStore, real_store

_AT_ONCE = 8
_TIMEOUT = 300.0
_GIB = 1 << 30
_HOW = """\
{gib:.2f} GiB in {segments} closed segments of {partitions} partitions, with their indexes, go to
versitygw {where}. The sidecar runs with its default settings and static leadership. Its time counts
from the start of its process, imports included, to the last write of `offset.wm`; its MB/s count
from the first object on. curl sends the same {files} files with {at_once} processes, each over one
connection, to presigned addresses, without checksums, verification, listings or commits. The
segments are in the page cache. {runs} runs in turns; ratios compare neighbouring runs. CPU time is
the client's user and system time. The server shares the cores, and needs more of them for the
sidecar's checksums, which it verifies."""


@dataclass(frozen=True, slots=True)
class Run:
    """One upload of all segments."""

    cpu_seconds: float
    seconds: float
    size: int
    first: float = 0.0
    """Seconds to the first object; 0 for curl, which starts to send at once."""

    @property
    def cpu_per_gib(self) -> float:
        """CPU seconds of the client per GiB."""
        return self.cpu_seconds / self.size * _GIB

    @property
    def megabytes_per_second(self) -> float:
        """MB/s, measured from the first object."""
        return self.size / (self.seconds - self.first) / 1e6


def sidecar_run(directory: Path, store: RealStore, log_dir: LogDir, size: int) -> Run:
    """Measure one catch-up of the sidecar, and check what is stored."""
    run = timed_catch_up(directory, store, log_dir, size)
    store.check_objects(log_dir)
    return run


def timed_catch_up(
    directory: Path,
    store: RealStore,
    log_dir: LogDir,
    size: int,
    more: Mapping[str, Any] | None = None,
) -> Run:
    """Measure one catch-up of the sidecar. `more` extends its setting `storage`."""
    storage = {**store.storage, **(more or {})}
    setup = Setup(directory, [log_dir.path], storage, environment=store.environment)
    sidecar = Sidecar(setup)
    with stopwatch() as watch, sidecar:
        sidecar.wait_until(store.holds_any_segment, _TIMEOUT, "the first object", 0.005)
        first = watch.seconds
        sidecar.wait_until(lambda: store.holds_all_of(log_dir), _TIMEOUT, "the catch-up")
        cpu = sidecar.cpu_seconds
        watch.stop()
    return Run(cpu, watch.seconds, size, first)


def curl_run(directory: Path, store: RealStore, log_dir: LogDir, size: int) -> Run:
    """Upload the same files with as many curl processes as the sidecar has upload threads."""
    files = log_dir.closed_files()
    lists = [_curl_config(store, files[number::_AT_ONCE]) for number in range(_AT_ONCE)]
    paths = [directory / f"curl-{number}" for number in range(_AT_ONCE)]
    for path, text in zip(paths, lists, strict=True):
        path.write_text(text)
    cpu = 0.0
    with stopwatch() as watch:
        started = [subprocess.Popen(["curl", "--disable", "--config", path]) for path in paths]
        for process in started:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            cpu += usage.ru_utime + usage.ru_stime
    failed = [process.returncode for process in started if process.returncode]
    if failed:
        raise RuntimeError(f"curl ended with {failed}")
    return Run(cpu, watch.seconds, size)


def _curl_config(store: RealStore, files: Sequence[Path]) -> str:
    client = store.client()
    blocks = []
    for path in files:
        key = f"curl/{path.parent.name}/{path.name}"
        url = client.generate_presigned_url("put_object", {"Bucket": BUCKET, "Key": key})
        lines = ["silent", "show-error", "fail", f'upload-file = "{path}"', f'url = "{url}"']
        if store.authority is not None:
            lines.append(f'cacert = "{store.authority}"')
        blocks.append("\n".join(lines))
    return "\nnext\n".join(blocks) + "\n"


def measure(directory: Path, log_dir: LogDir, runs: int, *, https: bool) -> list[tuple[Run, Run]]:
    """Measure pairs of a sidecar run and a curl run, in alternating order."""
    size, pairs = log_dir.closed_bytes(), []
    with real_store(directory / "store", https=https) as store:
        curl_run(directory, store, log_dir, size)  # fills the page cache with the segments
        for number in range(runs):
            runs_by_name = {}
            for name in ("curl", "sidecar") if number % 2 else ("sidecar", "curl"):
                store.clear()
                os.sync()  # no run writes back another run's data
                run = sidecar_run if name == "sidecar" else curl_run
                runs_by_name[name] = run(directory, store, log_dir, size)
                print(
                    f"{'https' if https else 'http'} {name}: {runs_by_name[name]}", file=sys.stderr
                )
            pairs.append((runs_by_name["sidecar"], runs_by_name["curl"]))
        store.clear()
    return pairs


def report_on(report: Report, scheme: str, pairs: list[tuple[Run, Run]]) -> None:
    """Fill the report with a table and two targets."""
    rows = []
    for name, column in (("sidecar", 0), ("curl", 1)):
        column_runs = [pair[column] for pair in pairs]
        rows.append(
            [
                name,
                Spread.of(run.cpu_per_gib for run in column_runs).text(),
                Spread.of(run.megabytes_per_second for run in column_runs).text(0),
                Spread.of(run.first for run in column_runs).text() if column == 0 else "",
            ]
        )
    cpu = Spread.of(sidecar.cpu_per_gib / curl.cpu_per_gib for sidecar, curl in pairs)
    speed = Spread.of(
        sidecar.megabytes_per_second / curl.megabytes_per_second for sidecar, curl in pairs
    )
    rows.append(["ratio", cpu.text(), speed.text(), ""])
    columns = [scheme.upper(), "client CPU s/GiB", "MB/s", "s to the first object"]
    report.table(columns, rows)
    comparison = f"over {scheme.upper()}, against curl in the same run"
    report.targets += [
        Target(f"CPU seconds per GiB {comparison}", cpu.middle, 2.0),
        Target(f"MB/s {comparison}", speed.middle, 0.9, at_least=True),
    ]
    report.raw[scheme] = [
        {"sidecar": asdict(sidecar), "curl": asdict(curl)} for sidecar, curl in pairs
    ]


@click.command()
@benchmark_options
@click.option("--only", type=click.Choice(["http", "https"]), help="Only this scheme.")
@click.option(
    "--store-directory", type=click.Path(path_type=Path), help="Where versitygw keeps its objects."
)
def main(
    *,
    quick: bool,
    runs: int | None,
    record: bool,
    json_path: Path | None,
    only: str | None,
    store_directory: Path | None,
) -> None:
    """Upload 4 GiB in 64 closed segments to versitygw, alternating with curl."""
    shape = Shape(4, 2, 16 << 20) if quick else Shape(8, 8, 64 << 20)
    times = runs or (1 if quick else 5)
    log_dir = cached_log_dir(shape)
    location = f"in {store_directory}" if store_directory else "on this disk"
    how = _HOW.format(
        gib=log_dir.closed_bytes() / _GIB,
        segments=shape.closed_segments,
        partitions=shape.partitions,
        files=len(log_dir.closed_files()),
        at_once=_AT_ONCE,
        runs=times,
        where=location,
    )
    report = Report("catch_up", "Catch-up", how)
    for scheme in (only,) if only else ("http", "https"):
        with work_directory(store_directory) as directory:
            pairs = measure(directory, log_dir, times, https=scheme == "https")
        report_on(report, scheme, pairs)
    sys.exit(report.finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()

"""Catch-up: processor time and speed of the sidecar against parallel curl, over HTTP and HTTPS."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

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
versitygw {where}. The sidecar runs as it is configured by default, with static leadership; its time
is from the start of its process, imports included, to the last watermark, and its MB/s are those
from the first object on. curl sends the same
{files} files with {at_once} processes, each over one connection, to presigned addresses, without
any checksum; nothing verifies, lists or commits there. Segments lie in the page cache. {runs} runs
in turns; ratios are of neighbours. Processor time is the client's own, user and system; the server
takes its share of the same cores, and more of it for the sidecar's checksums, which it verifies."""


@dataclass(frozen=True, slots=True)
class Run:
    """One upload of everything."""

    cpu_seconds: float
    seconds: float
    size: int
    first: float = 0.0
    """Seconds to the first object; curl sends one at once."""

    @property
    def cpu_per_gib(self) -> float:
        """The client's processor seconds per GiB."""
        return self.cpu_seconds / self.size * _GIB

    @property
    def megabytes_per_second(self) -> float:
        """MB/s, from the first object on."""
        return self.size / (self.seconds - self.first) / 1e6


def sidecar_run(directory: Path, store: RealStore, log_dir: LogDir, size: int) -> Run:
    """One catch-up by the sidecar."""
    setup = Setup(directory, [log_dir.path], store.storage, environment=store.environment)
    sidecar = Sidecar(setup)
    with stopwatch() as watch, sidecar:
        sidecar.wait_until(store.holds_any_segment, _TIMEOUT, "the first object", 0.005)
        first = watch.seconds
        sidecar.wait_until(lambda: store.holds_all_of(log_dir), _TIMEOUT, "the catch-up")
        cpu = sidecar.cpu_seconds
        watch.stop()
    store.check_objects(log_dir)
    return Run(cpu, watch.seconds, size, first)


def curl_run(directory: Path, store: RealStore, log_dir: LogDir, size: int) -> Run:
    """The same files by as many curl processes as the sidecar has upload threads."""
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
    """Pairs of the sidecar's and curl's run; which of them comes first alternates."""
    size, pairs = log_dir.closed_bytes(), []
    with real_store(directory / "store", https=https) as store:
        curl_run(directory, store, log_dir, size)  # the segments come into the page cache
        for number in range(runs):
            found = {}
            for name in ("curl", "sidecar") if number % 2 else ("sidecar", "curl"):
                store.clear()
                os.sync()  # no run writes another's data back
                run = sidecar_run if name == "sidecar" else curl_run
                found[name] = run(directory, store, log_dir, size)
                print(f"{'https' if https else 'http'} {name}: {found[name]}", file=sys.stderr)
            pairs.append((found["sidecar"], found["curl"]))
        store.clear()
    return pairs


def report_on(report: Report, scheme: str, pairs: list[tuple[Run, Run]]) -> None:
    """A table and two targets."""
    rows = []
    for name, column in (("sidecar", 0), ("curl", 1)):
        found = [pair[column] for pair in pairs]
        rows.append(
            [
                name,
                Spread.of(run.cpu_per_gib for run in found).text(),
                Spread.of(run.megabytes_per_second for run in found).text(0),
                Spread.of(run.first for run in found).text() if column == 0 else "",
            ]
        )
    cpu = Spread.of(ours.cpu_per_gib / theirs.cpu_per_gib for ours, theirs in pairs)
    speed = Spread.of(
        ours.megabytes_per_second / theirs.megabytes_per_second for ours, theirs in pairs
    )
    rows.append(["ratio", cpu.text(), speed.text(), ""])
    columns = [scheme.upper(), "client CPU s/GiB", "MB/s", "s to the first object"]
    report.table(columns, rows)
    what = f"over {scheme.upper()}, against curl in the same run"
    report.targets += [
        Target(f"CPU seconds per GiB {what}", cpu.middle, 2.0),
        Target(f"MB/s {what}", speed.middle, 0.9, at_least=True),
    ]
    report.raw[scheme] = [
        {"sidecar": asdict(ours), "curl": asdict(theirs)} for ours, theirs in pairs
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
    """4 GiB in 64 closed segments to versitygw, in turns with curl."""
    shape = Shape(4, 2, 16 << 20) if quick else Shape(8, 8, 64 << 20)
    times = runs or (1 if quick else 5)
    log_dir = cached_log_dir(shape)
    where = f"in {store_directory}" if store_directory else "on this disk"
    how = _HOW.format(
        gib=log_dir.closed_bytes() / _GIB,
        segments=shape.closed_segments,
        partitions=shape.partitions,
        files=len(log_dir.closed_files()),
        at_once=_AT_ONCE,
        runs=times,
        where=where,
    )
    report = Report("catch_up", "Catch-up", how)
    for scheme in (only,) if only else ("http", "https"):
        with work_directory(store_directory) as directory:
            pairs = measure(directory, log_dir, times, https=scheme == "https")
        report_on(report, scheme, pairs)
    sys.exit(report.finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()

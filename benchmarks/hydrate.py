"""Hydrate: `hydrate place` and `hydrate verify` against copying the store's objects to disk."""

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event

import click
from lib import plain_fetch
from lib.installed import installed_programs
from lib.log_dirs import Shape
from lib.measured_process import Run, timed
from lib.mirror_clusters import cluster
from lib.options import benchmark_options, work_directory
from lib.results import Report, Spread, Target
from lib.sidecar import CLUSTER
from lib.sidecar_archive import archive
from lib.stores import BUCKET, RealStore, real_store

from sidetier.mirror.hydrate.batch_scan import RANGE_BYTES

_MIB, _GIB = 1 << 20, 1 << 30
_SEGMENT_BYTES = 64 * _MIB
_PARTITIONS = 8
_AT_ONCE = 12
"""Ranges; `hydrate place` reads 3 of each of 4 partitions at the same time."""
_SETTLE_SECONDS = 10.0
"""Pause after a large deletion, in seconds. A virtual machine returns freed memory to its host
after two seconds, and writing to it again costs 2 s per GiB. Without a pause, a run right after a
large deletion would be twice as fast as the others.
"""
_PLACE_SHARE, _VERIFY_SHARE = 0.7, 0.5
_HOW = """\
{gib:.2f} GiB in {segments} segments of {size} MiB ({partitions} partitions, batches of {batch} KiB,
uncompressed records of 1 KiB) on an S3 server of this machine (versitygw, HTTP), whose CPU time is
not counted. **boto3** fetches the same `.log` objects by ranged GETs of 8 MiB, {at_once} at once
and 4 files at once, into files that it syncs, and does not check the bytes. **place** and
**verify** are the commands with their defaults, beside one KRaft broker (4.3.1): place checks every
CRC, normalises epochs, builds indexes and syncs; verify compares what the broker returns with the
store. Each is a process, from its start to its end, {settle:.0f} s after the previous one: by then
a virtual machine has returned all free memory to its host. The objects are in the page cache.
{runs} runs in turns; ratios compare neighbouring runs."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Everything that the measurements need."""

    directory: Path
    store: RealStore
    objects: Sequence[tuple[str, int]]
    """Key and size of every `.log`."""
    config: Path

    @property
    def size(self) -> int:
        """Bytes of all `.log` files."""
        return sum(size for _, size in self.objects)

    def hydrate(self, step: str, plan: Path, *options: str) -> list[str]:
        """Return the command line of a step."""
        program = str(installed_programs("consumer") / "sidetier")
        return [program, "--config", str(self.config), "hydrate", step, str(plan), *options]

    def timed(self, line: Sequence[str], given: str = "") -> Run:
        """Run a process with this standard input, and measure it.

        Raises:
            RuntimeError: The exit code is not 0.
        """
        os.sync()  # no run writes back another run's data
        Event().wait(_SETTLE_SECONDS)
        return timed(self.size, line, self.directory, self.store.environment, given)[0]

    @property
    def output(self) -> Path:
        """Output of the last process."""
        return self.directory / "output.txt"


def measure(directory: Path, shape: Shape, runs: int) -> list[dict[str, Run]]:
    """Store the archive once; download, place and verify it in alternating order."""
    with real_store(directory / "store") as store:
        objects = archive(directory, store, shape)
        config = directory / "sidetier.yaml"
        settings = {"cluster": {"name": CLUSTER}, "storage": store.storage}
        config.write_text(json.dumps({**settings, "log_dirs": [str(directory)]}))
        bench = Bench(directory, store, objects, config)
        all_runs = []
        for number in range(runs):
            ways = (_fetched, _hydrated) if number % 2 == 0 else (_hydrated, _fetched)
            run: dict[str, Run] = {}
            for way in ways:
                run |= way(bench)
            for name, process in run.items():
                print(
                    f"{name}: {process.megabytes_per_second:.0f} MB/s, {process}", file=sys.stderr
                )
            all_runs.append(run)
        return all_runs


def _fetched(bench: Bench) -> dict[str, Run]:
    """Measure the upper limit: the download of the objects with boto3."""
    files = bench.directory / "fetched"
    files.mkdir()
    server = bench.store.server
    line = [sys.executable, plain_fetch.__file__, str(files), str(RANGE_BYTES), str(_AT_ONCE)]
    line += [BUCKET, server.endpoint_url, server.region]
    run = bench.timed(line, "".join(f"{key} {size}\n" for key, size in bench.objects))
    fetched = sum(file.stat().st_size for file in files.iterdir())
    if fetched != bench.size:
        raise RuntimeError(f"{fetched} bytes were fetched, {bench.size} are stored")
    shutil.rmtree(files)
    return {"boto3": run}


def _hydrated(bench: Bench) -> dict[str, Run]:
    """Run all steps on a new cluster, and measure place and verify."""
    home = bench.directory / "kafka"
    plan = home / "plan.json"
    home.mkdir()
    with cluster(home / "cluster") as broker:
        servers = ("--bootstrap-server", broker.bootstrap_servers)
        bench.timed(bench.hydrate("plan", plan))
        bench.timed(bench.hydrate("prepare", plan, *servers))
        broker.stop_broker(1)
        placed = bench.timed(bench.hydrate("place", plan, "--log-dir", str(broker.log_dirs(1)[0])))
        broker.start_broker(1)
        bench.timed(bench.hydrate("replicate", plan, *servers))
        verified = bench.timed(bench.hydrate("verify", plan, *servers, "--output", "json"))
        outcome = json.loads(bench.output.read_text())
    compared = {row["compared"] for row in outcome["partitions"]}
    if not outcome["equal"] or compared != {"bytes"}:
        raise RuntimeError(f"the restored topics were not equal byte by byte: {outcome}")
    shutil.rmtree(home)
    return {"place": placed, "verify": verified}


def report_on(report: Report, runs: Sequence[dict[str, Run]]) -> None:
    """Fill the report with a table and two targets."""
    rows = []
    for name in ("boto3", "place", "verify"):
        step_runs = [run[name] for run in runs]
        rows.append(
            [
                name,
                Spread.of(process.megabytes_per_second for process in step_runs).text(0),
                Spread.of(process.cpu_per_gib for process in step_runs).text(),
                f"{max(process.peak_resident_bytes for process in step_runs) / _MIB:.0f}",
            ]
        )
    report.table(["process", "MB/s", "CPU s/GiB", "MiB at most"], rows)
    for name, share in (("place", _PLACE_SHARE), ("verify", _VERIFY_SHARE)):
        ratio = Spread.of(
            run[name].megabytes_per_second / run["boto3"].megabytes_per_second for run in runs
        )
        comparison = f"MB/s of {name}, against reading the store to disk"
        report.targets.append(Target(comparison, ratio.middle, share, at_least=True))
    report.raw["runs"] = [{name: asdict(process) for name, process in run.items()} for run in runs]


@click.command()
@benchmark_options
@click.option("--gib", type=click.FloatRange(0.1), help="GiB of segments.  [default: 2]")
@click.option("--batch-kib", type=click.IntRange(2), default=16, help="KiB of a batch.")
def main(
    *,
    quick: bool,
    runs: int | None,
    record: bool,
    json_path: Path | None,
    gib: float | None,
    batch_kib: int,
) -> None:
    """Compare plain ranged GETs, `hydrate place` and `hydrate verify` on the same archive."""
    size = round((gib or (0.25 if quick else 2)) * _GIB)
    segment = min(_SEGMENT_BYTES, size // _PARTITIONS)
    each = max(1, round(size / _PARTITIONS / segment))
    # All partitions have the same segments, which makes the archive eight times as fast to create.
    shape = Shape(_PARTITIONS, each, segment, batch_kib << 10, shared=True)
    with work_directory() as directory:
        results = measure(directory, shape, runs or 1)
    how = _HOW.format(
        gib=results[0]["place"].size / _GIB,
        segments=shape.closed_segments,
        size=segment // _MIB,
        partitions=_PARTITIONS,
        batch=batch_kib,
        at_once=_AT_ONCE,
        settle=_SETTLE_SECONDS,
        runs=len(results),
    )
    report = Report("hydrate", "Hydrating", how)
    report_on(report, results)
    sys.exit(report.finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()

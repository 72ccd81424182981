"""Local retention: one pass over many partitions of a real broker."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from lib.clock import monotonic
from lib.options import benchmark_options, work_directory
from lib.results import Report, Spread, Target
from lib.sidecar import CLUSTER
from lib.stores import RealStore, real_store
from lib.topics import Shape, store, write

from devtools.sandbox.kafka import KraftCluster
from sidetier.brokers.kafka import KAFKA_3_9

_PARTITIONS, _FEW = 2000, 50
_RECORD, _SEGMENT, _PER_PARTITION = 1000, 4096, 9000
_LIMIT_SECONDS = 10.0
_HOW = """\
One broker (Kafka {version}) leads {partitions:,} partitions of one topic, with closed segments of 4
KiB that are archived in versitygw on the same machine. `sidetier trim --dry-run` verifies the
archive of every partition: `offset.wm`, `_metadata`, each `.log`, and the listing. Then `sidetier
trim` does the same, and deletes all closed segments by DeleteRecords requests of 500 partitions
each. The time is that of the whole process, imports and the first Metadata request included. {runs}
dry runs, and one pass that deletes."""


def cpu_seconds() -> float:
    """Return the CPU time of all ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed_trim(
    config: Path, environment: Mapping[str, str], *arguments: str
) -> tuple[float, float, Any]:
    """Run `sidetier trim`; return its seconds, its CPU seconds and its result."""
    program = str(Path(sys.executable).with_name("sidetier"))
    began, before = monotonic(), cpu_seconds()
    done = subprocess.run(
        [program, "--config", str(config), "trim", *arguments, "--output", "json"],
        env={**os.environ, **environment},
        capture_output=True,
        check=False,
    )
    seconds = monotonic() - began
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr.decode()[-2000:]}")
    return seconds, cpu_seconds() - before, json.loads(done.stdout)


def write_config(path: Path, cluster: KraftCluster, real: RealStore, topic: str) -> None:
    """Write a configuration with local retention that keeps the active segment only."""
    config = {
        "cluster": {"name": CLUSTER},
        "log_dirs": [str(log_dir) for log_dir in cluster.log_dirs(1)],
        "broker": {"bootstrap_servers": cluster.bootstrap_servers},
        "storage": real.storage,
        "retention": {"local": {"topics": [topic], "bytes": 0}},
    }
    path.write_text(json.dumps(config))


@click.command()
@benchmark_options
@click.option("--partitions", type=click.IntRange(1), help="Number of partitions.")
def main(
    *, quick: bool, runs: int | None, record: bool, json_path: Path | None, partitions: int | None
) -> None:
    """Archive many small partitions, and trim all of them in one pass."""
    count = partitions or (_FEW if quick else _PARTITIONS)
    runs = runs or (1 if quick else 3)
    shape = Shape(_RECORD, _RECORD, _SEGMENT, count * _PER_PARTITION, partitions=count)
    with work_directory() as directory:
        config = directory / "trim.yaml"
        with (
            KraftCluster(directory / "kafka", KAFKA_3_9) as cluster,
            real_store(directory / "store") as real,
        ):
            write(cluster, shape)
            store(cluster, real, [shape], directory)
            write_config(config, cluster, real, shape.topic)
            dry = [timed_trim(config, real.environment, "--dry-run") for _ in range(runs)]
            seconds, used, result = timed_trim(config, real.environment)
    trimmed = [row for row in result["partitions"] if row["bytes"] and row["reason"] is None]
    if len(trimmed) != count:
        raise RuntimeError(f"{len(trimmed)} of {count} partitions were trimmed")
    report = Report(
        "trim", "Local retention", _HOW.format(version=KAFKA_3_9, partitions=count, runs=runs)
    )
    report.table(
        ["pass", "partitions", "segments' bytes", "seconds", "CPU seconds"],
        [
            [
                "dry run",
                count,
                result["bytes"],
                Spread.of(row[0] for row in dry).text(),
                Spread.of(row[1] for row in dry).text(),
            ],
            ["deletes", count, result["bytes"], f"{seconds:.2f}", f"{used:.2f}"],
        ],
    )
    report.targets = [Target(f"one pass over {count:,} partitions, s", seconds, _LIMIT_SECONDS)]
    report.raw = {
        "dry_run_seconds": [row[0] for row in dry],
        "dry_run_cpu_seconds": [row[1] for row in dry],
        "seconds": seconds,
        "cpu_seconds": used,
    }
    sys.exit(report.finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()

"""Local retention: one pass over many partitions of a real broker."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click
from lib import processes
from lib.clock import monotonic
from lib.installed import installed_programs
from lib.options import benchmark_options, work_directory
from lib.results import Report, Spread, Target
from lib.sidecar import BYTE_CODE, CLUSTER
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
each. The time is that of the whole process, imports and the first Metadata request included.
{segments:,} segments are {requests:,} requests to the store in each pass. {runs} dry runs, and one
pass that deletes."""


class Figures(NamedTuple):
    """Seconds of one run of `sidetier trim`, and the CPU seconds of each process meanwhile."""

    seconds: float
    cpu_seconds: float
    store_cpu_seconds: float
    broker_cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Trim:
    """`sidetier trim` with one configuration, and the process ids of the servers that it asks."""

    config: Path
    environment: Mapping[str, str]
    store: int
    broker: int

    def run(self, *arguments: str) -> tuple[Figures, Any]:
        """Run the command with more arguments, and return its figures and its result."""
        program = str(installed_programs("runtime") / "sidetier")
        line = [program, "--config", str(self.config), "trim"]
        before = self._figures()
        done = subprocess.run(
            [*line, "--output", "json", *arguments],
            env={**os.environ, **BYTE_CODE, **self.environment},
            capture_output=True,
            check=False,
        )
        after = self._figures()
        if done.returncode != 0:
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr.decode()[-2000:]}")
        used = (later - earlier for later, earlier in zip(after, before, strict=True))
        return Figures(*used), json.loads(done.stdout)

    def _figures(self) -> Figures:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return Figures(
            monotonic(),
            children.ru_utime + children.ru_stime,
            processes.cpu_seconds(self.store),
            processes.cpu_seconds(self.broker),
        )


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
            segments = sum(1 for _ in real.bucket.rglob("*.log"))
            trim = Trim(
                config,
                real.environment,
                real.server.process.pid,
                cluster.brokers[1].process.pid,
            )
            trim.run("--dry-run")  # Python compiles the modules
            dry_runs = [trim.run("--dry-run")[0] for _ in range(runs)]
            deletes, result = trim.run()
    trimmed = [row for row in result["partitions"] if row["bytes"] and row["reason"] is None]
    if len(trimmed) != count:
        raise RuntimeError(f"{len(trimmed)} of {count} partitions were trimmed")
    how = _HOW.format(
        version=KAFKA_3_9,
        partitions=count,
        segments=segments,
        requests=3 * count + segments,
        runs=runs,
    )
    report = Report("trim", "Local retention", how)
    columns = ["pass", "partitions", "segments' bytes", "seconds"]
    cpu_columns = [f"CPU s, {process}" for process in ("sidetier", "versitygw", "broker")]
    report.table(
        [*columns, *cpu_columns],
        [
            [
                "dry run",
                count,
                result["bytes"],
                *(Spread.of(v).text() for v in zip(*dry_runs, strict=True)),
            ],
            ["deletes", count, result["bytes"], *(f"{value:.2f}" for value in deletes)],
        ],
    )
    report.targets = [
        Target(f"one pass over {count:,} partitions, s", deletes.seconds, _LIMIT_SECONDS)
    ]
    report.raw = {
        "dry_runs": [figures._asdict() for figures in dry_runs],
        "deletes": deletes._asdict(),
    }
    sys.exit(report.finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()

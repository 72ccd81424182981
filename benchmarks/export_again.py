"""Repeat an export that finds nothing new: the cost of a scheduled run."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import yaml
from lib.archives import LAYOUT, stored
from lib.clock import monotonic
from lib.log_dirs import Shape
from lib.options import benchmark_options, work_directory
from lib.results import Report, Spread

from devtools.sandbox.spark_jars import HUDI_3_5, ICEBERG_4_0, spark_jars
from sidetier.brokers.jars import Distribution
from sidetier.brokers.java import find_java_for_spark

_ROOT = Path(__file__).parents[1]
_SPARK_4 = Path(sys.executable)
_SPARK_35 = _ROOT / ".venv-spark35" / "bin" / "python"
_SESSION = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]")
for one in sys.argv[1:]:
    builder = builder.config(*one.split("=", 1))
spark = builder.getOrCreate()
spark.range(1).count()
spark.stop()
"""
_HOW = """\
An archive on the file-system store, {partitions} partitions with {segments} segments each, exported
once; then the same command {runs} times, in turns, as a schedule calls it: a process each, from its
start to its end. The row beside each command is the minimum that Spark needs with the same jars: a
session that counts one row, and ends. An export of files without Spark is one Python process."""


@dataclass(frozen=True, slots=True)
class Way:
    """An export command, and its Spark session; None without Spark."""

    python: Path
    command: Sequence[str]
    conf: Mapping[str, str] | None

    @property
    def line(self) -> list[str]:
        """Command line of the export."""
        conf = () if self.conf is None else self.conf.items()
        more = [f"--spark-conf={name}={value}" for name, value in conf]
        return [str(self.python), "-m", "sidetier.cli", "export", *self.command, *more]

    @property
    def floor(self) -> list[str]:
        """Command line of an empty session."""
        conf = [f"{name}={value}" for name, value in (self.conf or {}).items()]
        return [str(self.python), "-c", _SESSION, *conf]


Found = dict[str, list[float]]
"""Seconds of each process, by kind of process."""


def measure(directory: Path, shape: Shape, runs: int) -> Found:
    """Export once in each way, and then measure them in alternating order."""
    config = directory / "sidetier.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "cluster": {"name": LAYOUT.cluster},
                "log_dirs": [str(directory)],
                "storage": {"url": f"file://{stored(shape)}"},
            }
        )
    )
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java_for_spark().home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TMPDIR": str(directory),
    }
    ways = _ways(directory, config)
    seconds_by_kind: Found = {
        f"{name}, the first": [_timed(way.line, environment)] for name, way in ways
    }
    for _ in range(runs):
        for name, way in ways:
            seconds_by_kind.setdefault(f"{name}, nothing new", []).append(
                _timed(way.line, environment)
            )
            if way.conf is not None:
                seconds_by_kind.setdefault(f"{name}, Spark alone", []).append(
                    _timed(way.floor, environment)
                )
    return seconds_by_kind


def _ways(directory: Path, config: Path) -> list[tuple[str, Way]]:
    topic = ("bench0", "--config", str(config))
    catalog = "spark.sql.catalog.lake"
    iceberg = {
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "hadoop",
        f"{catalog}.warehouse": str(directory / "warehouse"),
        **_jars(ICEBERG_4_0),
    }
    hudi = ("--option=target.table.name=bench", f"--option=target.base.path={directory}/hudi")
    return [
        ("files", Way(_SPARK_4, ["files", *topic, f"--into=file://{directory}/lake"], None)),
        ("Iceberg", Way(_SPARK_4, ["iceberg", *topic, "--table=lake.db.bench"], iceberg)),
        ("Hudi", Way(_SPARK_35, ["hudi", *topic, *hudi], _jars(HUDI_3_5))),
    ]


def _jars(distribution: Distribution) -> dict[str, str]:
    return {"spark.jars": spark_jars(distribution), "spark.ui.enabled": "false"}


def _timed(line: Sequence[str], environment: Mapping[str, str]) -> float:
    begin = monotonic()
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(line)}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return monotonic() - begin


def report_on(report: Report, found: Found) -> None:
    """Fill the report with a row for each kind of process."""
    report.table(
        ["a process", "seconds"],
        [[name, Spread.of(seconds).text()] for name, seconds in found.items()],
    )
    report.raw = dict(found)


@click.command()
@benchmark_options
def main(*, quick: bool, runs: int | None, record: bool, json_path: Path | None) -> None:
    """Run exports that find nothing new to files, Iceberg and Hudi, against an empty session."""
    runs = runs or (1 if quick else 5)
    shape = Shape(10, 2 if quick else 100, 48 << 10, 6 << 10)
    with work_directory() as directory:
        seconds_by_kind = measure(directory, shape, runs)
    how = _HOW.format(partitions=shape.partitions, segments=shape.segments, runs=runs)
    report = Report("export_again", "An export that finds nothing new", how)
    report_on(report, seconds_by_kind)
    sys.exit(report.finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()

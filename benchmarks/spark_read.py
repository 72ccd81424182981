"""Read on Spark: the archive with `sidetier` against the broker with Spark's Kafka source."""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
from lib.backlog import broker
from lib.options import benchmark_options, work_directory
from lib.results import Report, Spread, Target
from lib.spark_runs import SparkRead, run_spark_reads, spark_session
from lib.stores import FileStore, real_store
from lib.topics import Shape, store, write

_MIB = 1 << 20
_KIB = 1 << 10
_BATCH = 16 * _KIB
_SINKS: dict[str, dict[str, Any]] = {
    "noop": {"columns": None},
    "keys": {"columns": ["key", "offset", "timestamp"]},
    "counts": {"columns": ["offset"]},
    "parquet": {"columns": None},
}
_NAMES = {
    "noop": "all columns, noop",
    "keys": "key, offset, timestamp, noop",
    "counts": "offset, noop",
    "parquet": "all columns, Parquet",
}
_MASTERS = (1, 2)
_CODECS = ("zstd", "lz4")
_HOW = """\
Topics of one partition on a KRaft broker (4.3.1), filled by confluent-kafka, without compression
unless a codec is named, in batches of 16 KiB; the sidecar has stored the closed segments on
versitygw and, a second time, on the file system: {large} MiB of records of 1 KiB, {small} MiB of
records of 100 B; and the same amount as of the first, before the producer compresses it, of records
of 1 KiB of words. Spark 4.0.0 on Java 17 reads the same offsets by its own Kafka source from the
broker, and by `format("sidetier")` and `read()` from the archive, each in {tasks} tasks
(`minPartitions`). The first two reads of each kind warm up and do not count; {runs} runs in turns.
CPU is of the driver, the JVM and Python's workers; broker, S3 server and Spark share the machine's
cores, and all files are in the page cache. Without values, `sidetier` gets the option `columns`,
and the same columns are selected from Kafka's source. Offsets alone come from the metadata of the
segments, without reading a byte of them."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Topic sizes in MiB."""

    runs: int
    large: int
    small: int
    tasks: int = 8

    @property
    def shapes(self) -> list[Shape]:
        """Shapes with records of 1 KiB and of 100 B, and of 1 KiB compressed."""
        large, small = (
            Shape(record, _BATCH, min(size, 128) * _MIB, size * _MIB)
            for record, size in ((_KIB, self.large), (100, self.small))
        )
        segment = min(self.large // 16, 128) * _MIB  # several segments, even if compressed
        return [large, small, *(replace(large, codec=codec, segment=segment) for codec in _CODECS)]


@dataclass(frozen=True, slots=True)
class Found:
    """Reads by number of slots, and the number of records of each topic."""

    reads: Mapping[int, Sequence[SparkRead]]
    ends: Mapping[str, int]

    def seconds(self, slots: int, topic: str, way: str) -> list[float]:
        """Return the seconds of each run."""
        return [spark_read.seconds for spark_read in self._of(slots, topic, way)]

    def cpu(self, slots: int, topic: str, way: str) -> list[float]:
        """Return the CPU seconds of each run."""
        return [spark_read.cpu_seconds for spark_read in self._of(slots, topic, way)]

    def _of(self, slots: int, topic: str, way: str) -> list[SparkRead]:
        return [
            spark_read
            for spark_read in self.reads[slots]
            if (spark_read.topic, spark_read.way) == (topic, way)
        ]


def measure(directory: Path, plan: Plan) -> Found:
    """Write and store the topics, and read them in alternating order."""
    with ExitStack() as stack:
        cluster = stack.enter_context(broker(directory / "kafka"))
        real = stack.enter_context(real_store(directory / "store"))
        files = FileStore(directory / "files")
        for shape in plan.shapes:
            write(cluster, shape)
        ends = store(cluster, real, plan.shapes, directory / "sidecar")
        store(cluster, files, plan.shapes, directory / "sidecar-files")
        os.sync()
        parameters = {
            "runs": plan.runs,
            "tasks": plan.tasks,
            "topics": {topic: {"0": end} for topic, end in ends.items()},
            "sinks": _SINKS,
            "sinks_of": {shape.topic: _sinks_of(shape) for shape in plan.shapes},
            "sides": ["kafka", "s3 format", "s3 read", "file read"],
            "servers": {"kafka": cluster.bootstrap_servers},
            "stores": {"s3": real.reader_options, "file": files.reader_options},
            "output": str(directory / "parquet"),
        }
        reads = {
            slots: run_spark_reads(
                {**parameters, **spark_session(slots, directory)}, real.environment, directory
            )
            for slots in _MASTERS
        }
        return Found(reads, ends)


def _sinks_of(shape: Shape) -> list[str]:
    return [*_SINKS] if shape.codec == "none" else ["noop"]


def report_on(report: Report, plan: Plan, found: Found) -> None:
    """Fill the report: a table for each topic and number of slots, and the targets."""
    for shape in plan.shapes:
        for slots in _MASTERS:
            _table(report, shape, slots, found)
    for shape in plan.shapes:
        _targets(report, shape, found)
    report.raw = {
        "ends": dict(found.ends),
        "reads": {
            slots: [asdict(spark_read) for spark_read in slot_reads]
            for slots, slot_reads in found.reads.items()
        },
    }


def _table(report: Report, shape: Shape, slots: int, found: Found) -> None:
    records = found.ends[shape.topic]
    rows = []
    for sink in _sinks_of(shape):
        name = _NAMES[sink]
        for side in ("kafka", "s3 format", "s3 read", "file read"):
            way = f"{side} {sink}"
            seconds = found.seconds(slots, shape.topic, way)
            cpu = found.cpu(slots, shape.topic, way)
            rows.append(
                [
                    f"{name}: {side}",
                    Spread.of(records / value / 1000 for value in seconds).text(0),
                    Spread.of(records * shape.record / value / 1e6 for value in seconds).text(0),
                    Spread.of(value / records * 1e6 for value in cpu).text(),
                ]
            )
    head = f"{_name(shape)}, local[{slots}]"
    report.table([head, "thousand records/s", "MB/s", "CPU s per million records"], rows)


def _name(shape: Shape) -> str:
    return f"{shape.record} B" + ("" if shape.codec == "none" else f", {shape.codec}")


def _targets(report: Report, shape: Shape, found: Found) -> None:
    large = shape.record == _KIB
    for slots in _MASTERS:
        for face in ("s3 format", "s3 read"):
            description = f"{face}, {_name(shape)}, local[{slots}], against Kafka's source"
            faster = _ratio(found.seconds, slots, shape, ("kafka noop", f"{face} noop"))
            limit = 1.3 if large else 2.0
            report.targets.append(
                Target(f"records/s of {description}", faster, limit, at_least=True)
            )
            dearer = _ratio(found.cpu, slots, shape, (f"{face} noop", "kafka noop"))
            report.targets.append(Target(f"CPU seconds of {description}", dearer, 1.0))
            for sink in _sinks_of(shape):
                if sink not in {"keys", "counts"}:
                    continue
                gain = _ratio(found.seconds, slots, shape, (f"kafka {sink}", f"{face} {sink}"))
                name = f"records/s, {sink} alone, of {description}"
                report.targets.append(Target(name, gain, 5.0, at_least=True))
    one, two = (found.seconds(slots, shape.topic, "file read noop") for slots in _MASTERS)
    description = f"records/s of {_name(shape)} from files, two slots against one"
    gain = Spread.of(one).middle / Spread.of(two).middle
    report.targets.append(Target(description, gain, 1.6, at_least=True))


def _ratio(figures: Any, slots: int, shape: Shape, ways: tuple[str, str]) -> float:  # noqa: ANN401 -- a method of Found
    above, below = (figures(slots, shape.topic, way) for way in ways)
    return Spread.of(a / b for a, b in zip(above, below, strict=True)).middle


@click.command()
@benchmark_options
@click.option("--large", type=int, help="MiB of records of 1 KiB; 1024 by default.")
@click.option("--small", type=int, help="MiB of records of 100 B; 256 by default.")
def main(
    *,
    quick: bool,
    runs: int | None,
    record: bool,
    json_path: Path | None,
    large: int | None,
    small: int | None,
) -> None:
    """Read the archive with format("sidetier") and read(), and Kafka with Spark's source."""
    plan = Plan(
        runs or (1 if quick else 3),
        large or (64 if quick else 1024),
        small or (16 if quick else 256),
    )
    with work_directory() as directory:
        results = measure(directory, plan)
    how = _HOW.format(large=plan.large, small=plan.small, tasks=plan.tasks, runs=plan.runs)
    report = Report("spark_read", "Reading on Spark", how)
    report_on(report, plan, results)
    sys.exit(report.finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()

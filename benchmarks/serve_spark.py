"""Serve Spark: Spark's own Kafka source reads `sidetier serve` and the broker."""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from lib.backlog import broker
from lib.endpoint import Endpoint
from lib.options import benchmark_options, work_directory
from lib.results import Report, Spread, Target
from lib.spark_runs import SparkRead, run_spark_reads, spark_session
from lib.stores import FileStore, real_store
from lib.topics import Shape, closed_end, store, write

_MIB, _KIB = 1 << 20, 1 << 10
_PARTITIONS = 8
_SINKS: dict[str, dict[str, Any]] = {"noop": {"columns": None}}
_SIDES = ("broker", "files", "S3")
_HOW = """\
A topic of eight partitions on a KRaft broker (4.3.1), {size} MiB of records of 1 KiB without
compression in batches of 64 KiB; a sidecar has stored the closed segments of 32 MiB in a directory
and on versitygw. Spark 4.0.0 on Java 17, `local[2]`, reads the same offsets by its own Kafka source
into the noop sink, in eight tasks: from the broker, and from `sidetier serve` over files and over
S3. The first two reads of each kind warm up and do not count; {runs} runs in turns. CPU is of the
driver and its JVM. Servers and Spark share the machine's cores, and all files are in the page
cache."""


def measure(directory: Path, shape: Shape, runs: int) -> tuple[list[SparkRead], int]:
    """Write and store the topic, and read it in alternating order; return reads and records."""
    with ExitStack() as stack:
        cluster = stack.enter_context(broker(directory / "kafka"))
        s3 = stack.enter_context(real_store(directory / "s3"))
        files = FileStore(directory / "files")
        files.directory.mkdir()
        write(cluster, shape)
        store(cluster, s3, [shape], directory / "sidecar-s3")
        records = store(cluster, files, [shape], directory / "sidecar-files")[shape.topic]
        os.sync()
        over_files, over_s3 = (
            stack.enter_context(Endpoint(directory / name, real.storage, real.environment))
            for name, real in (("serve-files", files), ("serve-s3", s3))
        )
        servers = {
            "broker": cluster.bootstrap_servers,
            "files": over_files.bootstrap_servers,
            "S3": over_s3.bootstrap_servers,
        }
        ends = {str(tp.partition): closed_end(cluster, tp) for tp in shape.topic_partitions()}
        parameters = {
            "runs": runs,
            "tasks": _PARTITIONS,
            "topics": {shape.topic: ends},
            "sinks": _SINKS,
            "sinks_of": {shape.topic: [*_SINKS]},
            "sides": _SIDES,
            "servers": servers,
            "stores": {},
            "output": str(directory / "parquet"),
            **spark_session(2, directory),
        }
        return run_spark_reads(parameters, {}, directory), records


def report_on(report: Report, shape: Shape, reads: Sequence[SparkRead], records: int) -> None:
    """Fill the report: one table, and the target of each store."""
    by_side: Mapping[str, list[SparkRead]] = {
        side: [read for read in reads if read.way == f"{side} noop"] for side in _SIDES
    }
    ratios = {
        side: Spread.of(
            peer.seconds / read.seconds
            for read, peer in zip(by_side[side], by_side["broker"], strict=True)
        )
        for side in _SIDES[1:]
    }
    report.table(
        ["Spark's Kafka source, 8 partitions", "MB/s", "of the broker's", "Spark's CPU s"],
        [
            [
                side,
                Spread.of(records * shape.record / read.seconds / 1e6 for read in rows).text(0),
                ratios[side].text() if side in ratios else "",
                Spread.of(read.cpu_seconds for read in rows).text(),
            ]
            for side, rows in by_side.items()
        ],
    )
    report.targets += [
        Target(
            f"MB/s of Spark's Kafka source, 8 partitions, {side}", ratio.middle, 1.0, at_least=True
        )
        for side, ratio in ratios.items()
    ]
    report.raw = {"records": records, "reads": [asdict(read) for read in reads]}


@click.command()
@benchmark_options
@click.option("--size", type=int, help="MiB of the topic; 1024 by default.")
def main(
    *, quick: bool, runs: int | None, record: bool, json_path: Path | None, size: int | None
) -> None:
    """Read a topic by Spark's Kafka source from the broker and through `sidetier serve`."""
    mebibytes = size or (64 if quick else 1024)
    segment = (4 if quick else 32) * _MIB
    shape = Shape(_KIB, 64 * _KIB, segment, mebibytes * _MIB, partitions=_PARTITIONS)
    runs = runs or (1 if quick else 3)
    with work_directory() as directory:
        reads, records = measure(directory, shape, runs)
    report = Report("serve_spark", "Serving Spark", _HOW.format(size=mebibytes, runs=runs))
    report_on(report, shape, reads, records)
    sys.exit(report.finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()

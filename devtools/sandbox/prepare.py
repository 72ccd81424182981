"""Fetch servers, tools and jars: `python -m devtools.sandbox.prepare [demo|kafka|s3|...]`."""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import monotonic

import click

from devtools.sandbox import azurite, chart_tools
from devtools.sandbox.chromium import chromium
from devtools.sandbox.go import GoBuilder
from devtools.sandbox.hdfs import HADOOP_HDFS
from devtools.sandbox.kafka import archive_kafka_classes
from devtools.sandbox.kafka_clients import (
    FILE_CONNECTORS,
    MIRROR_MAKER,
    STREAMS,
    franz_go_reader,
)
from devtools.sandbox.kafka_tools import KAFKA_TOOLS
from devtools.sandbox.s3server import VERSITYGW
from devtools.sandbox.spark import SPARK_4, SPARK_35
from devtools.sandbox.spark_jars import SPARK_3_5, SPARK_4_0
from sidetier.brokers.cache import cache_root
from sidetier.brokers.errors import LocalServerError
from sidetier.brokers.jars import jars_of
from sidetier.brokers.java import find_java, find_java_for_spark
from sidetier.brokers.kafka import JARS, KAFKA_2_8, KAFKA_3_9, KAFKA_4_3

_BYTES_PER_MB = 1_000_000
_KNOWN = ("demo", "kafka", "clients", "s3", "azure", "hdfs", "chart", "spark", "browser")

Step = tuple[str, Callable[[], Path]]
"""Name of what is fetched, and a function that fetches it and returns its path in the cache."""


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(_KNOWN))
def main(names: tuple[str, ...]) -> None:
    """Fetch the named servers, or everything, into the cache. Cached ones are not fetched again.

    demo: the Kafka that the demo starts, and its console consumer. kafka: the versions that the
    tests start, and the console consumer; those of `make test-long` alone are fetched there.
    clients: Kafka's command-line tools, MirrorMaker 2, Connect, Kafka Streams, and a reader with
    franz-go.
    s3: the S3 server that the tests start. azure: Azurite, the Azure emulator that they start.
    hdfs: the NameNode and the DataNode that they start.
    chart: helm, promtool and the Prometheus operator's schemas, which check the chart.
    spark: the jars that the Spark tests need.
    browser: a headless Chromium for the tests of the status page, unless one is on PATH.
    """
    wanted = names or _KNOWN
    try:
        java = find_java_for_spark() if "spark" in wanted else find_java()
        click.echo(f"Java {java.version}: {java.program}")
        with GoBuilder() as builder:
            _run_together([_jars(wanted), _go_programs(wanted, builder), _packages(wanted)])
        _run_together([_class_data(wanted)])  # starts what has been fetched
    except LocalServerError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"kept in {cache_root()}")


def _jars(wanted: Collection[str]) -> Iterator[Step]:
    if "demo" in wanted or "kafka" in wanted:
        yield f"Kafka {KAFKA_4_3}", lambda: jars_of(JARS[KAFKA_4_3])
        yield f"Kafka's tools {KAFKA_4_3}", lambda: jars_of(KAFKA_TOOLS)
    if "kafka" in wanted:
        yield f"Kafka {KAFKA_3_9} with ZooKeeper 3.8.4", lambda: jars_of(JARS[KAFKA_3_9])
        yield f"Kafka {KAFKA_2_8} with ZooKeeper 3.5.9", lambda: jars_of(JARS[KAFKA_2_8])
    if "clients" in wanted:
        yield f"Kafka's tools {KAFKA_4_3}", lambda: jars_of(KAFKA_TOOLS)
        yield f"MirrorMaker {KAFKA_4_3}", lambda: jars_of(MIRROR_MAKER)
        yield f"Kafka Connect's file connectors {KAFKA_4_3}", lambda: jars_of(FILE_CONNECTORS)
        yield f"Kafka Streams {KAFKA_4_3}", lambda: jars_of(STREAMS[KAFKA_4_3])
    if "hdfs" in wanted:
        yield "HDFS 3.4.2", lambda: jars_of(HADOOP_HDFS)
    if "spark" in wanted:
        for jars in (*SPARK_4_0.distributions, *SPARK_3_5.distributions):
            yield f"jars for {jars.name}", partial(jars_of, jars)


def _class_data(wanted: Collection[str]) -> Iterator[Step]:
    if "kafka" in wanted:
        for version in (KAFKA_3_9, KAFKA_4_3):
            yield f"class data of Kafka {version}", partial(archive_kafka_classes, version)
    if "spark" in wanted:
        for spark in (SPARK_4, SPARK_35):
            yield f"class data of Spark {spark}", spark.archive_classes


def _go_programs(wanted: Collection[str], builder: GoBuilder) -> Iterator[Step]:
    if "s3" in wanted:
        yield "S3 server (versitygw)", lambda: builder.program(VERSITYGW)
    if "clients" in wanted:
        yield "reader with franz-go", lambda: franz_go_reader(builder)
    if "chart" in wanted:
        promtool, helm = chart_tools.PROMTOOL, chart_tools.HELM
        yield f"helm {helm.version}", lambda: chart_tools.fetch_helm(builder)
        yield f"promtool {promtool.version}", lambda: builder.program(promtool)
        yield (
            f"schemas of the Prometheus operator {chart_tools.OPERATOR_VERSION}",
            lambda: chart_tools.operator_schemas(builder),
        )


def _packages(wanted: Collection[str]) -> Iterator[Step]:
    if "azure" in wanted:
        yield f"Azurite {azurite.VERSION}", azurite.azurite
    if "browser" in wanted:
        yield "Chromium", lambda: chromium().program


def _run_together(lanes: Sequence[Iterator[Step]]) -> None:
    """Run the lanes side by side, and the steps of each lane one after the other.

    Downloads of jars and packages wait for the network while Go compiles. Go's own steps are in one
    lane: a build already uses every core, and later builds reuse what earlier ones compiled.

    After the first error no lane begins another step. The error is raised when all lanes ended.
    """
    failed = threading.Event()

    def run(lane: Iterator[Step]) -> None:
        for title, fetch in lane:
            if failed.is_set():
                return
            try:
                _fetch(title, fetch)
            except BaseException:
                failed.set()
                raise

    with ThreadPoolExecutor(len(lanes)) as pool:
        for running in [pool.submit(run, lane) for lane in lanes]:
            running.result()


def _fetch(title: str, fetch: Callable[[], Path]) -> None:
    """Run one step, and print its duration and the size of the result."""
    started = monotonic()
    click.echo(f"{title} ...")
    path = fetch()
    size = sum(file.stat().st_size for file in _files(path)) / _BYTES_PER_MB
    click.echo(f"{title}: {size:.0f} MB, {monotonic() - started:.1f} s")


def _files(path: Path) -> Iterator[Path]:
    return (file for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file())


if __name__ == "__main__":
    main()

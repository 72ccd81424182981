"""Fetch servers, tools and jars: `python -m devtools.sandbox.prepare [demo|kafka|s3|...]`."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import monotonic

import click
from rich.console import Console

from devtools.sandbox import azurite, versitygw
from devtools.sandbox.go_tools import HELM, PROMTOOL, go_tool
from devtools.sandbox.hdfs import HADOOP_HDFS
from devtools.sandbox.operator_schemas import VERSION, operator_schemas
from devtools.sandbox.spark_jars import SPARK_3_5, SPARK_4_0
from sidetier.brokers.cache import cache_root
from sidetier.brokers.errors import LocalServerError
from sidetier.brokers.jars import jars_of
from sidetier.brokers.java import find_java, find_java_for_spark
from sidetier.brokers.kafka import JARS, KAFKA_3_9, KAFKA_4_3

_BYTES_PER_MB = 1_000_000
_KNOWN = ("demo", "kafka", "s3", "azure", "hdfs", "chart", "spark")
_TOOLS = (HELM, PROMTOOL)

Step = tuple[str, Callable[[], Path]]


@click.command()
@click.argument("what", nargs=-1, type=click.Choice(_KNOWN))
def main(what: tuple[str, ...]) -> None:
    """Fetch the named servers, or everything, into the cache. Cached ones are not fetched again.

    demo: the Kafka that `sidetier demo` starts. kafka: every version that the tests start.
    s3: the S3 server that the tests start. azure: Azurite, the Azure emulator that they start.
    hdfs: the NameNode and the DataNode that they start.
    chart: helm, promtool and the Prometheus operator's schemas, which check the chart.
    spark: the jars that the Spark tests need.
    """
    console = Console(highlight=False, soft_wrap=True)
    try:
        java = find_java_for_spark() if "spark" in (what or _KNOWN) else find_java()
        console.print(f"Java {java.version}: {java.program}")
        for title, fetch in _steps(what or _KNOWN):
            _fetch(console, title, fetch)
    except LocalServerError as error:
        raise click.ClickException(str(error)) from error
    console.print(f"kept in {cache_root()}")


def _steps(what: tuple[str, ...]) -> Iterator[Step]:
    if "demo" in what or "kafka" in what:
        yield "Kafka 4.3.1", lambda: jars_of(JARS[KAFKA_4_3])
    if "kafka" in what:
        yield "Kafka 3.9.2 with ZooKeeper 3.8.4", lambda: jars_of(JARS[KAFKA_3_9])
    if "s3" in what:
        yield "S3 server (versitygw)", versitygw.program
    if "azure" in what:
        yield f"Azurite {azurite.VERSION}", azurite.azurite
    if "hdfs" in what:
        yield "HDFS 3.4.2", lambda: jars_of(HADOOP_HDFS)
    yield from _tools_and_spark(what)


def _tools_and_spark(what: tuple[str, ...]) -> Iterator[Step]:
    if "chart" in what:
        yield from ((f"{tool.name} {tool.version}", partial(go_tool, tool)) for tool in _TOOLS)
        yield f"schemas of the Prometheus operator {VERSION}", operator_schemas
    if "spark" in what:
        for jars in (*SPARK_4_0.distributions, *SPARK_3_5.distributions):
            yield f"jars for {jars.name}", partial(jars_of, jars)


def _fetch(console: Console, title: str, fetch: Callable[[], Path]) -> None:
    """Run one step with a spinner, and print its duration and the size of the result."""
    started = monotonic()
    console.print(f"{title} ...")
    with console.status(f"fetching {title}"):
        path = fetch()
    size = sum(file.stat().st_size for file in _files(path)) / _BYTES_PER_MB
    console.print(f"{title}: {size:.0f} MB, {monotonic() - started:.1f} s")


def _files(path: Path) -> Iterator[Path]:
    return (file for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file())


if __name__ == "__main__":
    main()

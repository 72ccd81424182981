"""What the commands that copy records share: request, Spark, metrics, signals, progress."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from prometheus_client import CollectorRegistry, start_http_server

from sidetier.cli.arguments import size_text
from sidetier.cli.mirror.options import CopyOptions, EngineOptions
from sidetier.cli.signals import handled_signals
from sidetier.mirror.copy.engine import Counts
from sidetier.mirror.copy.run import CopyRequest
from sidetier.mirror.copy.source import OnGap
from sidetier.mirror.spark_driver import Remaining, SparkEngine
from sidetier.pipeline.spark.session import SUBMITTED, spark_session
from sidetier.segments.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def copy_request(options: CopyOptions) -> CopyRequest:
    """Return which topics a mirror or a restore copies, and how."""
    return CopyRequest(
        topics=options.topics,
        exclude=options.exclude,
        rename=options.rename,
        replication_factor=options.replication_factor,
        accept_log_append_time=options.accept_log_append_time,
        on_gap=OnGap(options.on_gap),
        max_rate=options.max_rate,
        transaction_bytes=options.transaction_bytes,
        transaction_interval=options.transaction_interval,
        max_batch_bytes=options.max_batch_bytes,
    )


def spark_engine(options: EngineOptions, stop: threading.Event) -> SparkEngine | None:
    """Return Spark if the options choose it; signals set `stop`.

    Raises:
        ConfigurationError: There is a master without Spark.
    """
    if options.engine != "spark":
        if options.master is not None:
            raise ConfigurationError("--master is for --engine spark")
        return None

    @contextmanager
    def session(name: str) -> Iterator["SparkSession"]:
        master = options.master or SUBMITTED
        with (
            spark_session(master, name, option="--engine spark") as spark,
            # After the session's start, in which PySpark installs its own handler of SIGINT.
            handled_signals(stop.set),
        ):
            yield spark

    return SparkEngine(session, _show_remaining if sys.stderr.isatty() else None)


def registry_for(port: int | None) -> CollectorRegistry | None:
    """Return the registry of a copy that serves metrics on a port; None without a port."""
    return None if port is None else CollectorRegistry()


@contextmanager
def served(registry: CollectorRegistry | None, port: int | None) -> Iterator[None]:
    """Serve the metrics of a copy on a port meanwhile."""
    if registry is None or port is None:
        yield
        return
    server, thread = start_http_server(port, registry=registry)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class CountsLine:
    """A line on standard error with the counts of a running copy, if that is a terminal."""

    def __init__(self) -> None:
        self._bytes, self._at = 0, time.monotonic()

    def show(self, counts: Counts) -> None:
        """Update the line."""
        now = time.monotonic()
        rate = (counts.bytes - self._bytes) / max(now - self._at, 1e-9)
        self._bytes, self._at = counts.bytes, now
        _show(
            f"{counts.records} records, {size_text(counts.bytes)}, {rate / 1e6:.1f} MB/s, "
            f"lag {counts.lag_records} records, {counts.aborts} aborts"
        )


def _show_remaining(left: Remaining) -> None:
    _show(f"{left.partitions} of {left.of_partitions} partitions, {left.offsets} offsets left")


def _show(text: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{text}\x1b[K", nl=False, err=True)


def end_line() -> None:
    """End the line of progress."""
    if sys.stderr.isatty():
        click.echo(err=True)

"""Metrics of one run of `sidetier gc`, for the textfile collector of node exporter."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from sidetier.archive.gc.run import CollectedPartition, RetentionReport
from sidetier.cli.metrics_file import write_metrics_file
from sidetier.telemetry import gc_catalogue
from sidetier.uploader.clock import SYSTEM_CLOCK


def write_metrics(path: Path, report: RetentionReport) -> None:
    """Write the metrics of the run.

    Raises:
        ConfigurationError: The file cannot be written.
    """

    def by_topic(number: Callable[[CollectedPartition], int]) -> list[tuple[tuple[str], int]]:
        totals = Counter[str]()
        for row in report.rows:
            totals[row.topic] += number(row)
        return [((topic,), total) for topic, total in totals.items()]

    write_metrics_file(
        path,
        {
            gc_catalogue.DELETED_SEGMENTS: by_topic(lambda row: row.segments),
            gc_catalogue.DELETED_BYTES: by_topic(lambda row: row.size_bytes),
            gc_catalogue.BLOCKED_PARTITIONS: by_topic(lambda row: row.blocked),
            gc_catalogue.FAILED_PARTITIONS: by_topic(lambda row: row.problem is not None),
            gc_catalogue.LAST_RUN: [((), SYSTEM_CLOCK.wall())],
        },
    )

"""Requests of exports to files and to tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sidetier.archive.access import ArchiveAccess
from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES
from sidetier.pipeline.export.run import Terms
from sidetier.pipeline.export.sinks.files.options import FilesOptions
from sidetier.pipeline.export.sinks.tables.run import TableTerms
from sidetier.pipeline.export.source import RequestedRange
from sidetier.pipeline.export.values.options import AS_BYTES, ValueOptions
from sidetier.pipeline.export.values.registry import RegistryConfig
from sidetier.pipeline.planning.planner import PACK_SECONDS, Planner
from sidetier.pipeline.planning.request import ReadRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """What every export needs to know.

    Attributes:
        terms: Size of a commit, and other settings of a run.
        follow: Seconds between runs; None to end when everything is exported.
        tail: Records that are not archived: end before them, wait until they are, read tail packs,
            or read them from Kafka.
        registry: How to reach the schema registry.
        patience: Maximum wait for the tail, in seconds.
        max_batch_bytes: Maximum decompressed size of one stored batch.
    """

    topics: tuple[str, ...]
    terms: Terms = field(default_factory=Terms)
    follow: float | None = None
    tail: Literal["stop", "wait", "packs", "kafka"] = "stop"
    registry: RegistryConfig | None = None
    patience: float = 3600.0
    dry_run: bool = False
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES

    def planner(self, archive: ArchiveAccess) -> Planner:
        """Return a planner that reads what the export reads."""
        return Planner(
            archive,
            max_batch_bytes=self.max_batch_bytes,
            with_tail=self.tail == "packs",
            pack_age=PACK_SECONDS,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesRequest(ExportRequest):
    """An export to files.

    Attributes:
        requested: Range to export; None to continue where the last run ended.
        master: Spark master; None for threads of this process.
        workers: Number of topics to export in parallel, and without Spark of Kafka partitions.
        abandon_plan: Whether to discard the plans of earlier runs first.
        patterns: Regular expressions that match the whole names of more topics.
    """

    options: FilesOptions = field(default_factory=FilesOptions)
    requested: RequestedRange | None = None
    accept_changes: bool = False
    master: str | None = None
    workers: int = 2
    abandon_plan: bool = False
    patterns: tuple[str, ...] = ()

    @property
    def fail_on_data_loss(self) -> bool:
        """Whether lost records are an error."""
        return self.options.fail_on_data_loss


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRequest(ExportRequest):
    """An export to a table.

    Attributes:
        read: Records to read of the exported partitions.
        values, flat, null_values: How values become columns.
        keys: How keys become a column.
        kafka: Properties of Kafka's Java client, which reads the tail.
        spark_conf: Settings of the Spark session.
    """

    terms: TableTerms = field(default_factory=TableTerms)
    read: ReadRequest
    values: ValueOptions = AS_BYTES
    keys: ValueOptions = AS_BYTES
    flat: bool = False
    null_values: Literal["keep", "skip"] = "keep"
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    master: str = "local[*]"
    spark_conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def fail_on_data_loss(self) -> bool:
        """Whether lost records are an error."""
        return self.read.fail_on_data_loss

    @property
    def follows_registry(self) -> bool:
        """Whether keys or values have the newest schema of a registry's subject."""
        return any(options.subject is not None for options in (self.values, self.keys))

"""Options of one `sidetier export files` call."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES
from sidetier.pipeline.export.files.options import FilesOptions
from sidetier.pipeline.export.files.source import Asked
from sidetier.pipeline.export.files.values.registry import RegistryConfig


@dataclass(frozen=True, slots=True)
class FilesRequest:
    """One call.

    Attributes:
        into: URL of the output; None if `into_config` has it.
        asked: Range to export; None to continue where the last run ended.
        follow: Seconds between runs; None to end when everything is exported.
        tail: What to do about records that only the brokers have.
        kafka: librdkafka properties to read the tail with; secrets are references.
        registry: How to reach the schema registry.
        patience: Maximum wait for the tail, in seconds.
        master: Spark master; None for threads of this process.
        max_batch_bytes: Maximum decompressed size of one stored batch.
        workers: Number of topics to export in parallel, and without Spark of Kafka partitions.
        abandon_plan: Whether to discard the plans of earlier runs first.
        transaction_timeout: Seconds after which an open transaction counts as hanging.
        metrics_file: File that gets the metrics after each run.
    """

    topics: tuple[str, ...]
    into: str | None
    into_config: Path | None
    options: FilesOptions
    asked: Asked | None = None
    follow: float | None = None
    tail: str = "stop"
    bootstrap: str | None = None
    kafka: Mapping[str, str] = field(default_factory=dict)
    registry: RegistryConfig | None = None
    patience: float = 3600.0
    chunk: int | None = None
    chunk_bytes: int | None = None
    accept_changes: bool = False
    reread: bool = False
    dry_run: bool = False
    master: str | None = None
    workers: int = 2
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES
    abandon_plan: bool = False
    transaction_timeout: float = 900.0
    metrics_file: Path | None = None

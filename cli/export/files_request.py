"""What was asked of `sidetier export files`."""

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
        into: url of the output; None where `into_config` has it.
        asked: a given range; None to go on where the state stands.
        follow: seconds between looks; None to end when everything is exported.
        tail: what becomes of records that only the broker has.
        kafka: properties of librdkafka, with which the tail is read; no secret is among them.
        registry: how the schema registry is reached.
        patience: seconds that `tail` may wait.
        master: of Spark; None for threads of this process.
        max_batch_bytes: of the records of one stored batch, decompressed.
        workers: how many topics are exported at once, and without Spark how many Kafka partitions.
        abandon_plan: whether plans of earlier runs are withdrawn first.
        transaction_timeout: seconds after which an open transaction counts as hung.
        metrics_file: where metrics are written after each round.
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

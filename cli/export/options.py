"""Options of the export commands: common ones, and the options of each kind of export."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import click

from sidetier.cli.arguments import (
    BATCH_BYTES,
    BOOTSTRAP,
    DURATION,
    FILE,
    POSITIVE_SIZE,
    REGISTRY_OPTIONS,
    SCHEMA_REGISTRY,
    pattern,
    topic_name,
)
from sidetier.cli.consume.request import unescaped
from sidetier.cli.options import CommandOptions, argument, group, option, options
from sidetier.config.units import parse_duration


@options
class SchemaOptions:
    """How to read keys or values."""

    format: Literal["bytes", "string", "json", "avro", "protobuf"] = option(
        "--{}-format", default="bytes", help="Format of {}s."
    )
    schema: Path | None = option(
        "--{}-schema",
        metavar="PATH",
        help="JSON Schema or Avro schema of {}s.  [default: the registry's]",
    )
    subject: str | None = option(
        "--{}-subject",
        metavar="NAME",
        help="Subject of the registry with the schema of {}s.  [default: TOPIC-{}]",
    )
    message: str | None = option(
        "--{}-message",
        metavar="NAME",
        help="Full name of the Protobuf message.  [default: the first one of the schema]",
    )

    @property
    def is_framed(self) -> bool:
        """Whether the bytes may name a schema of a registry."""
        return self.format in {"json", "avro", "protobuf"}


@options
class RecordOptions:
    """How to read records."""

    value: SchemaOptions = group("value")
    key: SchemaOptions = group("key")
    writer_schemas: Path | None = option(
        "--writer-schemas",
        metavar="DIR",
        help="Directory of the writers' Avro schemas, one <id>.avsc each.",
    )
    schema_registry: str | None = SCHEMA_REGISTRY
    registry_options: Mapping[str, str] = REGISTRY_OPTIONS
    schema_compatibility: Literal["none", "backward", "forward", "full"] = option(
        "--schema-compatibility",
        default="none",
        help="When the registry's schema changes: rows have the schema of their record (none), the "
        "newest so far (backward, full) or the oldest (forward).",
    )
    null_values: Literal["keep", "skip"] = option(
        "--null-values",
        default="keep",
        help="Action for records without a value (tombstones).",
    )


@options
class ReadOptions:
    """Which records count, and what ends an export."""

    isolation: Literal["read_committed", "read_uncommitted"] = option(
        "--isolation",
        default="read_committed",
        help="Isolation level: read_committed omits aborted records.",
    )
    transaction_timeout: float = option(
        "--transaction-timeout",
        type=DURATION,
        default="15m",
        help="Age at which an open transaction counts as hanging (exit code 3). Use the brokers' "
        "transaction.max.timeout.ms.",
    )
    on_data_loss: Literal["error", "skip"] = option(
        "--on-data-loss",
        default="error",
        help="Action at offsets that are not stored: end with an error, or count and continue.",
    )
    max_batch_bytes: int = BATCH_BYTES
    on_truncation: Literal["error", "reread"] = option(
        "--on-truncation",
        default="error",
        help="Action when brokers have discarded exported records (unclean election): end with an "
        "error, or also export the records that replace them.",
    )


@options
class TailOptions:
    """What to do about records that are not archived."""

    action: Literal["stop", "wait", "packs", "kafka"] = option(
        "--tail",
        default="stop",
        help="Records that are not archived yet: end before them, wait until they are, read those "
        "that tail packs have, or read them from Kafka.",
    )
    timeout: float = option(
        "--tail-timeout",
        default="1h",
        type=DURATION,
        help="Maximum wait when `--tail wait` is set.",
    )
    bootstrap: str | None = BOOTSTRAP
    kafka_options: Mapping[str, str] = option(
        "--kafka-option", help="Property of the Kafka client of `--tail kafka`; repeatable."
    )
    kafka_config: Path | None = option(
        "--kafka-config",
        metavar="PATH",
        type=FILE,
        help="Properties file of the Kafka client of `--tail kafka`.",
    )


_ONCE: Final[Any] = option("--once", help="Export the present records, and exit. [default]")
_FOLLOW: Final[Any] = option("--follow", help="Repeat the export until stopped.")
_CHUNK_BYTES: Final[Any] = option(
    "--chunk-bytes",
    type=POSITIVE_SIZE,
    help="Approximate archived bytes of one commit, such as 2GiB.  [default: all]",
)
_METRICS_FILE: Final[Any] = option(
    "--metrics-file",
    metavar="PATH",
    type=FILE,
    help="File for Prometheus metrics, written after each run: held-back partitions, age of open "
    "transactions.",
)
_DRY_RUN: Final[Any] = option("--dry-run", help="Show what would be exported.")


@options
class FilesCommandOptions(CommandOptions):
    """Options of `sidetier export files`."""

    topics: tuple[str, ...] = argument(required=True, parse=pattern, metavar="TOPIC...")
    into: str | None = option(
        "--into",
        metavar="URL",
        help="URL under which files are written: s3://, file:///, gs://, ...",
    )
    into_config: Path | None = option(
        "--into-config",
        metavar="PATH",
        help="YAML file with `storage` settings of the output, if they differ from the archive's.",
    )
    topics_dir: str = option("--topics-dir", default="topics", help="Directory below the URL.")
    format: Literal["parquet", "json", "avro", "raw"] = option(
        "--format", default="parquet", help="Format of the files."
    )
    compression: str | None = option(
        "--compression",
        help="Compression codec of files.  [default: parquet snappy, avro deflate, others none]",
    )
    partitioner: Literal["default", "field", "time", "hourly", "daily"] = option(
        "--partitioner",
        default="default",
        help="Partition directories by Kafka partition, by fields of the value, or by time.",
    )
    partition_field: tuple[str, ...] = option(
        "--partition-field", metavar="FIELD", help="Field to partition by; repeatable."
    )
    path_format: str | None = option(
        "--path-format",
        metavar="PATTERN",
        help="Directory pattern, such as 'year'=YYYY/'month'=MM/'day'=dd.",
    )
    partition_duration: float | None = option(
        "--partition-duration",
        type=DURATION,
        help="Time span of a directory.  [default: 1h]",
    )
    timezone: str = option(
        "--timezone", default="UTC", help="Time zone of directories, such as Europe/Berlin."
    )
    locale: str = option("--locale", default="en", help="Locale of names in the pattern.")
    timestamp_field: str | None = option(
        "--timestamp-field",
        metavar="FIELD",
        help="Field of the value with the time.  [default: the record's timestamp]",
    )
    flush_size: int = option(
        "--flush-size",
        type=click.IntRange(1),
        default=1_000_000,
        help="Maximum number of records in a file.",
    )
    rotate_interval: float | None = option(
        "--rotate-interval",
        type=DURATION,
        help="Maximum span of record time in a file.",
    )
    max_open_files: int = option(
        "--max-open-files",
        type=click.IntRange(1),
        default=100,
        help="Maximum number of open files for one Kafka partition.",
    )
    whole_files: bool = option(
        "--whole-files",
        help="Write only files that are full (--flush-size, --rotate-interval), and leave other "
        "records to a later run: the borders of files do not depend on the times of runs.",
    )
    records: RecordOptions = group()
    layout: Literal["record", "flat", "value"] | None = option(
        "--layout",
        help="Rows: records with key, offset, headers and value (record); the same with the fields "
        "of the value as columns (flat); or values alone (value).  [default: record]",
    )
    flat: bool = option("--flat", help="The same as --layout flat.")
    delimiter: bytes = option(
        "--delimiter",
        default=r"\n",
        parse=unescaped,
        help=r"Delimiter after each raw value: text, \n, \t, \0, \xHH.",
    )
    key_delimiter: bytes | None = option(
        "--key-delimiter",
        parse=unescaped,
        help="Raw format: write the key and this delimiter before the value.",
    )
    dead_letters: str | None = option(
        "--dead-letters",
        metavar="DIR",
        help="Directory below the URL for records that do not fit the schema.",
    )
    read: ReadOptions = group()
    begin: str | None = option(
        "--from", metavar="WHERE", help="First offset or timestamp to export, inclusive."
    )
    end: str | None = option(
        "--to",
        metavar="WHERE",
        help="Offset or timestamp at which the export ends, exclusive.",
    )
    once: bool = _ONCE
    follow: bool = _FOLLOW
    interval: float = option(
        "--interval",
        default="1m",
        parse=parse_duration,
        help="Pause between runs when `--follow` is set.",
    )
    chunk: int | None = option(
        "--chunk",
        type=click.IntRange(1),
        help="Maximum number of offsets in one commit.  [default: all]",
    )
    chunk_bytes: int | None = _CHUNK_BYTES
    tail: TailOptions = group()
    accept_changes: bool = option(
        "--accept-changes",
        help="Continue in a directory that was written with other settings.",
    )
    abandon_plan: bool = option(
        "--abandon-plan",
        help="Discard the unfinished plan of an earlier run, and make a new one with the options "
        "of this run.",
    )
    metrics_file: Path | None = _METRICS_FILE
    dry_run: bool = _DRY_RUN
    master: str | None = option(
        "--master",
        metavar="MASTER",
        help="Spark master, such as local[2]; `submit` under spark-submit.  [default: no Spark]",
    )
    workers: int = option(
        "--workers",
        type=click.IntRange(1),
        default=2,
        help="Topics exported in parallel. Without Spark also Kafka partitions in parallel, over "
        "all topics.",
    )


@options
class TableOptions(CommandOptions):
    """Options of an export to a table of any format."""

    starting_offsets: str | None = option(
        "--starting-offsets",
        metavar="WHERE",
        help="First offsets of a new table: earliest, latest or JSON.  [default: earliest]",
    )
    ending_offsets: str | None = option(
        "--ending-offsets",
        metavar="WHERE",
        help="End offsets, exclusive: latest or JSON.  [default: latest]",
    )
    read: ReadOptions = group()
    chunk: int | None = option(
        "--chunk",
        type=click.IntRange(1),
        help="Approximate number of offsets in one commit.  [default: all]",
    )
    chunk_bytes: int | None = _CHUNK_BYTES
    timeout: float | None = option(
        "--timeout",
        type=DURATION,
        help="Maximum time of one commit.  [default: 5m]",
    )
    whole_state_every: int | None = option(
        "--whole-state-every",
        type=click.IntRange(1),
        metavar="COMMITS",
        help="Store the whole state in every Nth commit, and changes in the others; for tables "
        "of many partitions.  [default: Iceberg 50, Hudi 10]",
    )
    once: bool = _ONCE
    follow: bool = _FOLLOW
    interval: float | None = option(
        "--interval",
        type=DURATION,
        help="Pause between runs when `--follow` is set.  [default: 1m]",
    )
    tail: TailOptions = group()
    metrics_file: Path | None = _METRICS_FILE
    dry_run: bool = _DRY_RUN
    records: RecordOptions = group()
    flat: bool = option(
        "--flat",
        help="Write the fields of the value as columns, in place of the value column.",
    )
    dead_letters: str | None = option(
        "--dead-letters",
        metavar="URL",
        help="URL for records whose value does not fit the schema.  [default: end with an error]",
    )
    master: str = option(
        "--master", default="local[*]", help="Spark master; `submit` under spark-submit."
    )
    spark_conf: Mapping[str, str] = option(
        "--spark-conf", help="Property of the Spark session; repeatable."
    )


_TOPICS: Final[Any] = argument(required=True, parse=topic_name, metavar="TOPIC...")


@options
class HudiCommandOptions:
    """Options of `sidetier export hudi`."""

    topics: tuple[str, ...] = _TOPICS
    file: Path | None = option(
        "--options",
        metavar="PATH",
        type=FILE,
        help="Properties file with target.base.path, target.table.name, hoodie.*",
    )
    properties: Mapping[str, str] = option(
        "--option", help="One property, which overrides the file; repeatable."
    )
    lock: str | None = option(
        "--lock",
        metavar="URL",
        help="URL of the lease on the table: s3://, file:///  [default: beside the table]",
    )
    lock_config: Path | None = option(
        "--lock-config",
        metavar="PATH",
        help="YAML file with `storage` settings of the lease, if they differ from the archive's.",
    )
    lock_wait: float = option(
        "--lock-wait",
        default="90s",
        parse=parse_duration,
        help="Maximum wait for a lease that another export holds.",
    )
    lock_ttl: float = option(
        "--lock-ttl",
        default="60s",
        parse=parse_duration,
        help="Time after which an unrenewed lease expires. Use the same for all exports into a "
        "table.",
    )
    table: TableOptions = group()


@options
class IcebergCommandOptions:
    """Options of `sidetier export iceberg`."""

    topics: tuple[str, ...] = _TOPICS
    name: str = option(
        "--table",
        required=True,
        metavar="CATALOG.NAMESPACE.TABLE",
        help="Table to write to; it is created if it does not exist.",
    )
    partitioned_by: str = option(
        "--partitioned-by",
        default="",
        show_default=False,
        metavar="SQL",
        help="Partition spec of a created table.",
    )
    table_properties: Mapping[str, str] = option(
        "--table-property", help="Property of a created table; repeatable."
    )
    writer_options: Mapping[str, str] = option(
        "--option",
        help="Option of Iceberg's writer, such as target-file-size-bytes; repeatable.",
    )
    table: TableOptions = group()

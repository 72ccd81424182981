"""Options that determine names and contents of files. The manifest keeps them with each plan."""

import re
from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from sidetier.config.types import Part
from sidetier.pipeline.export.sinks.files.path_format import PathFormat
from sidetier.pipeline.export.sinks.files.zones import zone_named
from sidetier.pipeline.export.values.options import AS_BYTES, ValueFormat, ValueOptions

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
HOURLY_FORMAT: Final = "'year'=YYYY/'month'=MM/'day'=dd/'hour'=HH"
DAILY_FORMAT: Final = "'year'=YYYY/'month'=MM/'day'=dd"
_DIRECTORY: Final = re.compile(r"[^/\x00-\x1f\x7f]+(/[^/\x00-\x1f\x7f]+)*")


class PartitionerKind(StrEnum):
    """Partitioners of Confluent's S3 sink connector."""

    DEFAULT = "default"
    FIELD = "field"
    TIME = "time"
    HOURLY = "hourly"
    DAILY = "daily"


class FileFormat(StrEnum):
    """Format of the files."""

    PARQUET = "parquet"
    JSON = "json"
    AVRO = "avro"
    RAW = "raw"


class Layout(StrEnum):
    """Contents of a row."""

    RECORD = "record"
    """Topic, partition, offset, timestamp, key, headers, and the value as one column."""
    FLAT = "flat"
    """As `RECORD`, with the fields of the value as columns in place of the value."""
    VALUE = "value"
    """Only the value, as in Confluent's sink connector: its fields are the columns."""


def _directory(path: str) -> str:
    if not _DIRECTORY.fullmatch(path) or {".", ".."} & set(path.split("/")):
        raise ValueError("must be a path as `topics` or `raw/topics`, without a slash at its ends")
    return path


Directory = Annotated[str, AfterValidator(_directory)]


class FilesOptions(Part):
    """Options that, with the records of a range of offsets, determine names and contents
    of files.
    """

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    topics_dir: Directory = "topics"
    partitioner: PartitionerKind = PartitionerKind.DEFAULT
    partition_fields: tuple[str, ...] = ()
    path_format: str | None = None
    partition_duration_ms: int | None = Field(default=None, ge=1)
    timezone: str = "UTC"
    locale: str = "en"
    timestamp_field: str | None = None
    """Field of the value that replaces the record's timestamp."""
    flush_size: int = Field(default=1_000_000, ge=1)
    rotate_interval_ms: int | None = Field(default=None, ge=1)
    max_open_files: int = Field(default=100, ge=1)
    whole_files: bool = False
    """Whether a run leaves records that do not fill a file to the next run."""
    format: FileFormat = FileFormat.PARQUET
    compression: str | None = None
    """None for the format's default, the first one in `COMPRESSIONS`."""
    delimiter: bytes = b"\n"
    key_delimiter: bytes | None = None
    value: ValueOptions = ValueOptions()
    key: ValueOptions = AS_BYTES
    layout: Layout = Layout.RECORD
    null_values: Literal["keep", "skip"] = "keep"
    dead_letters: Directory | None = None
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    fail_on_data_loss: bool = True

    @property
    def directories(self) -> frozenset[str]:
        """Directories below which files are written."""
        return frozenset(
            directory for directory in (self.topics_dir, self.dead_letters) if directory is not None
        )

    @property
    def is_by_time(self) -> bool:
        """Whether the partitioner uses timestamps."""
        return self.partitioner in {
            PartitionerKind.TIME,
            PartitionerKind.HOURLY,
            PartitionerKind.DAILY,
        }

    @property
    def duration_ms(self) -> int:
        """Time span of one encoded partition, in ms."""
        fixed = {PartitionerKind.HOURLY: HOUR_MS, PartitionerKind.DAILY: DAY_MS}
        return fixed.get(self.partitioner) or self.partition_duration_ms or HOUR_MS

    @property
    def pattern(self) -> str:
        """Path format of a partitioner by time."""
        daily = self.partitioner is PartitionerKind.DAILY
        return self.path_format or (DAILY_FORMAT if daily else HOURLY_FORMAT)

    @property
    def has_fields(self) -> bool:
        """Whether values have named fields."""
        return self.value.has_fields

    @property
    def has_keys(self) -> bool:
        """Whether rows have a key column that is not plain bytes."""
        return self.layout is not Layout.VALUE and self.key.format is not ValueFormat.BYTES

    @model_validator(mode="after")
    def _by_time(self) -> Self:
        if self.is_by_time:
            PathFormat.parsed(self.pattern, self.locale)
            zone_named(self.timezone)
        elif self.path_format is not None or self.partition_duration_ms is not None:
            raise ValueError("a path format or duration is for a partitioner by time")
        return self

    @model_validator(mode="after")
    def _by_field(self) -> Self:
        by_field = self.partitioner is PartitionerKind.FIELD
        if by_field != bool(self.partition_fields):
            raise ValueError("the field partitioner, and it alone, needs partition fields")
        if (by_field or self.timestamp_field is not None) and not self.has_fields:
            raise ValueError("fields of the value can be used where it is json, avro or protobuf")
        return self

    @model_validator(mode="after")
    def _flat(self) -> Self:
        if self.layout is Layout.FLAT and not self.has_fields:
            raise ValueError("the layout flat is for values in json, avro or protobuf")
        return self

    @model_validator(mode="after")
    def _contents(self) -> Self:
        raw = self.format is FileFormat.RAW
        if raw and self.value.format not in {ValueFormat.BYTES, ValueFormat.STRING}:
            raise ValueError("raw files hold values as they are: leave the value format away")
        if raw and self.key.format is not ValueFormat.BYTES:
            raise ValueError("raw files hold keys as they are: leave the key format away")
        if self.key_delimiter is not None and not raw:
            raise ValueError("a key delimiter is for raw files; others have a column for keys")
        if self.compression is not None and self.compression not in COMPRESSIONS[self.format]:
            known = ", ".join(COMPRESSIONS[self.format])
            raise ValueError(f"{self.format} files know the compressions {known}")
        return self


COMPRESSIONS: Final[dict[FileFormat, tuple[str, ...]]] = {
    FileFormat.PARQUET: ("snappy", "gzip", "zstd", "lz4", "none"),
    FileFormat.JSON: ("none", "gzip"),
    FileFormat.AVRO: ("deflate", "null"),
    FileFormat.RAW: ("none", "gzip"),
}
"""Compressions of each format. The first one is the default."""

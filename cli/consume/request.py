"""Options of one `sidetier consume` call."""

from dataclasses import dataclass
from enum import StrEnum

from sidetier.cli.consume.positions import BEGINNING, END, Place
from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES


class RecordFormat(StrEnum):
    """What is written for records."""

    JSON = "json"
    """One JSON object per line."""
    RAW = "raw"
    """Values, each followed by a delimiter."""
    COUNT = "count"
    """The number of records alone."""


class TextEncoding(StrEnum):
    """Encoding of keys and values in JSON."""

    UTF_8 = "utf-8"
    """Text; bytes that are not UTF-8 as `{"base64": "..."}`."""
    BASE64 = "base64"


@dataclass(frozen=True, slots=True)
class Request:
    """One call of `sidetier consume`.

    Attributes:
        partitions: Empty for all partitions of the topic.
        limit: Maximum number of records over all partitions; None for no limit.
        follow: Read on without an end.
    """

    topic: str
    partitions: tuple[int, ...] = ()
    begin: Place = BEGINNING
    end: Place = END
    mode: str = "TIERED_STORAGE_ONLY"
    bootstrap: str | None = None
    isolation: str = "read_committed"
    skip_gaps: bool = False
    follow: bool = False
    limit: int | None = None
    form: RecordFormat = RecordFormat.JSON
    encoding: TextEncoding = TextEncoding.UTF_8
    delimiter: bytes = b"\n"
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES

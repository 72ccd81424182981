"""What was asked for on the command line."""

from dataclasses import dataclass
from enum import StrEnum

from sidetier.cli.consume.positions import BEGINNING, END, Place
from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES


class RecordFormat(StrEnum):
    """What is written of records."""

    JSON = "json"
    """A JSON object per line."""
    RAW = "raw"
    """Values, each with a delimiter behind it."""
    COUNT = "count"
    """How many there are."""


class TextEncoding(StrEnum):
    """How keys and values stand in JSON."""

    UTF_8 = "utf-8"
    """As text; what is none, as `{"base64": "..."}`."""
    BASE64 = "base64"


@dataclass(frozen=True, slots=True)
class Request:
    """One call of `sidetier consume`.

    `partitions` is empty for all that there are; `limit` is in records over all of them; with
    `follow` there is no end.
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

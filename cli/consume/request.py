"""The request of a call of `sidetier consume`: filters, formats and delimiters."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sidetier.archive.positions import BEGINNING, END, Position
from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES

_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_HEX_DIGITS: Final = 2


def unescaped(text: str) -> bytes:
    r"""Return the bytes of a delimiter: \n, \t, \r, \0, a doubled backslash and \xHH are one byte
    each.

    Raises:
        ValueError: Anything else follows a backslash.
    """
    result, rest = b"", text
    while rest:
        before, slash, behind = rest.partition("\\")
        result += before.encode()
        if not slash:
            break
        if behind[:1] in _ESCAPES and behind:
            result, rest = result + _ESCAPES[behind[0]], behind[1:]
        else:
            result, rest = result + _hex(behind, text), behind[1 + _HEX_DIGITS :]
    return result


def _hex(behind: str, text: str) -> bytes:
    digits = behind[1 : 1 + _HEX_DIGITS]
    try:
        if behind[:1] == "x" and len(digits) == _HEX_DIGITS:
            return bytes([int(digits, 16)])
    except ValueError:
        pass
    raise ValueError(f"{text!r}: after a backslash, give n, t, r, 0, xHH or another backslash")


class RecordFormat(StrEnum):
    """The output for each record."""

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


ANY: Final = None
"""Value of a header that may have any value."""
HeaderFilter = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Filters:
    """Conditions that a record must meet.

    Attributes:
        keys: The key is one of these; empty for any key.
        headers: Each of these headers occurs, with this value or with `ANY`.
        contains: The value contains each of these.
    """

    keys: tuple[bytes, ...] = ()
    headers: tuple[HeaderFilter, ...] = ()
    contains: tuple[bytes, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.columns)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the conditions need."""
        used = {"key": self.keys, "headers": self.headers, "value": self.contains}
        return tuple(name for name, wanted in used.items() if wanted)


@dataclass(frozen=True, slots=True)
class Formats:
    """How keys and values are decoded: as bytes, json, avro or protobuf.

    Attributes:
        registry: URL of the schema registry; None without one.
        registry_options: Properties of Confluent's registry client.
    """

    key: str = "bytes"
    value: str = "bytes"
    registry: str | None = None
    registry_options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """One call of `sidetier consume`.

    Attributes:
        partitions: Empty for all partitions of the topic.
        limit: Maximum number of records over all partitions; None for no limit.
        follow: Continue to read without an end.
    """

    topic: str
    partitions: tuple[int, ...] = ()
    begin: Position = BEGINNING
    end: Position = END
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
    filters: Filters = field(default_factory=Filters)
    formats: Formats = field(default_factory=Formats)

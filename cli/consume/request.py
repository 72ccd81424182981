"""The request of a call of `sidetier consume`: positions, formats and delimiters."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import Final

from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES
from sidetier.config.times import FORMS as TIMES
from sidetier.config.times import HIGHEST, is_before_now, parse_time
from sidetier.segments.offsets import OffsetRange

_OFFSET: Final = re.compile(r"-?\d{1,19}")
FORMS: Final = (
    f"an offset (1234), a number of records before the end (-100), {TIMES}, beginning or end"
)


class PlaceKind(Enum):
    """Meaning of a place's number."""

    BEGINNING = auto()
    END = auto()
    OFFSET = auto()
    BEFORE_END = auto()
    """Number of offsets before the end."""
    TIME = auto()
    """Milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Place:
    """A position in every partition; `kind` says what `number` means."""

    kind: PlaceKind
    number: int = 0


BEGINNING: Final = Place(PlaceKind.BEGINNING)
END: Final = Place(PlaceKind.END)


def parse_place(text: str, now_ms: int) -> Place:
    """Parse a position. Times before now are relative to `now_ms`, in ms since 1970.

    Raises:
        ValueError: The text has none of the `FORMS`.
    """
    word = text.strip()
    if word.lower() in ("beginning", "end"):
        return BEGINNING if word.lower() == "beginning" else END
    if _OFFSET.fullmatch(word):
        number = int(word)
        if abs(number) > HIGHEST:
            raise ValueError(f"{text!r} is beyond any offset")
        if word.startswith("-"):
            return Place(PlaceKind.BEFORE_END, -number)
        return Place(PlaceKind.OFFSET, number)
    try:
        return Place(PlaceKind.TIME, parse_time(word, now_ms))
    except ValueError as error:
        if word.startswith("@") or is_before_now(word):
            raise
        raise ValueError(f"{text!r} is neither {FORMS}") from error


def offset_of(place: Place, bounds: OffsetRange, at_time: Callable[[int], int | None]) -> int:
    """Return the offset of a place in a partition with these bounds.

    `at_time` returns the offset of the first record with a timestamp (ms) or a later one. If it
    returns None, the place is the end of the partition.
    """
    if place.kind is PlaceKind.BEGINNING:
        return bounds.start
    if place.kind is PlaceKind.OFFSET:
        return place.number
    if place.kind is PlaceKind.BEFORE_END:
        return max(bounds.start, bounds.end - place.number)
    offset = at_time(place.number) if place.kind is PlaceKind.TIME else None
    return bounds.end if offset is None else offset


def is_above(begin: Place, end: Place) -> bool:
    """Return whether the range between the two places is empty in every possible partition.

    False if that depends on the partition: for an offset and a time, for example.
    """
    if begin.kind is end.kind is PlaceKind.BEFORE_END:
        return begin.number < end.number
    if begin.kind is end.kind:
        return begin.number > end.number
    return begin.kind is PlaceKind.END and end.kind in {PlaceKind.BEGINNING, PlaceKind.BEFORE_END}


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
    filters: Filters = field(default_factory=Filters)
    formats: Formats = field(default_factory=Formats)

"""The request of a call of `sidetier consume`: positions, formats and delimiters."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, StrEnum, auto
from typing import Final

from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES
from sidetier.segments.offsets import OffsetRange

_OFFSET: Final = re.compile(r"-?\d{1,19}")
_STAMP: Final = re.compile(r"@(-?\d{1,19})")
_HIGHEST: Final = 2**63 - 1
FORMS: Final = (
    "an offset (1234), a number of records before the end (-100), a time (2026-11-21T08:00:00Z, or "
    "milliseconds since 1970 as @1700000000000), beginning or end"
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


def parse_place(text: str) -> Place:
    """Parse a position.

    Raises:
        ValueError: The text has none of the `FORMS`.
    """
    word = text.strip()
    if word.lower() in ("beginning", "end"):
        return BEGINNING if word.lower() == "beginning" else END
    stamp = _STAMP.fullmatch(word)
    if stamp is not None:
        return Place(PlaceKind.TIME, _bounded(int(stamp[1]), text))
    if _OFFSET.fullmatch(word):
        number = _bounded(int(word), text)
        if word.startswith("-"):
            return Place(PlaceKind.BEFORE_END, -number)
        return Place(PlaceKind.OFFSET, number)
    return Place(PlaceKind.TIME, _milliseconds(word))


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


def _bounded(number: int, text: str) -> int:
    if abs(number) > _HIGHEST:
        raise ValueError(f"{text!r} is beyond any offset or timestamp")
    return number


def _milliseconds(text: str) -> int:
    """Parse ISO 8601. A time without a zone is UTC, as all times that Kafka stores."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither {FORMS}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000


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

"""Start and end positions of the command line, and the offsets that they mean."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Final

from sidetier.segments.offsets import OffsetRange

_OFFSET: Final = re.compile(r"-?\d{1,19}")
_STAMP: Final = re.compile(r"@(-?\d{1,19})")
_HIGHEST: Final = 2**63 - 1
FORMS: Final = (
    "an offset (1234), that many before the end (-100), a time (2026-11-21T08:00:00Z, or "
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

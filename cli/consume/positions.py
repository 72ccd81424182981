"""Where to begin and where to end: what people write, and the offset that it means. Pure."""

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
    """What a place's number is."""

    BEGINNING = auto()
    END = auto()
    OFFSET = auto()
    BEFORE_END = auto()
    """So many offsets before the end."""
    TIME = auto()
    """Milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in every partition; `number` as its kind has it."""

    kind: PlaceKind
    number: int = 0


BEGINNING: Final = Place(PlaceKind.BEGINNING)
END: Final = Place(PlaceKind.END)


def parse_place(text: str) -> Place:
    """What somebody means.

    Raises:
        ValueError: it is none of `FORMS`.
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
    """The offset that a place is in a partition with these bounds.

    `at_time` is asked for the first record with a timestamp (ms) or a later one: where there is
    none, the place is the end.
    """
    if place.kind is PlaceKind.BEGINNING:
        return bounds.start
    if place.kind is PlaceKind.OFFSET:
        return place.number
    if place.kind is PlaceKind.BEFORE_END:
        return max(bounds.start, bounds.end - place.number)
    found = at_time(place.number) if place.kind is PlaceKind.TIME else None
    return bounds.end if found is None else found


def is_above(begin: Place, end: Place) -> bool:
    """Whether no record can be between the two places, whatever a partition holds.

    False where that depends on the partition: an offset and a time, for example.
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
    """ISO 8601; without a zone it is UTC, as every time that Kafka stores."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither {FORMS}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000

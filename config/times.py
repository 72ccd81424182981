"""Times that users give: dates, times, milliseconds since 1970, and times before now."""

import re
from datetime import UTC, datetime
from typing import Final

from sidetier.config.units import parse_duration

FORMS: Final = (
    "a date or time (2026-11-21, 2026-11-21T08:00:00Z; UTC without a zone), a time before now (2h, "
    "30m, 7d), or milliseconds since 1970 (@1700000000000)"
)
_STAMP: Final = re.compile(r"@(-?\d{1,19})")
_BEFORE_NOW: Final = re.compile(r"-?(\d{1,12}(?:\.\d{1,9})?(?:ms|s|m|h|d))")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
HIGHEST: Final = 2**63 - 1
"""The highest offset and timestamp."""


def time_text(milliseconds: int, timespec: str = "seconds") -> str:
    """Return ms since 1970 as a date and time in UTC, or as `N ms` if the calendar has no such
    date: a producer can send any timestamp.
    """
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec=timespec)
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms"


def is_before_now(text: str) -> bool:
    """Return whether the text is a time relative to now, which moves with each call."""
    return _BEFORE_NOW.fullmatch(text.strip()) is not None


def parse_time(text: str, now_ms: int) -> int:
    """Return the time in ms since 1970. A time without a zone is UTC, as all times of Kafka.

    Args:
        text: One of the `FORMS`. A time before now may have a minus sign: 2h and -2h are equal.
        now_ms: The present time in ms since 1970.

    Raises:
        ValueError: The text has another form, or is beyond any timestamp.
    """
    word = text.strip()
    stamp, before = _STAMP.fullmatch(word), _BEFORE_NOW.fullmatch(word)
    if stamp is not None:
        return _bounded(int(stamp[1]), text)
    if before is not None:
        return _bounded(now_ms - round(parse_duration(before[1]) * 1000), text)
    try:
        moment = datetime.fromisoformat(word)
    except ValueError:
        raise ValueError(f"{text!r} is not a time: use {FORMS}") from None
    since = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)) - _EPOCH
    return since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000


def _bounded(number: int, text: str) -> int:
    if abs(number) > HIGHEST:
        raise ValueError(f"{text!r} is beyond any timestamp")
    return number

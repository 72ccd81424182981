"""Local time of timestamps in ms since 1970."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import numpy.typing as npt

from sidetier.segments.errors import ConfigurationError

Longs = npt.NDArray[np.int64]

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
EARLIEST_MS: Final = -62_135_596_800_000 + 2 * 86_400_000
"""With `LATEST_MS`, the range of times that have a date in the years 1 to 9999 in every
time zone.
"""
LATEST_MS: Final = 253_402_300_799_999 - 2 * 86_400_000
_MINUTE_MS: Final = 60_000
_MAX_REMEMBERED: Final = 100_000


def zone_named(name: str) -> ZoneInfo:
    """Return the time zone with this IANA name, such as `Europe/Berlin`.

    Raises:
        ConfigurationError: this host has no such time zone.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigurationError(
            f"timezone {name!r}: no time zone of that name is known here; use a name such as "
            "Europe/Berlin or UTC; if the system has no time zones, install the package tzdata"
        ) from None


def moment(milliseconds: int) -> datetime:
    """Return the date and time this many ms after the start of 1970, in UTC or local time. The
    result is marked as UTC in both cases.
    """
    return EPOCH + timedelta(milliseconds=milliseconds)


def local_time(timestamps: Longs, zone: ZoneInfo) -> Longs:
    """Return the wall-clock times of a zone, in ms since 1970-01-01T00:00 of that clock.

    Args:
        timestamps: ms since 1970, from `EARLIEST_MS` to `LATEST_MS`.
        zone: the time zone.
    """
    if zone.key == "UTC":
        return timestamps
    minutes, positions = np.unique(timestamps // _MINUTE_MS, return_inverse=True)
    offsets = np.array([_offset(zone, int(minute)) for minute in minutes], dtype=np.int64)
    local: Longs = timestamps + offsets[positions]
    return local


@lru_cache(_MAX_REMEMBERED)
def _offset(zone: ZoneInfo, minute: int) -> int:
    """Return the zone's offset from UTC in this minute, in ms."""
    offset = moment(minute * _MINUTE_MS).astimezone(zone).utcoffset()
    return 0 if offset is None else round(offset.total_seconds() * 1000)

"""Local time of timestamps in milliseconds since 1970."""

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
"""The first moments that have a date, in ms since 1970, and the last; whatever the zone."""
LATEST_MS: Final = 253_402_300_799_999 - 2 * 86_400_000
_MINUTE_MS: Final = 60_000
_MOST_REMEMBERED: Final = 100_000


def zone_named(name: str) -> ZoneInfo:
    """The zone with this name of the IANA database, such as `Europe/Berlin`.

    Raises:
        ConfigurationError: there is none on this host.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigurationError(
            f"timezone {name!r}: no time zone of that name is known here; names are as "
            "Europe/Berlin, UTC; the package tzdata brings them where the system has none"
        ) from None


def moment(milliseconds: int) -> datetime:
    """So many milliseconds after the beginning of 1970; on a zone's clock or in UTC."""
    return EPOCH + timedelta(milliseconds=milliseconds)


def local_time(timestamps: Longs, zone: ZoneInfo) -> Longs:
    """The same moments as a clock in the zone shows them, in ms since its own 1970.

    Takes what lies between `EARLIEST_MS` and `LATEST_MS`.
    """
    if zone.key == "UTC":
        return timestamps
    minutes, where = np.unique(timestamps // _MINUTE_MS, return_inverse=True)
    offsets = np.array([_offset(zone, int(minute)) for minute in minutes], dtype=np.int64)
    found: Longs = timestamps + offsets[where]
    return found


@lru_cache(_MOST_REMEMBERED)
def _offset(zone: ZoneInfo, minute: int) -> int:
    """How far the zone's clock is ahead of UTC in this minute, in ms."""
    offset = moment(minute * _MINUTE_MS).astimezone(zone).utcoffset()
    return 0 if offset is None else round(offset.total_seconds() * 1000)

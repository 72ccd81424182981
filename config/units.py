"""Durations and sizes: parsed with a unit, stored as seconds and bytes, shown with a unit."""

import re
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_NUMBER_AND_UNIT: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z%]*)\s*")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES: Final = {
    "B": 1,
    "kB": 1000,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "TiB": 1024**4,
}
_DURATION_HELP: Final = "must be a duration such as 200ms, 30s, 5m, 1h, or a number of seconds"
_SIZE_HELP: Final = "must be a size such as 16MiB, 1GB, or a number of bytes"
_FLOOR_HELP: Final = "must be a size such as 10GiB, or a share of the disk such as 5%"
_WHOLE_PERCENT: Final = 100.0
_STEP: Final = 1000


def _scaled(value: object, units: dict[str, float], help_text: str) -> float:
    """Return the number in base units; `units[""]` is the unit of a bare number.

    Raises:
        ValueError: not a number with a known unit, or negative.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(help_text)  # noqa: TRY004 -- pydantic takes ValueError only
    if isinstance(value, int | float):
        number, unit = float(value), ""
    else:
        match = _NUMBER_AND_UNIT.fullmatch(value)
        if match is None:
            raise ValueError(help_text)
        number, unit = float(match[1]), match[2]
    if unit not in units or not 0 <= number < float("inf"):
        raise ValueError(help_text)
    return number * units[unit]


def parse_duration(value: object) -> float:
    """Return the seconds of `30s`, `200ms`, `5m`, `1h`, `2d`, or of a bare number of seconds.

    Raises:
        ValueError: the value has another form.
    """
    return _scaled(value, {**_SECONDS, "": 1.0}, _DURATION_HELP)


def parse_size(value: object) -> int:
    """Return the bytes of `16MiB`, `1GB`, or of a bare number of bytes.

    Raises:
        ValueError: the value has another form, or is not a whole number of bytes.
    """
    size = _scaled(value, {**_BYTES, "": 1}, _SIZE_HELP)
    if size != int(size):
        raise ValueError(_SIZE_HELP)
    return int(size)


def format_duration(seconds: float) -> str:
    """Return the shortest text that `parse_duration` parses to the same number."""
    for unit in ("d", "h", "m", "s"):
        if seconds and seconds % _SECONDS[unit] == 0:
            return f"{int(seconds / _SECONDS[unit])}{unit}"
    milliseconds = round(seconds * 1000, 6)
    if milliseconds == int(milliseconds) and milliseconds:
        return f"{int(milliseconds)}ms"
    return f"{seconds:g}s"


def format_size(size: int) -> str:
    """Return the shortest text that `parse_size` parses to the same number."""
    for unit in ("TiB", "GiB", "MiB", "KiB", "TB", "GB", "MB", "kB"):
        if size and size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return f"{size}B"


def size_text(size: int) -> str:
    """Return a size for people: `0 B`, `999 B`, `1.5 kB`, `12.3 MB`."""
    value, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if abs(value) < _STEP:
            break
        value, unit = value / _STEP, larger
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"


@dataclass(frozen=True, slots=True)
class DiskFloor:
    """Free disk space that is left to the broker.

    Attributes:
        size: in bytes; None if a share is given.
        share: share of the file system, from 0 to 1.
    """

    size: int | None = None
    share: float = 0.0

    def of(self, total: int) -> int:
        """Return the floor in bytes for a file system of `total` bytes."""
        return self.size if self.size is not None else int(total * self.share)

    def __str__(self) -> str:
        """Return the value as written in the configuration."""
        if self.size is not None:
            return format_size(self.size)
        return f"{self.share * _WHOLE_PERCENT:g}%"


def parse_disk_floor(value: object) -> DiskFloor:
    """Parse `5%` or a size.

    Raises:
        ValueError: the value is neither.
    """
    if isinstance(value, DiskFloor):
        return value
    if not isinstance(value, str) or not value.rstrip().endswith("%"):
        try:
            return DiskFloor(size=parse_size(value))
        except ValueError:
            raise ValueError(_FLOOR_HELP) from None
    percent = _scaled(value, {"%": 1.0}, _FLOOR_HELP)
    if percent >= _WHOLE_PERCENT:
        raise ValueError(_FLOOR_HELP)
    return DiskFloor(share=percent / _WHOLE_PERCENT)


def _schema(number: str, units: str, title: str) -> WithJsonSchema:
    """Return the schema of a bare number, or of a number with one of these units."""
    text = {"type": "string", "pattern": rf"^\s*\d+(\.\d+)?\s*({units})?\s*$"}
    return WithJsonSchema({"anyOf": [{"type": number, "minimum": 0}, text], "title": title})


_SIZE_UNITS: Final = "[kKMGT]B|[KMGT]iB|B"

Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    _schema("number", "ms|s|m|h|d", "duration"),
]
"""A duration in seconds."""

Size = Annotated[
    int,
    BeforeValidator(parse_size),
    PlainSerializer(format_size, return_type=str),
    _schema("integer", _SIZE_UNITS, "size"),
]
"""A size in bytes."""

FreeDisk = Annotated[
    DiskFloor,
    BeforeValidator(parse_disk_floor),
    PlainSerializer(str, return_type=str),
    _schema("integer", f"%|{_SIZE_UNITS}", "size or percentage"),
]
"""A size in bytes, or a share of the file system."""

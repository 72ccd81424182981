"""Arguments and options that several commands share, and number formats for people."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from sidetier.archive.positions import Position, parse_position
from sidetier.cli.options import Parsed, option, options
from sidetier.config import times, units
from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES, LARGEST_MAX_BATCH_BYTES
from sidetier.config.times import is_before_now, parse_time
from sidetier.config.units import parse_size
from sidetier.segments.names import is_legal_topic
from sidetier.segments.offsets import TopicPartition
from sidetier.uploader.clock import SYSTEM_CLOCK

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
# Kafka's protocol has int32 for partitions.
_MAX_PARTITIONS: Final = 2**31 - 1


def _now_ms() -> int:
    return int(SYSTEM_CLOCK.wall() * 1000)


PARTITION: Final = click.IntRange(0, _MAX_PARTITIONS)
PROMOTED_AT_ONCE: Final = 8
"""Partitions whose tails are promoted at the same time."""


def most_lines(lines: Sequence[str], most: int = 10) -> list[str]:
    """Return the first lines, and a line with the number of the others."""
    more = len(lines) - most
    return [*lines[:most], *([f"and {more} more: --output json has them all"] if more > 0 else [])]


def topic_name(text: str) -> str:
    """Return the text if Kafka accepts it as the name of a topic. Raises ValueError."""
    if not is_legal_topic(text):
        raise ValueError(
            f"{text!r} is no topic: letters, digits, '.', '_' and '-', 249 of them at most"
        )
    return text


def pattern(text: str) -> str:
    """Return the text if it is a regular expression. Raises ValueError."""
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from None
    return text


def place(text: str) -> Position:
    """Return a position that applies to every partition, in one of the `FORMS`."""
    return parse_position(text, _now_ms())


def fixed_place(text: str) -> Position:
    """Return a position that is the same when the command is repeated."""
    if is_before_now(text):
        raise ValueError(
            f"{text!r} moves with now, and the same command continues an interrupted run: give a "
            "date or time, such as 2026-11-21T08:00:00Z"
        )
    return place(text)


def time_ms(text: str) -> int:
    """Return a time in ms since 1970."""
    return parse_time(text, _now_ms())


def positive_size(text: str) -> int:
    """Return a number of bytes above 0, such as `512MiB`."""
    size = parse_size(text)
    if size < 1:
        raise ValueError("must be above 0")
    return size


def _max_batch_bytes(text: str) -> int:
    size = parse_size(text)
    if not 0 < size <= LARGEST_MAX_BATCH_BYTES:
        raise ValueError(f"must be above 0 and at most {LARGEST_MAX_BATCH_BYTES} bytes")
    return size


DURATION: Final = Parsed(units.parse_duration, "duration")
SIZE: Final = Parsed(parse_size, "size")
POSITIVE_SIZE: Final = Parsed(positive_size, "size")
TIME: Final = Parsed(time_ms, "time")
WHERE: Final = Parsed(place, "where")
FIXED_WHERE: Final = Parsed(fixed_place, "where")
FILE: Final = click.Path(path_type=Path, dir_okay=False)
EXISTING_FILE: Final = click.Path(path_type=Path, dir_okay=False, exists=True)

BOOTSTRAP: Final[Any] = option(
    "--bootstrap-server",
    "--bootstrap",
    metavar="HOST:PORT",
    help="Kafka cluster to connect to.  [default: broker.bootstrap_servers]",
)
"""For a field `bootstrap: str | None`; named as in Kafka's own tools."""
BATCH_BYTES: Final[Any] = option(
    "--max-batch-bytes",
    metavar="SIZE",
    default=f"{DEFAULT_MAX_BATCH_BYTES >> 20}MiB",
    parse=_max_batch_bytes,
    help="Maximum decompressed size of one record batch. Protects memory against decompression "
    "bombs: a larger batch is an error and is never skipped.",
)
"""For a field `max_batch_bytes: int`."""
SCHEMA_REGISTRY: Final[Any] = option(
    "--schema-registry",
    metavar="URL[,URL]",
    help="URL of the registry with the schemas of keys and values.",
)
"""For a field `schema_registry: str | None`."""
REGISTRY_OPTIONS: Final[Any] = option(
    "--schema-registry-option",
    help="Property of Confluent's registry client, such as ssl.ca.location; secrets as env:NAME or "
    "file:/path. Repeatable.",
)
"""For a field `registry_options: Mapping[str, str]`."""


def sidecar_url(*aliases: str, asked_for: str = "Sidecar to ask.") -> Any:  # noqa: ANN401 -- as `option`
    """Make a field `sidecar: str | None` the URL of a sidecar, without a trailing slash.

    Args:
        aliases: Earlier names of the option.
        asked_for: The part of the help text that describes the command's request to the sidecar.
    """
    return option(
        "--sidecar",
        *aliases,
        metavar="URL",
        parse=_sidecar_url,
        help=f"{asked_for}  [default: http://<http.host>:<http.port>]",
    )


def _sidecar_url(text: str) -> str:
    from sidetier.cli.inspect.sidecar import checked_url  # noqa: PLC0415 -- `--help` must not load the HTTP client

    return checked_url(text)


@options
class ArchivedPartitions:
    """Archived topics and partitions; the part is what the command does with them: `check`."""

    topics: tuple[str, ...] = option(
        "-t",
        "--topic",
        metavar="PATTERN",
        parse=pattern,
        help="Topics to {}: a regular expression that matches the whole name; repeatable."
        "  [default: all archived topics]",
    )
    partitions: tuple[int, ...] = option(
        "-p", "--partition", type=PARTITION, help="Partition to {}; repeatable.  [default: all]"
    )


def above_end_text(tp: TopicPartition, bases: Sequence[int], end: int) -> str:
    """Name stored segments above the archive end offset, which are not restored."""
    return (
        f"{tp}: {len(bases)} stored segments above the archive end {end} are not restored (base "
        f"offsets {bases[0]} to {bases[-1]}): no sidecar has committed them, or offset.wm is an "
        "earlier version of itself; `sidetier verify` says what to do"
    )


def size_text(size: int | None) -> str | None:
    """Return a size in bytes as text for people; None if the size is unknown."""
    return None if size is None else units.size_text(size)


def time_text(milliseconds: int | None) -> str | None:
    """Return ms since 1970 as date and time; None if unknown, which is -1 in Kafka."""
    if milliseconds is None or milliseconds < 0:
        return None
    return times.time_text(milliseconds)


def age_text(seconds: float | None) -> str | None:
    """Return a duration as text for people: `0.4 s`, `12 s`, `5 min`, `3 h 20 min`, `2 d 4 h`."""
    if seconds is None:
        return None
    if seconds < _MINUTE:
        return f"{seconds:.1f} s" if seconds < _MINUTE / 6 else f"{seconds:.0f} s"
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    if seconds < _DAY:
        hours, remainder = divmod(int(seconds), _HOUR)
        return f"{hours} h {remainder // _MINUTE} min"
    days, remainder = divmod(int(seconds), _DAY)
    return f"{days} d {remainder // _HOUR} h"

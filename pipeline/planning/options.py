"""Options of a read, with the names and meaning of Spark's own Kafka source.

Source: Spark's "Structured Streaming + Kafka Integration Guide". Names are case-insensitive, as
everywhere in Spark. Options that only concern a broker are accepted and ignored, so that a read of
Kafka becomes a read of the archive by changing the format name.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sidetier.config.problems import suggestion
from sidetier.config.times import parse_time
from sidetier.config.units import parse_size
from sidetier.pipeline.planning.offsets_json import parse_numbers, parse_partitions
from sidetier.pipeline.planning.request import (
    DEFAULT_SPLIT_BYTES,
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Assigned,
    AtOffsets,
    AtTimes,
    Edge,
    Limit,
    NoMatch,
    ReadRequest,
    Selection,
    TopicPattern,
    Topics,
)
from sidetier.pipeline.planning.split import in_words
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.isolation import IsolationLevel

STORE_PREFIX: Final = "tiered.storage."
"""Prefix of the store's options, which this module ignores."""

_SELECTIONS: Final = ("subscribe", "subscribePattern", "assign")
_ENDINGS: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_READ_OPTIONS: Final = (
    *_SELECTIONS,
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsets",
    *_ENDINGS,
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
    "onTruncation",
    "includeHeaders",
    "kafka.isolation.level",
    "maxBytesPerSplit",
)
_IGNORED: Final = (
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
_KAFKA: Final = "kafka."

log = logging.getLogger("sidetier.pipeline")


def option_names() -> tuple[str, ...]:
    """Return every option that this module reads, as users write it."""
    return _READ_OPTIONS


def read_request(
    options: Mapping[str, str], *, streaming: bool = False, now_ms: int | None = None
) -> ReadRequest:
    """Parse the options. `now_ms` is the present time, in ms since 1970, for times before now.

    Raises:
        ConfigurationError: an option is unknown, has a wrong value, or contradicts another.
    """
    given = _Given.of(options, time.time_ns() // 1_000_000 if now_ms is None else now_ms)
    endings = given.among(_ENDINGS)
    if streaming and endings:
        raise ConfigurationError(f"{endings[0]}: a stream has no end; remove the option")
    return ReadRequest(
        selection=_selection(given),
        starting=_starting(given, streaming=streaming),
        ending=_ending(given),
        no_match=_no_match(given),
        isolation=_isolation(given),
        fail_on_data_loss=given.flag("failOnDataLoss", otherwise=True),
        reread_truncated=given.choice("onTruncation", ("error", "reread")) == "reread",
        include_headers=given.flag("includeHeaders", otherwise=False),
        min_partitions=given.number("minPartitions"),
        max_offsets_per_trigger=given.number("maxOffsetsPerTrigger"),
        max_split_bytes=_split_bytes(given),
    )


@dataclass(frozen=True, slots=True)
class _Given:
    """Options by the guide's spelling of their names."""

    values: Mapping[str, str]
    now_ms: int

    @classmethod
    def of(cls, options: Mapping[str, str], now_ms: int) -> "_Given":
        spelling = {name.lower(): name for name in (*_READ_OPTIONS, *_IGNORED)}
        values: dict[str, str] = {}
        for name, value in options.items():
            lower = name.lower()
            if lower.startswith(STORE_PREFIX):
                continue
            known = spelling.get(lower)
            if known is None and not lower.startswith(_KAFKA):
                raise ConfigurationError(
                    f"{name}: there is no such option{suggestion(name, spelling.values())}"
                )
            if known is None or known in _IGNORED:
                log.debug("%s concerns a broker, and has no effect on a read of the archive", name)
            elif known in values:
                raise ConfigurationError(f"{known}: given twice, in different case")
            else:
                values[known] = str(value)
        return cls(values, now_ms)

    def among(self, names: tuple[str, ...]) -> list[str]:
        return [name for name in names if name in self.values]

    def flag(self, name: str, *, otherwise: bool) -> bool:
        value = self.values.get(name)
        if value is None:
            return otherwise
        if value.strip().lower() not in {"true", "false"}:
            raise ConfigurationError(f"{name} {value!r}: must be true or false")
        return value.strip().lower() == "true"

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        """Return the value, which must be one of these; the first one is the default."""
        value = self.values.get(name, allowed[0])
        if value.strip().lower() not in allowed:
            raise ConfigurationError(f"{name} {value!r}: must be {' or '.join(allowed)}")
        return value.strip().lower()

    def number(self, name: str) -> int | None:
        value = self.values.get(name)
        try:
            return None if value is None else int(value)
        except ValueError:
            raise ConfigurationError(f"{name} {value!r}: must be a whole number") from None

    def time(self, name: str) -> AtTimes | None:
        value = self.values.get(name)
        try:
            return None if value is None else AtTimes(_milliseconds(value, self.now_ms))
        except ValueError as error:
            raise ConfigurationError(f"{name}: {error}, with or without the @") from None

    def times(self, name: str) -> AtTimes | None:
        value = self.values.get(name)
        return None if value is None else AtTimes(times=parse_numbers(value, name))


def _milliseconds(value: str, now_ms: int) -> int:
    """Return a time in ms since 1970: Spark's form, a bare number, or one of `times.FORMS`."""
    try:
        return int(value)
    except ValueError:
        return parse_time(value, now_ms)


def _selection(given: _Given) -> Selection:
    chosen = given.among(_SELECTIONS)
    if len(chosen) != 1:
        problem = (
            f"both {chosen[0]} and {chosen[1]} are given" if chosen else "none of them is given"
        )
        raise ConfigurationError(
            "exactly one of subscribe, subscribePattern and assign selects the partitions: "
            f"{problem}"
        )
    name, value = chosen[0], given.values[chosen[0]].strip()
    if name == "subscribePattern" and value:
        return TopicPattern(value)
    if name == "assign":
        partitions = parse_partitions(value, name)
        if partitions:
            return Assigned(partitions)
    topics = tuple(topic.strip() for topic in value.split(",") if topic.strip())
    if name != "subscribe" or not topics:
        raise ConfigurationError(f"{name} {value!r}: selects no topic or partition")
    return Topics(topics)


def _starting(given: _Given, *, streaming: bool) -> Limit:
    by_time = given.time("startingTimestamp") or given.times("startingOffsetsByTimestamp")
    if by_time is not None:
        return by_time
    limit = _limit(given, "startingOffsets", Edge.LATEST if streaming else Edge.EARLIEST)
    if not streaming:
        _refuse(limit, "startingOffsets", Edge.LATEST, LATEST_OFFSET)
    return limit


def _ending(given: _Given) -> Limit:
    by_time = given.time("endingTimestamp") or given.times("endingOffsetsByTimestamp")
    if by_time is not None:
        return by_time
    limit = _limit(given, "endingOffsets", Edge.LATEST)
    _refuse(limit, "endingOffsets", Edge.EARLIEST, EARLIEST_OFFSET)
    return limit


def _limit(given: _Given, name: str, otherwise: Edge) -> Limit:
    value = given.values.get(name)
    if value is None:
        return otherwise
    try:
        return Edge(value.strip().lower())
    except ValueError:
        pass
    offsets = parse_numbers(value, name)
    for tp, offset in offsets.items():
        if offset < EARLIEST_OFFSET:
            raise ConfigurationError(
                f"{name}: {offset} for {in_words(tp)}: must be an offset, or "
                "-2 for the earliest, or -1 for the latest"
            )
    return AtOffsets(offsets)


def _refuse(limit: Limit, name: str, edge: Edge, offset: int) -> None:
    """Refuse limits for which a batch is always empty, as Spark does."""
    partition = None
    if isinstance(limit, AtOffsets):
        partition = next((tp for tp, at in limit.offsets.items() if at == offset), None)
    if limit is edge or partition is not None:
        place = (
            ""
            if partition is None
            else f" ({offset}) for topic {partition.topic}, partition {partition.partition}"
        )
        raise ConfigurationError(f"{name}: cannot be {edge.value}{place} in a batch")


def _no_match(given: _Given) -> NoMatch:
    name = "startingOffsetsByTimestampStrategy"
    value = given.values.get(name, NoMatch.ERROR.value)
    try:
        return NoMatch(value.strip().lower())
    except ValueError:
        raise ConfigurationError(f"{name} {value!r}: must be error or latest") from None


def _isolation(given: _Given) -> IsolationLevel:
    name = "kafka.isolation.level"
    value = given.values.get(name, IsolationLevel.READ_UNCOMMITTED.value)
    try:
        return IsolationLevel(value.strip().lower())
    except ValueError:
        levels = " or ".join(IsolationLevel)
        raise ConfigurationError(f"{name} {value!r}: must be {levels}") from None


def _split_bytes(given: _Given) -> int:
    name = "maxBytesPerSplit"
    value = given.values.get(name)
    try:
        return DEFAULT_SPLIT_BYTES if value is None else parse_size(value)
    except ValueError as error:
        raise ConfigurationError(f"{name} {value!r}: {error}") from None

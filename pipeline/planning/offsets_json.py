"""JSON of partitions and offsets as in Spark's Kafka source: `{"orders": {"0": 23}}`."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import TopicPartition

_OFFSETS = '{"orders": {"0": 23, "1": -2}}'
_PARTITIONS = '{"orders": [0, 1]}'


def parse_numbers(text: str, name: str) -> dict[TopicPartition, int]:
    """Parse a number for each partition.

    Args:
        text: the JSON.
        name: name of the option, for errors.

    Raises:
        ConfigurationError: `text` has another form.
    """
    parsed: dict[TopicPartition, int] = {}
    for topic, partitions in _object(text, name, _OFFSETS).items():
        if not isinstance(partitions, dict):
            raise _wrong(name, f"{partitions!r} under topic {topic}", _OFFSETS)
        for partition, number in partitions.items():
            if not _is_number(number):
                raise _wrong(name, f"{number!r} for topic {topic}, partition {partition}", _OFFSETS)
            parsed[TopicPartition(topic, _partition(partition, name))] = number
    return parsed


def parse_partitions(text: str, name: str) -> tuple[TopicPartition, ...]:
    """Parse `{"orders": [0, 1]}`; return the partitions sorted.

    Raises:
        ConfigurationError: `text` has another form.
    """
    parsed: set[TopicPartition] = set()
    for topic, partitions in _object(text, name, _PARTITIONS).items():
        if not isinstance(partitions, list):
            raise _wrong(name, f"{partitions!r} under topic {topic}", _PARTITIONS)
        for partition in partitions:
            if not _is_number(partition) or partition < 0:
                raise _wrong(name, f"partition {partition!r} of topic {topic}", _PARTITIONS)
            parsed.add(TopicPartition(topic, partition))
    return tuple(sorted(parsed))


def numbers_json(numbers: Mapping[TopicPartition, int]) -> str:
    """Return the JSON that `parse_numbers` reads; equal numbers give equal text."""
    return json.dumps(_nested(sorted(numbers.items())), separators=(",", ":"))


def partitions_json(partitions: Iterable[TopicPartition]) -> str:
    """Return the JSON that `parse_partitions` reads."""
    by_topic: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    return json.dumps(by_topic, separators=(",", ":"))


def _nested(numbers: Iterable[tuple[TopicPartition, int]]) -> dict[str, dict[str, int]]:
    by_topic: dict[str, dict[str, int]] = {}
    for tp, number in numbers:
        by_topic.setdefault(tp.topic, {})[str(tp.partition)] = number
    return by_topic


def _object(text: str, name: str, example: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        repeated = next(_repeated(key for key, _ in pairs), None)
        if repeated is not None:
            raise _wrong(name, f"{repeated!r}, which is given twice", example)
        return dict(pairs)

    try:
        parsed = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise _wrong(name, f"{text!r} ({error})", example) from None
    if not isinstance(parsed, dict):
        raise _wrong(name, repr(text), example)
    return parsed


def _repeated(keys: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            yield key
        seen.add(key)


def _partition(text: str, name: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise _wrong(name, f"partition {text!r}", _OFFSETS)
    return int(text)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _wrong(name: str, problem: str, example: str) -> ConfigurationError:
    return ConfigurationError(f"{name}: {problem}: must be JSON such as {example}")

"""The offset of a stream, as Spark keeps it in the checkpoint.

`{"orders": {"0": 1200}}`, as Spark's Kafka source writes it, and under names that no topic can have
what tells whether the records below are still those of the log:
`"sidetier:leader_epochs": {"orders": {"0": [[3, 0], [5, 120]]}}` and
`"sidetier:topic_ids": {"orders": "..."}`. Earlier versions wrote the first part only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from sidetier.pipeline.export.epoch_history import Position, epoch_history_of, rows_of
from sidetier.segments.epoch_history import NO_EPOCHS, EpochHistory
from sidetier.segments.errors import MalformedObjectError
from sidetier.segments.offsets import Offset, TopicPartition

OffsetJson = dict[str, dict[str, Any]]
"""What Spark writes into a checkpoint, parsed."""

_PREFIX: Final = "sidetier:"
_EPOCHS: Final = f"{_PREFIX}leader_epochs"
_TOPIC_IDS: Final = f"{_PREFIX}topic_ids"
_REREAD_FROM: Final = f"{_PREFIX}reread_from"

_T = TypeVar("_T")
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The end of a batch.

    Attributes:
        offsets: of each partition, the next offset.
        leader_epochs: of each partition, the newest leader epochs below its next offset; none
            where they are not known.
        topic_ids: of each topic, where the archive gives it.
        reread_from: of partitions whose records were thrown away or replaced since the batch
            before, the offset at which the batch begins instead.
    """

    offsets: Mapping[TopicPartition, Offset]
    leader_epochs: Mapping[TopicPartition, EpochHistory] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    reread_from: Mapping[TopicPartition, Offset] = field(default_factory=dict)

    def position(self, tp: TopicPartition) -> Position:
        """The next offset and the leader epochs of a partition; raises KeyError."""
        return Position(self.offsets[tp], self.leader_epochs.get(tp, NO_EPOCHS))

    def is_at(self, tp: TopicPartition, other: "StreamOffset") -> bool:
        """Whether no batch lies between the two for this partition."""
        return (
            tp in self.offsets
            and tp in other.offsets
            and self.position(tp) == other.position(tp)
            and self.reread_from.get(tp) == other.reread_from.get(tp)
            and is_same_topic(self.topic_ids.get(tp.topic), other.topic_ids.get(tp.topic))
        )


def is_same_topic(one: str | None, other: str | None) -> bool:
    """Whether two topic ids are equal, or one of them is not known."""
    return None in {one, other} or one == other


def as_json(offset: StreamOffset) -> OffsetJson:
    """What Spark writes into a checkpoint; equal offsets give equal text."""
    parts = {
        _EPOCHS: _nested(offset.leader_epochs, rows_of),
        _TOPIC_IDS: dict(sorted(offset.topic_ids.items())),
        _REREAD_FROM: _nested(offset.reread_from, int),
    }
    return {**_nested(offset.offsets, int), **{name: part for name, part in parts.items() if part}}


def from_json(value: OffsetJson) -> StreamOffset:
    """What `as_json` of this or of an earlier version has made.

    Raises:
        MalformedObjectError: a later version has written it, or nobody.
    """
    try:
        unknown = {name for name in value if name.startswith(_PREFIX)}
        unknown -= {_EPOCHS, _TOPIC_IDS, _REREAD_FROM}
        if unknown:
            raise MalformedObjectError(
                f"the offset of the stream's checkpoint has {min(unknown)!r}, which this version "
                "does not know: use the version of Sidetier that wrote it, or a later one"
            )
        topics = {name: part for name, part in value.items() if not name.startswith(_PREFIX)}
        return StreamOffset(
            _flat(topics, Offset),
            _flat(value.get(_EPOCHS, {}), epoch_history_of),
            dict(value.get(_TOPIC_IDS, {})),
            _flat(value.get(_REREAD_FROM, {}), Offset),
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise MalformedObjectError(
            f"the offset of the stream's checkpoint is not one of this source: {error}"
        ) from None


def _nested(by_tp: Mapping[TopicPartition, _T], convert: Callable[[_T], _V]) -> dict[str, Any]:
    nested: dict[str, dict[str, _V]] = {}
    for tp, value in sorted(by_tp.items(), key=lambda item: item[0]):
        nested.setdefault(tp.topic, {})[str(tp.partition)] = convert(value)
    return nested


def _flat(
    nested: Mapping[str, Mapping[str, Any]], convert: Callable[[Any], _V]
) -> dict[TopicPartition, _V]:
    return {
        TopicPartition(topic, int(partition)): convert(value)
        for topic, partitions in nested.items()
        for partition, value in partitions.items()
    }

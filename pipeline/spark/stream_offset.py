"""Offset of a stream, as Spark stores it in the checkpoint.

The next offsets are stored as Spark's Kafka source stores them: `{"orders": {"0": 1200}}`. Two keys
that cannot be topic names have the data to check that the records below are still in the log:
`"sidetier:leader_epochs": {"orders": {"0": [[3, 0], [5, 120]]}}` and
`"sidetier:topic_ids": {"orders": "..."}`. A third, `sidetier:reread_from`, has the offsets at which
a batch goes back. Earlier versions wrote only the next offsets.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from sidetier.pipeline.export.epoch_history import Position, epoch_history_of, rows_of
from sidetier.segments.epoch_history import NO_EPOCHS, EpochHistory
from sidetier.segments.errors import MalformedObjectError
from sidetier.segments.offsets import Offset, TopicPartition

OffsetJson = dict[str, dict[str, Any]]
"""The JSON of an offset in Spark's checkpoint, parsed."""

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
        offsets: the next offset of each partition.
        leader_epochs: for each partition, the newest leader epochs below its next offset; missing
            where unknown.
        topic_ids: id of each topic; missing where the archive does not have it.
        reread_from: first offset of the batch for partitions whose records were discarded or
            replaced since the batch before.
    """

    offsets: Mapping[TopicPartition, Offset]
    leader_epochs: Mapping[TopicPartition, EpochHistory] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    reread_from: Mapping[TopicPartition, Offset] = field(default_factory=dict)

    def position(self, tp: TopicPartition) -> Position:
        """Return the next offset and the leader epochs of a partition; raises KeyError."""
        return Position(self.offsets[tp], self.leader_epochs.get(tp, NO_EPOCHS))

    def is_at(self, tp: TopicPartition, other: "StreamOffset") -> bool:
        """Whether both offsets are the same for this partition, so that no batch between them reads
        it.
        """
        return (
            tp in self.offsets
            and tp in other.offsets
            and self.position(tp) == other.position(tp)
            and self.reread_from.get(tp) == other.reread_from.get(tp)
            and is_same_topic(self.topic_ids.get(tp.topic), other.topic_ids.get(tp.topic))
        )


def is_same_topic(topic_id: str | None, other: str | None) -> bool:
    """Whether two topic ids are equal, or one of them is unknown."""
    return None in {topic_id, other} or topic_id == other


def as_json(offset: StreamOffset) -> OffsetJson:
    """Return the JSON for Spark's checkpoint; equal offsets give equal text."""
    parts = {
        _EPOCHS: _nested(offset.leader_epochs, rows_of),
        _TOPIC_IDS: dict(sorted(offset.topic_ids.items())),
        _REREAD_FROM: _nested(offset.reread_from, int),
    }
    return {**_nested(offset.offsets, int), **{name: part for name, part in parts.items() if part}}


def from_json(value: OffsetJson) -> StreamOffset:
    """Parse the output of `as_json`, of this or an earlier version.

    Raises:
        MalformedObjectError: a later version, or another program, has written it.
    """
    try:
        unknown = {name for name in value if name.startswith(_PREFIX)}
        unknown -= {_EPOCHS, _TOPIC_IDS, _REREAD_FROM}
        if unknown:
            raise MalformedObjectError(
                f"the offset of the stream's checkpoint has {min(unknown)!r}, which this version "
                "does not know: upgrade Sidetier to the version that wrote it, or a later one"
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

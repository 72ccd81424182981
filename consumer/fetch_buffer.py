"""The records and messages of both sides that were fetched and not returned yet."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Message

from sidetier.archive.reader.results import Failed, Gap, ReachedEnd
from sidetier.consumer.partition import Partition, Source
from sidetier.consumer.store_side import StoreRecords
from sidetier.segments.offsets import TopicPartition

StoreItem = StoreRecords | ReachedEnd | Gap | Failed


@dataclass(slots=True)
class FetchBuffer:
    """Fetched messages and records, in the order in which they are returned.

    Attributes:
        messages: messages and errors of Kafka's client.
        store_items: records and events of the archive reader.
        given_back: the last returned message, if it was taken back; it is returned again next.
    """

    messages: deque[Message] = field(default_factory=deque)
    store_items: deque[StoreItem] = field(default_factory=deque)
    given_back: tuple[Message, Partition] | None = None

    def drop(self, tp: TopicPartition, partition: Partition | None) -> None:
        """Drop everything of a partition.

        Args:
            tp: the partition.
            partition: its state; None if it is not assigned.
        """
        _remove(self.store_items, lambda item: _tp(item) == tp)
        # `behind`: Kafka's client has moved past the dropped messages and must be aimed again.
        if self.given_back is not None and self.given_back[1].tp == tp:
            self.given_back[1].behind = True
            self.given_back = None
        dropped = _remove(self.messages, lambda item: (item.topic(), item.partition()) == tp)
        if dropped and partition is not None and partition.source is Source.KAFKA:
            partition.behind = True
            # librdkafka began at the committed offset. The first dropped message shows where.
            if partition.position is None:
                partition.position = dropped[0].offset()


def _remove(items: "deque[Any]", is_dropped: Callable[[Any], bool]) -> list[Any]:
    """Remove items in place. Return them."""
    dropped = [item for item in items if is_dropped(item)]
    if dropped:
        kept = [item for item in items if not is_dropped(item)]
        items.clear()
        items.extend(kept)
    return dropped


def _tp(item: StoreItem) -> TopicPartition:
    return item.partition.tp if isinstance(item, StoreRecords) else item.tp

"""What an export has reached: its next offsets, and what it knows of the records below them.

Two places store this state: the manifest of an export to files (`manifest.py`), and the metadata of
a table's commits (`commit_metadata.py`). Both return it as `Exported`.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Final

from sidetier.pipeline.export.epoch_history import Position, followed
from sidetier.segments.epoch_history import NO_EPOCHS, EpochHistory
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

Offsets = Mapping[TopicPartition, Offset]
"""Next offsets: the output holds the records below them."""
Ranges = Mapping[TopicPartition, OffsetRange]


@dataclass(frozen=True, slots=True)
class Tail:
    """Which of the exported records came from the brokers or from tail packs, and their topics and
    leader epochs.

    Attributes:
        offsets: the offset up to which each partition was last read from there. The archive may end
            below it.
        topic_ids: ids of the topics, if the archive or the brokers have them.
        epoch_histories: the newest leader epochs below each partition's next offset, where known.
    """

    offsets: Offsets = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    epoch_histories: Mapping[TopicPartition, EpochHistory] = field(default_factory=dict)

    def and_then(self, later: "Tail", held: Offsets, ranges: Ranges) -> "Tail":
        """Return the state after these ranges were also read.

        Args:
            later: the state of the new ranges.
            held: next offsets up to which the present state is known. A range without records may
                have been skipped since.
            ranges: the new ranges.
        """
        kept = {
            tp: followed(
                Position(held.get(tp, span.start), self.epoch_histories.get(tp, NO_EPOCHS)),
                Position(span.end, later.epoch_histories.get(tp, NO_EPOCHS)),
            )
            for tp, span in ranges.items()
        }
        known = {tp: epoch_history for tp, epoch_history in kept.items() if epoch_history.entries}
        return Tail(
            {**self.offsets, **later.offsets},
            {**self.topic_ids, **later.topic_ids},
            {**self.without(ranges).epoch_histories, **known},
        )

    def without(self, tps: Container[TopicPartition]) -> "Tail":
        """Return the state without these partitions. Topic ids stay."""
        return Tail(
            {tp: offset for tp, offset in self.offsets.items() if tp not in tps},
            self.topic_ids,
            {
                tp: epoch_history
                for tp, epoch_history in self.epoch_histories.items()
                if tp not in tps
            },
        )


NO_TAIL: Final = Tail()


@dataclass(frozen=True, slots=True)
class Exported:
    """The state of an export.

    Attributes:
        next_offsets: next offset of each exported partition.
        tail: what is known of the records below the next offsets.
    """

    next_offsets: Offsets = field(default_factory=dict)
    tail: Tail = NO_TAIL

    @property
    def positions(self) -> dict[TopicPartition, Position]:
        """The next offsets whose epoch history is known."""
        return {
            tp: Position(self.next_offsets[tp], epoch_history)
            for tp, epoch_history in self.tail.epoch_histories.items()
            if tp in self.next_offsets
        }

    @property
    def offsets_without_epoch(self) -> Offsets:
        """The next offsets without a known epoch history. A divergence below them cannot be
        detected.
        """
        known = self.tail.epoch_histories
        return {tp: offset for tp, offset in self.next_offsets.items() if tp not in known}

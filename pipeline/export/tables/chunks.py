"""Selection of the offsets for the next commit. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from sidetier.pipeline.export.errors import BehindError
from sidetier.pipeline.export.tables.errors import RecordsGoneError
from sidetier.pipeline.export.tables.progress import Offsets
from sidetier.pipeline.planning.resolving import limited_ends
from sidetier.pipeline.planning.split import in_words
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

Ranges = Mapping[TopicPartition, OffsetRange]


@dataclass(frozen=True, slots=True)
class Chunk:
    """The offsets of one commit, and those that remain after it.

    Attributes:
        ranges: offsets whose records are written, for each partition with new records.
        rest: remaining offsets, for every partition.
    """

    ranges: Ranges
    rest: Ranges

    @property
    def reached(self) -> Ranges:
        """The written offsets of every partition; an empty range for a partition without new
        records.
        """
        nothing = {tp: OffsetRange(span.start, span.start) for tp, span in self.rest.items()}
        return nothing | dict(self.ranges)


def continued(
    stored: Ranges,
    held: Offsets,
    tail: Offsets | None = None,
    behind: list[BehindError] | None = None,
) -> dict[TopicPartition, OffsetRange]:
    """Return the ranges that are left to export: from the table's offsets to the stored ends.

    Args:
        stored: readable ranges. Their starts apply to partitions that the table does not know.
        held: next offsets of the table.
        tail: offsets up to which records were last read from the brokers. If a next offset equals
            its entry here, the archive may end below it, and nothing is left.
        behind: receives the errors of partitions whose archive ends below the table's offset. They
            are left out.

    Raises:
        RecordsGoneError: there is such a partition, and `behind` is None.
    """
    left = {}
    for tp, span in sorted(stored.items()):
        first = held.get(tp, span.start)
        is_behind = tail is not None and tail.get(tp) == first
        if first > span.end and not is_behind:
            error = RecordsGoneError(
                tp,
                f"the table holds the records of {in_words(tp)} below "
                f"offset {first}, but the archive ends at {span.end}",
                "it is not the archive that the table was made from, or the topic was created anew",
            )
            if behind is None:
                raise error
            behind.append(error)
            continue
        left[tp] = OffsetRange(first, max(first, span.end))
    return left


def next_chunk(left: Ranges, most: int | None) -> Chunk | None:
    """Return about `most` of the remaining offsets (all if None); None if nothing is left.

    Each partition gets its share, as with `maxOffsetsPerTrigger` of Spark's Kafka source.
    """
    starts = {tp: span.start for tp, span in left.items()}
    ends = limited_ends(starts, {tp: span.end for tp, span in left.items()}, most)
    taken = {
        tp: OffsetRange(span.start, ends[tp]) for tp, span in left.items() if ends[tp] > span.start
    }
    return chunk_of(left, taken) if taken else None


def chunk_of(left: Ranges, taken: Ranges) -> Chunk:
    """Return the chunk that takes these parts of the remaining ranges."""
    rest = {
        tp: OffsetRange(taken[tp].end if tp in taken else span.start, span.end)
        for tp, span in left.items()
    }
    return Chunk(taken, rest)


def offsets_after(held: Offsets, chunk: Chunk) -> dict[TopicPartition, Offset]:
    """Return the table's next offsets, of every partition, after the chunk is committed.

    They include partitions without new records, also if they are new to the table, and partitions
    of the table that are not exported now.
    """
    return dict(held) | {tp: span.start for tp, span in chunk.rest.items()}

"""Which offsets the next commit takes: pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from sidetier.pipeline.export.errors import BehindError
from sidetier.pipeline.export.tables.errors import RecordsGoneError
from sidetier.pipeline.export.tables.progress import Offsets
from sidetier.pipeline.planning.names import in_words
from sidetier.pipeline.planning.trigger import limited_ends
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

Ranges = Mapping[TopicPartition, OffsetRange]


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one commit takes, and what is left after it.

    Attributes:
        ranges: of each partition with news, the offsets whose records are written.
        rest: of every partition, what comes after them.
    """

    ranges: Ranges
    rest: Ranges

    @property
    def reached(self) -> Ranges:
        """Of every partition what is written; empty where that is nothing."""
        nothing = {tp: OffsetRange(span.start, span.start) for tp, span in self.rest.items()}
        return nothing | dict(self.ranges)


def continued(
    stored: Ranges,
    held: Offsets,
    tail: Offsets | None = None,
    behind: list[BehindError] | None = None,
) -> dict[TopicPartition, OffsetRange]:
    """What is left to export of each stored partition: from the table's offset on.

    A range of `stored` begins where a partition begins that the table does not know. What the table
    has last got from the brokers (`tail`), the archive may not have yet: then nothing is left.

    `behind` collects the errors of partitions whose archive ends below what the table holds of
    them; they are left out.

    Raises:
        RecordsGoneError: there is such a partition, and no list for it.
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
    """Of what is left, about `most` offsets (all with None), of each partition its share, as
    `maxOffsetsPerTrigger` of Spark's Kafka source has it; None where nothing is left.
    """
    starts = {tp: span.start for tp, span in left.items()}
    ends = limited_ends(starts, {tp: span.end for tp, span in left.items()}, most)
    taken = {
        tp: OffsetRange(span.start, ends[tp]) for tp, span in left.items() if ends[tp] > span.start
    }
    return chunk_of(left, taken) if taken else None


def chunk_of(left: Ranges, taken: Ranges) -> Chunk:
    """Of what is left, the parts that are taken of some partitions."""
    rest = {
        tp: OffsetRange(taken[tp].end if tp in taken else span.start, span.end)
        for tp, span in left.items()
    }
    return Chunk(taken, rest)


def offsets_after(held: Offsets, chunk: Chunk) -> dict[TopicPartition, Offset]:
    """What the table holds once the chunk is committed, of every partition.

    Those without news are named too, also where the table has not known them; so are those that
    the table holds and that are not exported now.
    """
    return dict(held) | {tp: span.start for tp, span in chunk.rest.items()}

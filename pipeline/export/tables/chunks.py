"""Which offsets the next commit takes: pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from sidetier.pipeline.export.tables.errors import RecordsGoneError
from sidetier.pipeline.export.tables.progress import Offsets
from sidetier.pipeline.planning.split import OffsetRange
from sidetier.segments.offsets import Offset, TopicPartition

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


def continued(stored: Ranges, held: Offsets) -> dict[TopicPartition, OffsetRange]:
    """What is left to export of each stored partition: from the table's offset on.

    A range of `stored` begins where a partition begins that the table does not know.

    Raises:
        RecordsGoneError: a partition's archive ends below what the table holds of it.
    """
    left = {}
    for tp, span in sorted(stored.items()):
        first = held.get(tp, span.first)
        if first > span.until:
            raise RecordsGoneError(
                f"the table holds the records of topic {tp.topic}, partition {tp.partition} below "
                f"offset {first}, but the archive ends at {span.until}: it is not the archive that "
                "the table was made from, or the topic was created anew"
            )
        left[tp] = OffsetRange(first, span.until)
    return left


def next_chunk(left: Ranges, most: int | None) -> Chunk | None:
    """Of what is left, about `most` offsets (all with None), of each partition its share, as
    `maxOffsetsPerTrigger` of Spark's Kafka source has it; None where nothing is left.
    """
    news = {tp: span for tp, span in left.items() if span.until > span.first}
    if not news:
        return None
    total = sum(span.until - span.first for span in news.values())
    taken = {tp: _share(span, total, most) for tp, span in news.items()}
    rest = {tp: _after(span, taken.get(tp)) for tp, span in left.items()}
    return Chunk(taken, rest)


def _share(span: OffsetRange, total: int, most: int | None) -> OffsetRange:
    if most is None or total <= most:
        return span
    size = max(1, (span.until - span.first) * most // total)
    return OffsetRange(span.first, Offset(span.first + size))


def _after(span: OffsetRange, taken: OffsetRange | None) -> OffsetRange:
    return span if taken is None else OffsetRange(taken.until, span.until)


def offsets_after(held: Offsets, chunk: Chunk) -> dict[TopicPartition, Offset]:
    """What the table holds once the chunk is committed, of every partition.

    Those without news are named too, also where the table has not known them; so are those that
    the table holds and that are not exported now.
    """
    return dict(held) | {tp: span.first for tp, span in chunk.rest.items()}

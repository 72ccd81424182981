"""How far one batch of a stream goes: `maxOffsetsPerTrigger`."""

from collections.abc import Mapping

from sidetier.segments.offsets import Offset, TopicPartition


def limited_ends(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], most: int | None
) -> dict[TopicPartition, Offset]:
    """Where the next batch ends: at most so many offsets in all, shared out among partitions in
    proportion to what each has, and at least one of each that has any, as Spark does it.

    A partition without a start begins at 0.
    """
    spans = {tp: max(end - starts.get(tp, 0), 0) for tp, end in ends.items()}
    total = sum(spans.values())
    if most is None or total <= most:
        return {tp: Offset(max(end, starts.get(tp, 0))) for tp, end in ends.items()}
    return {
        tp: Offset(starts.get(tp, 0) + min(span, max(most * span // total, min(span, 1))))
        for tp, span in spans.items()
    }

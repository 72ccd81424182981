"""How far one batch of a stream, or one commit of an export, goes. Pure."""

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
    return {tp: Offset(starts.get(tp, 0) + share) for tp, share in shares(spans, most).items()}


def shares(sizes: Mapping[TopicPartition, int], most: int | None) -> dict[TopicPartition, int]:
    """Of each size its share, so that all are at most `most`; 1 at least of each that has any."""
    total = sum(sizes.values())
    if most is None or total <= most:
        return dict(sizes)
    return {tp: max(most * size // total, min(size, 1)) for tp, size in sizes.items()}

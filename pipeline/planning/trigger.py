"""Size limits for one batch of a stream, or one commit of an export. Pure functions."""

from collections.abc import Mapping

from sidetier.segments.offsets import Offset, TopicPartition


def limited_ends(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], most: int | None
) -> dict[TopicPartition, Offset]:
    """Return where the next batch ends in each partition (exclusive).

    The batch has at most `most` offsets in total. Partitions share them in proportion to their
    pending offsets, and each partition with pending offsets gets at least one, as in Spark's Kafka
    source. So the total can exceed `most` when there are more such partitions.

    Args:
        starts: start of the batch; 0 for a partition that is not in it.
        ends: present end of each partition (exclusive).
        most: maximum offsets; None for no limit.
    """
    spans = {tp: max(end - starts.get(tp, 0), 0) for tp, end in ends.items()}
    return {tp: Offset(starts.get(tp, 0) + share) for tp, share in shares(spans, most).items()}


def shares(sizes: Mapping[TopicPartition, int], most: int | None) -> dict[TopicPartition, int]:
    """Reduce the sizes proportionally to a total of `most`. A size above 0 stays at least 1."""
    total = sum(sizes.values())
    if most is None or total <= most:
        return dict(sizes)
    return {tp: max(most * size // total, min(size, 1)) for tp, size in sizes.items()}

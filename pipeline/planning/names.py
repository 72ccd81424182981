"""How a partition is named to users."""

from sidetier.segments.offsets import TopicPartition


def in_words(tp: TopicPartition) -> str:
    """`topic orders, partition 3`."""
    return f"topic {tp.topic}, partition {tp.partition}"

"""Names of partitions in messages to users."""

from sidetier.segments.offsets import TopicPartition


def in_words(tp: TopicPartition) -> str:
    """Return, for example, `topic orders, partition 3`."""
    return f"topic {tp.topic}, partition {tp.partition}"

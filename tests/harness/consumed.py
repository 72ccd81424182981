"""Records of a partition as the cluster returns them."""

from confluent_kafka import Consumer, TopicPartition

from tests.harness.stored_log import Record

_POLL_SECONDS = 60.0


def consume_all(bootstrap: str, topic: str, partition: int = 0) -> dict[int, Record]:
    """Consume every record of a partition up to the high watermark."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "outside-look",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    records: dict[int, Record] = {}
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=120)
        consumer.assign([TopicPartition(topic, partition, low)])
        position = low
        while position < high:
            message = consumer.poll(_POLL_SECONDS)
            assert message is not None, f"nothing at offset {position} of {high}"
            assert message.error() is None, message.error()
            position = (message.offset() or 0) + 1
            records[position - 1] = Record(message.key(), message.value())
    finally:
        consumer.close()
    return records

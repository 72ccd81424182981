"""A partition's archive from its beginning to its end, without any broker.

    python examples/without_broker.py /etc/sidetier/sidetier.yaml orders 0

A partition that is assigned by hand needs no group, and so no Kafka.
"""

import sys

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

from sidetier import TieredConsumer

sidecar, topic, partition = sys.argv[1:]
config = {
    "tiered.storage.mode": "TIERED_STORAGE_ONLY",
    "tiered.storage.config": sidecar,
    "enable.partition.eof": True,
}
with TieredConsumer(config) as consumer:
    consumer.assign([TopicPartition(topic, int(partition), OFFSET_BEGINNING)])
    while True:
        message = consumer.poll()
        error = message.error()
        if error is None:
            print(message.offset(), message.value())
        elif error.code() == KafkaError._PARTITION_EOF:
            break
        else:  # a gap, or a store that refuses
            raise KafkaException(error)

"""A consumer group that reads on from the store where Kafka has deleted.

    python examples/group.py localhost:9092 /etc/sidetier/sidetier.yaml orders

Two lines differ from a program for confluent-kafka: the import, and the path of the sidecar's
configuration, which says where the archive is. Ctrl-C ends it.
"""

import sys
from contextlib import suppress

from sidetier import TieredConsumer

bootstrap, sidecar, topic = sys.argv[1:]
consumer = TieredConsumer(
    {
        "bootstrap.servers": bootstrap,
        "group.id": "example",
        "auto.offset.reset": "earliest",
        "tiered.storage.config": sidecar,
    }
)
consumer.subscribe([topic])
with consumer, suppress(KeyboardInterrupt):
    for message in consumer:
        print(message.partition(), message.offset(), message.key(), message.value(), flush=True)

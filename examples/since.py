"""How many records, and how many bytes, have come since a moment: read as Arrow, from the store.

    python examples/since.py /etc/sidetier/sidetier.yaml orders 0 2026-11-21T08:00:00+00:00

`consume_arrow` makes no Python object per record: many times as fast as messages.
"""

import sys
from datetime import datetime

import pyarrow.compute as pc
from confluent_kafka import TopicPartition

from sidetier import TieredConsumer

sidecar, topic, partition, moment = sys.argv[1:]
since = int(datetime.fromisoformat(moment).timestamp() * 1000)
with TieredConsumer(
    {"tiered.storage.mode": "TIERED_STORAGE_ONLY", "tiered.storage.config": sidecar}
) as consumer:
    [start] = consumer.offsets_for_times([TopicPartition(topic, int(partition), since)])
    records = size = 0
    consumer.assign([start])
    while batches := consumer.consume_arrow(timeout=10):  # none in 10 s: that was the end
        for batch in batches:
            records += batch.records.num_rows
            size += pc.sum(pc.binary_length(batch.records["value"])).as_py() or 0
    print(f"{records} records with {size} bytes since {moment}")

"""Records in an asyncio program: one thread makes all calls of the consumer.

    python examples/asyncio_reader.py /etc/sidetier/sidetier.yaml orders 0

The consumer's calls block, so they run in a thread of their own, and the event loop stays free. A
task that is cancelled ends within one call (0.5 s), and closes the consumer.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition

from sidetier import TieredConsumer


async def records(
    config: dict[str, object], partitions: list[TopicPartition]
) -> AsyncIterator[Message]:
    """Yield records until a partition ends."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(max_workers=1) as thread:
        consumer = await loop.run_in_executor(thread, TieredConsumer, config)
        try:
            await loop.run_in_executor(thread, consumer.assign, partitions)
            while True:
                for message in await loop.run_in_executor(thread, consumer.consume, 500, 0.5):
                    error = message.error()
                    if error is None:
                        yield message
                    elif error.code() == KafkaError._PARTITION_EOF:
                        return
                    else:
                        raise KafkaException(error)
        finally:
            await loop.run_in_executor(thread, consumer.close)


async def main(sidecar: str, topic: str, partition: str) -> None:
    """Print one partition's archive."""
    config: dict[str, object] = {
        "tiered.storage.mode": "TIERED_STORAGE_ONLY",
        "tiered.storage.config": sidecar,
        "enable.partition.eof": True,
    }
    start = TopicPartition(topic, int(partition), OFFSET_BEGINNING)
    async with aclosing(records(config, [start])) as messages:
        async for message in messages:
            print(message.offset(), message.value())


asyncio.run(main(*sys.argv[1:]))

"""One way of reading a topic, in a separate process with its own CPU time.

    python reading.py '{"side": "store", "method": "poll", "config": {...}, ...}'

prints its result as JSON.
"""

import json
import os
import resource
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any

import confluent_kafka
import pyarrow.compute as pc
from confluent_kafka import KafkaError

from lib.processes import peak_resident_bytes
from sidetier import TieredConsumer
from sidetier.archive.access import open_archive
from sidetier.config.storage import StorageConfig

_BATCH = 500
_WAIT_SECONDS = 60.0
_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class Reading:
    """The topic to read, and the method.

    `side` is kafka (the broker), store (the archive) or endpoint (an endpoint in the same process,
    over the archive), read by confluent-kafka; with `tiered.storage.mode` in `config`, and as
    tiered-kafka or tiered-endpoint, by `TieredConsumer`. `method` is poll, consume or arrow. `end`
    is one past the last offset that is read of partition 0. `config` has the consumer's properties;
    for an endpoint also `cluster` and `storage`.
    """

    side: str
    method: str
    topic: str
    end: int
    config: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Read:
    """Result: bytes of values, seconds, and bytes of memory.

    `first_seconds` is the time from before the creation of the consumer to its first record. The
    other time is from there to the last record.
    """

    first_seconds: float
    records: int
    size: int
    seconds: float
    cpu_seconds: float
    resident_before: int
    resident_most: int

    @property
    def records_per_second(self) -> float:
        """Records per second."""
        return self.records / self.seconds

    @property
    def megabytes_per_second(self) -> float:
        """MB of values per second."""
        return self.size / self.seconds / 1e6

    @property
    def cpu_per_gib(self) -> float:
        """CPU seconds, user and system, per GiB of values."""
        return self.cpu_seconds / self.size * (1 << 30)


def read(reading: Reading) -> Read:
    """Read everything."""
    with ExitStack() as stack:
        before, began = resident(), monotonic()
        return _read(reading, _consumer(reading, stack), before, began)


def _consumer(reading: Reading, stack: ExitStack) -> Any:  # noqa: ANN401 - one of two classes
    config = dict(reading.config)
    if reading.side.endswith("endpoint"):
        # Imported here: the memory of other readers is measured without it.
        from sidetier.endpoint.service import EndpointSettings, serving  # noqa: PLC0415

        storage = StorageConfig.model_validate(config.pop("storage"), strict=False)
        archive = stack.enter_context(open_archive(config.pop("cluster"), storage))
        served = stack.enter_context(serving(archive, EndpointSettings(("127.0.0.1", 0))))
        config["bootstrap.servers"] = "{}:{}".format(*served.address)
    is_tiered = "tiered.storage.mode" in config
    return TieredConsumer(config) if is_tiered else confluent_kafka.Consumer(config)


def _read(reading: Reading, consumer: Any, before: int, began: float) -> Read:  # noqa: ANN401
    consumer.assign([confluent_kafka.TopicPartition(reading.topic, 0, 0)])
    while not _is_record(consumer.poll(_WAIT_SECONDS)):
        pass
    first, cpu = monotonic(), _cpu()
    records, size = _METHODS[reading.method](consumer, reading.end)
    seconds, cpu = monotonic() - first, _cpu() - cpu
    most = peak_resident_bytes(os.getpid())
    consumer.close()
    return Read(first - began, records, size, seconds, cpu, before, most)


def _poll(consumer: Any, end: int) -> tuple[int, int]:  # noqa: ANN401 - one of two consumer classes
    records = size = 0
    while True:
        message = consumer.poll(_WAIT_SECONDS)
        if not _is_record(message):
            continue
        records += 1
        size += len(message.value())
        if message.offset() >= end - 1:
            return records, size


def _consume(consumer: Any, end: int) -> tuple[int, int]:  # noqa: ANN401
    records = size = offset = 0
    while True:
        # `consume` waits until it has as many as it was asked for.
        messages = consumer.consume(min(_BATCH, end - offset), _WAIT_SECONDS)
        messages = [message for message in messages or [None] if _is_record(message)]
        size += sum(len(message.value()) for message in messages)
        records += len(messages)
        if messages:
            offset = messages[-1].offset() + 1
        if offset >= end:
            return records, size


def _arrow(consumer: Any, end: int) -> tuple[int, int]:  # noqa: ANN401
    records = size = 0
    while True:
        for batch in consumer.consume_arrow(_ROWS, _WAIT_SECONDS) or _nothing():
            rows = batch.records
            records += rows.num_rows
            size += pc.sum(pc.binary_length(rows.column("value"))).as_py()
            if rows.column("offset")[-1].as_py() >= end - 1:
                return records, size


_METHODS = {"poll": _poll, "consume": _consume, "arrow": _arrow}


def _is_record(message: Any) -> bool:  # noqa: ANN401
    if message is None:
        _nothing()
    error = message.error()
    if error is None:
        return True
    # An endpoint without groups refuses `group.id` once, which librdkafka requires.
    if error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
        raise RuntimeError(error.str())
    return False


def _nothing() -> list[Any]:
    raise TimeoutError(f"nothing came in {_WAIT_SECONDS:g} s")


def resident() -> int:
    """Return the current resident memory, in bytes."""
    with open("/proc/self/statm") as statm:  # noqa: PTH123
        return int(statm.read().split()[1]) * resource.getpagesize()


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    print(json.dumps(asdict(read(Reading(**json.loads(sys.argv[1]))))))

"""`sidetier serve` as a process, and confluent-kafka as its client."""

import base64
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.request import urlopen

import yaml
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from sidetier.endpoint.offsets import LATEST
from sidetier.storage.local import LocalStorage
from sidetier.wire.protocol import ApiKey
from tests.harness import broker_segments
from tests.harness.archive_objects import ArchiveStore, file_store
from tests.harness.endpoint import RawClient
from tests.harness.sidecar import PROGRAM
from tests.harness.waiting import wait_until

_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Served:
    """A running `sidetier serve`.

    Attributes:
        bootstrap: Its address.
        root: Directory of its files; by default the archive is in `store` below it.
        process: The process.
        metrics_port: Port of its metrics.
    """

    bootstrap: str
    root: Path
    process: "subprocess.Popen[str]"
    metrics_port: int

    @property
    def address(self) -> tuple[str, int]:
        """Its host and port."""
        host, _, port = self.bootstrap.rpartition(":")
        return host, int(port)

    @property
    def store(self) -> LocalStorage:
        """The archive's store, if it is a directory."""
        return LocalStorage(self.root / "store")

    def log(self) -> str:
        """Return what it has logged."""
        return (self.root / "log").read_text()

    def end(self, topic: str, partition: int = 0, isolation: str = "read_uncommitted") -> int:
        """Return the archive end offset, or with read_committed the last stable offset."""
        with RawClient(self.address) as client:
            answer: Any = client.request(
                ApiKey.LIST_OFFSETS,
                2,
                replica_id=-1,
                isolation_level=int(isolation == "read_committed"),
                topics=[
                    {
                        "name": topic,
                        "partitions": [{"partition_index": partition, "timestamp": LATEST}],
                    }
                ],
            )
        return int(answer.topics[0].partitions[0].offset)

    def resident_bytes(self) -> int:
        """Return the memory that the process has in RAM now."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) << 10

    def metric(self, name: str) -> float:
        """Return the value of a metric without labels."""
        with urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))

    def consumer(self, **settings: Any) -> Consumer:  # noqa: ANN401 - librdkafka's settings
        """Return a consumer for `assign`; the caller closes it."""
        return Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "none",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,
                "check.crcs": True,
                "auto.offset.reset": "error",
                **settings,
            }
        )

    def read(
        self,
        topic: str,
        partition: int = 0,
        offset: int = 0,
        settings: Mapping[str, Any] | None = None,
    ) -> list[Message]:
        """Return all messages from an offset to the partition's end."""
        consumer = self.consumer(**(settings or {}))
        try:
            consumer.assign([TopicPartition(topic, partition, offset)])
            return read_to_end(consumer)
        finally:
            consumer.close()


def read_to_end(consumer: Consumer) -> list[Message]:
    """Return the messages of the assigned partition up to its end.

    Raises:
        KafkaException: The client reports an error, other than that there are no groups.
    """
    messages: list[Message] = []
    deadline = monotonic() + _SECONDS
    while monotonic() < deadline:
        for message in consumer.consume(1000, 0.01):
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                return messages
            elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                raise KafkaException(error)
    raise AssertionError(f"no end after {len(messages)} messages")


def row_of(message: Message) -> dict[str, Any]:
    """Return a message in the form of the fixtures, without the leader epoch."""
    kind, timestamp = message.timestamp()
    headers: Any = message.headers() or []
    return {
        "offset": message.offset(),
        "timestamp": timestamp,
        "timestamp_type": {1: "CreateTime", 2: "LogAppendTime"}[kind],
        "key": text_of(message.key()),
        "value": text_of(message.value()),
        "headers": [[key, text_of(value)] for key, value in headers],
    }


def text_of(data: bytes | str | None) -> str | None:
    """Return bytes in the form of the fixtures."""
    if data is None:
        return None
    return base64.b64encode(data if isinstance(data, bytes) else data.encode()).decode()


def expected_rows(directory: Path, isolation: str, end: int) -> list[dict[str, Any]]:
    """Return what a consumer of the broker read of a fixture below `end`, without leader epochs."""
    return [
        {name: value for name, value in row.items() if name != "leader_epoch"}
        for row in broker_segments.consumed(directory, isolation)
        if row["offset"] < end
    ]


@contextmanager
def serving(
    root: Path, *options: str, store: ArchiveStore | None = None, **settings: Mapping[str, Any]
) -> Iterator[Served]:
    """Run `sidetier serve` until the block ends; it must stop by itself after SIGTERM.

    Args:
        root: Directory for its files.
        options: Further options of the command.
        store: The archive's store; None for the directory `store` below `root`.
        settings: Further options of the section `storage`.
    """
    (root / "logs").mkdir(parents=True, exist_ok=True)
    store = store or file_store(root / "store")
    config = root / "sidetier.yaml"
    document = {
        "cluster": {"name": "test"},
        "log_dirs": [str(root / "logs")],
        "storage": {**store.settings, "prefix_entropy_bits": 5, **settings},
    }
    config.write_text(yaml.safe_dump(document))
    port, metrics_port = free_port(), free_port()
    log = root / "log"
    command = [
        str(PROGRAM), "--config", str(config), "serve", "--listen", f"127.0.0.1:{port}",
        "--metrics-port", str(metrics_port), *options,
    ]  # fmt: skip
    with (
        log.open("w") as output,
        subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            text=True,
            env={**os.environ, **store.environment},
        ) as process,
    ):
        try:
            wait_until(
                lambda: "endpoint.listening" in log.read_text() or process.poll() is not None,
                60,
                "the endpoint to listen",
            )
            assert process.poll() is None, log.read_text()
            yield Served(f"127.0.0.1:{port}", root, process, metrics_port)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0, log.read_text()
        finally:
            process.kill()
    assert "request_failed" not in log.read_text()


def free_port() -> int:
    """Return a port that no program listens at now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])

"""Parts of the demo: a topic with short retention, the sidecar, and a producer."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Final

import yaml
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.cimpl import NewTopic

from devtools.demo.records import Ledger, Order
from devtools.demo.verify import LogOffsets
from devtools.sandbox.kafka import KafkaCluster
from sidetier.brokers.processes import Command, ManagedProcess
from sidetier.cli.inspect.sidecar import ask_sidecar
from sidetier.leadership.cluster import End, admin_client, all_offsets
from sidetier.segments.errors import SidetierError
from sidetier.segments.offsets import TopicPartition

TOPIC: Final = "orders"
CLUSTER_NAME: Final = "demo"
SEGMENT_BYTES: Final = 1024**2
RETENTION_SECONDS: Final = 5
_TOPIC_SETTINGS: Final = {
    "segment.bytes": str(SEGMENT_BYTES),
    "retention.ms": str(RETENTION_SECONDS * 1000),
    # The files stay for a while under a `.deleted` name, as on a real broker (there for a minute).
    "file.delete.delay.ms": "20000",
}
_ANSWER_SECONDS: Final = 30.0
_START_SECONDS: Final = 60.0
_FLUSH_SECONDS: Final = 60.0
_ERRORS_ONLY: Final = 3
"""Log level of librdkafka."""


class DemoFailedError(SidetierError):
    """The demo could not be completed; the text names the part that failed."""


class Topic:
    """The demo's topic, whose segments the broker deletes after seconds."""

    def __init__(self, bootstrap: str, partitions: int) -> None:
        """Connect to a running broker; the topic is not created yet."""
        self.partitions = partitions
        self._admin = admin_client(bootstrap, {"log_level": str(_ERRORS_ONLY)})

    def create(self) -> None:
        """Create the topic, and wait until the broker has done so."""
        topic = NewTopic(TOPIC, self.partitions, 1, config=dict(_TOPIC_SETTINGS))
        self._admin.create_topics([topic])[TOPIC].result(_ANSWER_SECONDS)

    def bounds(self) -> dict[int, LogOffsets]:
        """Return the broker's log start and end offset of each partition now."""
        tps = [TopicPartition(TOPIC, number) for number in range(self.partitions)]
        starts, ends = (
            all_offsets(self._admin, tps, end, _ANSWER_SECONDS) for end in (End.START, End.LATEST)
        )
        return {tp.partition: LogOffsets(starts[tp].offset, ends[tp].offset) for tp in tps}

    def close(self) -> None:
        """Drop the client: it would report on standard error that the broker is gone."""
        del self._admin


class Sidecar:
    """`sidetier run` in a process of its own, beside the cluster's one broker."""

    def __init__(self, directory: Path, cluster: KafkaCluster, store_url: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.config = directory / "sidetier.yaml"
        settings = {
            "cluster": {"name": CLUSTER_NAME},
            "log_dirs": [str(path) for path in cluster.log_dirs(1)],
            "broker": {"bootstrap_servers": cluster.bootstrap_servers},
            "storage": {"url": store_url},
            "uploader": {"tail": {"interval": "1s"}},
            "http": {"host": "127.0.0.1", "port": 0},
        }
        self.config.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        self._log = directory / "sidecar.log"
        line = [sys.executable, "-m", "sidetier.cli", "--config", str(self.config), "run"]
        self.process = ManagedProcess(Command("the sidecar", line, self._log))

    def start(self) -> None:
        """Start the sidecar, and wait until it has started.

        Raises:
            ServerDiedError: The sidecar ended; the text has the end of its log.
        """
        self.process.start()
        self.process.wait_until(lambda: self.url is not None, _START_SECONDS)

    @property
    def url(self) -> str | None:
        """URL of its HTTP server; None until the server is up."""
        return next((str(e["url"]) for e in self._events() if e["event"] == "daemon.started"), None)

    def safe_ends(self) -> dict[int, int]:
        """Return the end of the records in archive and tail packs, by partition; only of partitions
        whose tail has begun.
        """
        url = self.url
        rows = () if url is None else ask_sidecar(url).status.partitions
        return {row.partition: row.safe_to for row in rows if row.safe_to is not None}

    def count(self, event: str) -> int:
        """Return how often the sidecar has logged an event."""
        return sum(entry["event"] == event for entry in self._events())

    def stop(self) -> None:
        """Send SIGTERM, and wait for the end.

        Raises:
            DemoFailedError: The exit code is not 0.
        """
        self.process.stop()
        if self.process.returncode != 0:
            raise DemoFailedError(
                f"the sidecar ended with exit code {self.process.returncode}\n"
                f"{self.process.log_tail()}"
            )

    def _events(self) -> Iterator[dict[str, object]]:
        text = self._log.read_text(encoding="utf-8") if self._log.exists() else ""
        for line in text.splitlines():
            if line.startswith("{") and line.endswith("}"):
                yield json.loads(line)


class PacedProducer:
    """Produces at a steady rate, so that a user can watch; the ledger gets what is acknowledged."""

    def __init__(self, bootstrap: str, ledger: Ledger) -> None:
        self._ledger = ledger
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 20,
                "batch.size": 64 * 1024,
                "log_level": _ERRORS_ONLY,
            }
        )

    def produce(
        self, records: Iterator[Order], bytes_per_second: int, tick: Callable[[], None]
    ) -> None:
        """Produce all records; call `tick` at every 200th.

        Raises:
            DemoFailedError: A record was not acknowledged.
        """
        started, sent = monotonic(), 0
        for number, order in enumerate(records):
            self._send(order)
            sent += len(order.key) + len(order.value)
            due = started + sent / bytes_per_second
            # `poll` also serves the delivery callbacks, so that the ledger is filled meanwhile.
            while (left := due - monotonic()) > 0:
                self._producer.poll(left)
            if number % 200 == 0:
                tick()
        unsent = self._producer.flush(_FLUSH_SECONDS)
        if unsent or self._ledger.failures:
            reason = (self._ledger.failures or ["the broker does not answer"])[0]
            raise DemoFailedError(f"records were not acknowledged: {reason}")

    def _send(self, order: Order) -> None:
        def note(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is not None or offset is None:
                self._ledger.failures.append(str(error))
            else:
                self._ledger.note(order.partition, offset, order.key, order.value)

        while True:
            try:
                self._producer.produce(
                    TOPIC,
                    order.value,
                    order.key,
                    order.partition,
                    on_delivery=note,
                    timestamp=order.timestamp,
                )
            except BufferError:  # the broker is slower than the demo's rate
                self._producer.poll(1)
            else:
                return

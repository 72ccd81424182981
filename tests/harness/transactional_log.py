"""Topics of a real cluster with transactions, and what each reader of the whole log must get."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException, Message, Producer

from devtools.sandbox.kafka import KraftCluster
from sidetier.brokers.kafka import KAFKA_4_3, KafkaNode, Properties
from sidetier.brokers.ports import free_port
from sidetier.wire.settings import Address
from tests.harness.archive_check import ArchiveReader
from tests.harness.archive_objects import Objects
from tests.harness.log_readers import Row
from tests.harness.stored_log import Record, read_batches, read_records
from tests.harness.waiting import wait_until

_SECONDS: Final = 120.0
_ROWS: Final = 5
"""Records of one batch in each topic."""
_VALUE_BYTES: Final = 600
_LONG: Final = 12
_LONG_ENDS: Final = 6
"""A long transaction begins with each 12th round, and ends in the 6th one after it."""


class HostedCluster(KraftCluster):
    """Brokers with a second listener each, for the endpoint, on a host of its own.

    These hosts are those of nothing else, so that a search for them finds addresses of brokers and
    nothing else. The cluster stays writable while one of three brokers is away.
    """

    def __init__(self, directory: Path, brokers: int = 3) -> None:
        self.hosted: dict[int, Address] = {}
        """Addresses of the second listeners."""
        super().__init__(
            directory,
            KAFKA_4_3,
            brokers=brokers,
            properties={
                "min.insync.replicas": 2,
                "offsets.topic.replication.factor": 3,
                "offsets.topic.num.partitions": 6,
                "transaction.state.log.replication.factor": 3,
                "transaction.state.log.min.isr": 2,
                "transaction.state.log.num.partitions": 3,
                "listener.security.protocol.map": "HOSTED:PLAINTEXT",
            },
        )

    @property
    def hosted_servers(self) -> str:
        """Addresses of the second listeners, in the form of `bootstrap.servers`."""
        return ",".join(f"{host}:{port}" for host, port in self.hosted.values())

    def _make(
        self, node_id: int, client_port: int, log_dirs: int, properties: Properties
    ) -> KafkaNode:
        host, port = self.hosted[node_id] = Address(f"127.91.0.{node_id}", free_port())
        address = f"HOSTED://{host}:{port}"
        own = {"listeners": address, "advertised.listeners": address}
        return super()._make(node_id, client_port, log_dirs, {**properties, **own})


class LogWriter:
    """Writes to partition 0 of some topics, in rounds.

    A round is a transaction, with a record of no transaction in its middle; every third transaction
    is aborted. Others are open across many rounds, and every second of them is aborted. A value is
    different from all others; it begins with the name of its transaction, a number and `|`.

    Args:
        servers: Addresses of the brokers.
        topics: The topics.
    """

    def __init__(self, servers: str, topics: Sequence[str]) -> None:
        self._servers, self._topics = servers, topics
        self.acknowledged: dict[str, dict[str, int]] = {topic: {} for topic in topics}
        """Offsets of the records that the brokers have acknowledged, by the start of the value."""
        self.ends = dict.fromkeys(topics, -1)
        """Highest of these offsets."""
        self.aborted: set[str] = set()
        """Names of the aborted transactions."""
        self._round = 0
        self._open: dict[Producer, str] = {}
        """Names of the transactions that are open."""
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._connect()

    def _connect(self) -> None:
        """Create producers. Transactions that earlier ones have left open are aborted."""
        self.aborted |= set(self._open.values())
        self._open = {}
        base = {
            "bootstrap.servers": self._servers,
            "linger.ms": 0,
            "log_level": 0,
            "acks": "all",
            # A broker that is stopped with SIGSTOP answers nothing.
            "request.timeout.ms": 3000,
            "socket.timeout.ms": 4000,
        }
        self._plain = Producer({**base, "enable.idempotence": True})
        self._short, self._long = (
            Producer(
                {
                    **base,
                    "transactional.id": f"{self._topics[0]}-{name}",
                    "transaction.timeout.ms": 300_000,
                }
            )
            for name in ("short", "long")
        )
        for each in (self._short, self._long):
            each.init_transactions(_SECONDS)

    def write(self, rounds: int) -> None:
        """Write a number of rounds, and return."""
        for _ in range(rounds):
            self._write()

    @contextmanager
    def writing(self, pause: float) -> Iterator[None]:
        """Write rounds in a thread, with a pause of some seconds after each, until the block ends.

        All transactions are ended then.
        """
        if self._failure is not None:  # in a test that runs again
            self._failure = None
            self._connect()
        self._stop.clear()

        def run() -> None:
            try:
                while not self._stop.wait(pause):
                    self._write()
            except Exception as error:  # noqa: BLE001 - `check` raises it
                self._failure = error

        thread = threading.Thread(target=run, name="log-writer", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
        self.check()
        self.end_long()

    def check(self) -> None:
        """Raise AssertionError if the thread has failed."""
        assert self._failure is None, repr(self._failure)

    def wait_for(self, topic: str, offset: int, seconds: float = _SECONDS) -> None:
        """Wait until the brokers have acknowledged an offset."""

        def reached() -> bool:
            self.check()
            return self.ends[topic] >= offset

        wait_until(reached, seconds, f"{topic} to be written up to {offset}")

    def write_behind_open_transaction(self) -> None:
        """Write a round behind a transaction that `end_long` ends; the thread must not run."""
        self._round += -self._round % _LONG
        self._write()

    def end_long(self) -> None:
        """End the long transaction, if one is open."""
        if self._long in self._open:
            self._end(self._long, commits=self._round // _LONG % 2 == 0)

    def _write(self) -> None:
        number = self._round
        if number % _LONG == 0:
            self._begin(self._long, f"l{number:05}")
            self._send(self._long, range(_ROWS))
        self._begin(self._short, f"t{number:05}")
        self._send(self._short, range(_ROWS))
        self._send(self._plain, range(number, number + 1))
        self._send(self._short, range(_ROWS, 2 * _ROWS))
        self._end(self._short, commits=number % 3 != 0)
        if number % _LONG == _LONG_ENDS:
            self.end_long()
        self._round += 1

    def _begin(self, producer: Producer, name: str) -> None:
        producer.begin_transaction()
        self._open[producer] = name

    def _send(self, producer: Producer, rows: range) -> None:
        """Send a batch to each topic, and wait until it is acknowledged."""
        name = self._open.get(producer, "plain")
        for topic in self._topics:
            for row in rows:
                value = f"{name}-{row}|".ljust(_VALUE_BYTES, ".")
                producer.produce(topic, value, partition=0, on_delivery=self._note)
        assert producer.flush(_SECONDS) == 0, "the brokers acknowledge nothing"

    def _note(self, error: object, message: Message) -> None:
        if error is None:
            topic, offset = str(message.topic()), int(message.offset() or 0)
            self.acknowledged[topic][start_of(message.value())] = offset
            self.ends[topic] = max(self.ends[topic], offset)

    def _end(self, producer: Producer, *, commits: bool) -> None:
        name = self._open[producer]
        if not commits:
            self.aborted.add(name)
        while name in self._open.values():
            try:
                if name in self.aborted:
                    producer.abort_transaction(_SECONDS)
                else:
                    producer.commit_transaction(_SECONDS)
                del self._open[producer]
            except KafkaException as error:
                if error.args[0].txn_requires_abort():
                    self.aborted.add(name)
                elif not error.args[0].retriable():
                    raise

    def expected(self, log: Sequence[Row], isolation: str) -> list[Row]:
        """Return the records of a log that a consumer must get by now."""
        if isolation == "read_uncommitted":
            return list(log)
        opened = set(self._open.values())
        stable = takewhile(lambda row: _name_of(row) not in opened, log)
        return [row for row in stable if _name_of(row) not in self.aborted]


def _name_of(row: Row) -> str:
    return row[1].partition("-")[0]


def whole_log(objects: Objects, log_dir: Path, topic: str) -> list[Row]:
    """Return the records of partition 0 as the store and the leader's files have them together.

    Both sides must have the same where they overlap, and no file may be written meanwhile.
    """
    reader = ArchiveReader(objects)
    stored = reader.records(reader.views()[topic, 0])
    live = dict(_records_of(log_dir / f"{topic}-0"))
    both = stored.keys() & live.keys()
    assert all(stored[offset] == live[offset] for offset in both)
    return [(offset, start_of(record.value)) for offset, record in sorted((stored | live).items())]


def last_epoch(log_dir: Path, topic: str) -> int:
    """Return the leader epoch of the last batch in the leader's files."""
    files = sorted((log_dir / f"{topic}-0").glob("*.log"))
    batches = (batch for path in files for batch in read_batches(path.read_bytes(), path.name))
    return max(batch.leader_epoch for batch in batches)


def _records_of(directory: Path) -> Iterator[tuple[int, Record]]:
    for path in sorted(directory.glob("*.log")):
        yield from read_records(path.read_bytes(), path.name)


def start_of(value: bytes | str | None) -> str:
    """Return the part of a value that readers report."""
    text = value.decode() if isinstance(value, bytes) else value or ""
    return text.partition("|")[0]

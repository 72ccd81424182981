"""Plain consumers that read archive and brokers as one log, through `sidetier serve --live`."""

import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from devtools.sandbox.kafka_tools import console_consumer
from sidetier import TieredConsumer
from tests.end_to_end.chaos.group_verdict import Log, Truth, truth_of, violations
from tests.end_to_end.chaos.groups import Assignment
from tests.end_to_end.chaos.ledger import Ledger, Partition, checksum
from tests.end_to_end.chaos.scene import (
    ASK_SECONDS,
    CATCH_UP_SECONDS,
    PARTITIONS,
    TRIMMED_PARTITIONS,
    Scene,
)
from tests.harness.serve_process import ServeProcess, serve_process
from tests.harness.waiting import wait_until

_BATCH = 500
_WAIT_SECONDS = 0.3
_SLOW_RATE = 100.0
"""Records per second of a reader that is to fall below the log starts of the brokers."""
_LIFE_SECONDS = 45.0
"""The time after which the endpoint is killed and started again at the same address."""
_NOTHING_AHEAD = {
    "queued.min.messages": 100,
    "queued.max.messages.kbytes": 64,
    "fetch.queue.backoff.ms": 5,  # by default a second for each 64 KiB, also at the end
}
_AWAY = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT})
_JAVA_PARTITION = ("plain", 0)
LASTING: Sequence[Partition] = (*PARTITIONS, *TRIMMED_PARTITIONS)
"""Partitions of which a reader of the one log must receive every acknowledged record."""


class LiveReaders:
    """The endpoint, and its readers: librdkafka with both isolation levels, one of them slow, and
    Kafka's console consumer. They read while the context is entered.
    """

    def __init__(self, scene: Scene, directory: Path, tell: Callable[[str], None]) -> None:
        root = directory / "live"
        root.mkdir()
        options = ("--live", scene.cluster.bootstrap_servers)
        self._serving = serve_process(root, *options, store=scene.store.direct, layout=scene.layout)
        self._root = root
        self._tell = tell
        self._readers: list[PlainReader] = []
        self._java: ConsoleReader | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._stack = ExitStack()
        self.kills = 0

    def __enter__(self) -> Self:
        enter = self._stack.enter_context
        endpoint = enter(self._serving)
        at = endpoint.bootstrap
        plain = {"bootstrap.servers": at, "reconnect.backoff.max.ms": 500, "check.crcs": True}
        slow = {**plain, **_NOTHING_AHEAD}
        self._readers = [
            enter(PlainReader("live-committed", plain, PARTITIONS, "read_committed")),
            enter(PlainReader("live-uncommitted", plain, LASTING, "read_uncommitted")),
            enter(PlainReader("live-slow", slow, LASTING, "read_uncommitted", rate=_SLOW_RATE)),
        ]
        self._java = enter(ConsoleReader(at, _JAVA_PARTITION, self._root))
        self._thread = threading.Thread(
            target=self._kill, args=(endpoint,), name="live-kills", daemon=True
        )
        self._thread.start()
        self._stack.callback(self._end_kills)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _end_kills(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _kill(self, endpoint: ServeProcess) -> None:
        while not self._stop.wait(_LIFE_SECONDS):
            self._tell("kill the endpoint")
            endpoint.kill()
            endpoint.start()
            self.kills += 1

    def end(self, ledger: Ledger) -> Iterator[str]:
        """Wait until everybody has read up to the end, stop, and yield the violations."""
        java = self._java
        assert java is not None
        self._end_kills()
        truths = {reader.name: reader.truth(ledger) for reader in self._readers}
        acknowledged = [at for at, _ in ledger.acknowledged[java.tp].items()]

        def missing() -> dict[str, list[Partition]]:
            late = {reader.name: reader.late(truths[reader.name]) for reader in self._readers}
            late["java"] = [java.tp] if acknowledged and java.last() < acknowledged[-1] else []
            return {name: partitions for name, partitions in late.items() if partitions}

        for reader in self._readers:
            reader.rate = None
        try:
            wait_until(
                lambda: not missing(), CATCH_UP_SECONDS, "the live readers to end", ASK_SECONDS
            )
        except AssertionError as error:
            yield f"{error}: {missing()}"
        try:
            self._stack.close()
        except AssertionError as error:
            yield f"the endpoint: {error}"
        for reader in self._readers:
            found = reader.violations(truths[reader.name])
            yield from (f"{reader.name}: {one}" for one in found)
        yield from (f"java: {one}" for one in java.violations(acknowledged))

    @property
    def received(self) -> int:
        """Number of records that all readers received."""
        return sum(len(row.rows) for one in self._readers for row in one.assignments.values())


class PlainReader:
    """A consumer without a group, from the first offset on, in a thread.

    A position that is refused is an error: the reader has no reset policy.

    Args:
        name: Its name, for messages.
        config: The configuration of the consumer.
        partitions: What it reads.
        isolation: `isolation.level`.
        rate: Maximum number of records per second.
        open_consumer: Makes the consumer: one of Kafka, or one of Sidetier.
    """

    def __init__(
        self,
        name: str,
        config: Mapping[str, Any],
        partitions: Sequence[Partition],
        isolation: str,
        *,
        rate: float | None = None,
        open_consumer: Callable[[dict[str, Any]], Consumer | TieredConsumer] = Consumer,
    ) -> None:
        self.name = name
        self.rate = rate
        self.problems: list[str] = []
        self.assignments: Mapping[Partition, Assignment] = {}
        self._partitions = partitions
        self._isolation = isolation
        self._config = config
        self._open_consumer = open_consumer
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    def __enter__(self) -> Self:
        self.assignments = {tp: Assignment(tp, self.name) for tp in self._partitions}
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def truth(self, ledger: Ledger) -> Truth:
        """What the reader must receive: without `read_committed`, also aborted records."""
        if self._isolation == "read_committed":
            return truth_of(ledger, ("paid",), {topic for topic, _ in self._partitions})
        return Truth({tp: [Log(ledger.acknowledged[tp])] for tp in self._partitions})

    def violations(self, truth: Truth) -> Iterator[str]:
        """Yield errors, and what it received wrongly or did not receive."""
        yield from self.problems
        yield from violations(truth, self.assignments.values(), "KAFKA_ONLY")

    def late(self, truth: Truth) -> list[Partition]:
        """The partitions of which it has not received the last record."""
        return [tp for tp, (last, _) in truth.lasts.items() if self.last(tp) < last]

    def last(self, tp: Partition) -> int:
        """The last offset that was received; -1 before the first."""
        rows = self.assignments[tp].rows
        return rows[-1][0] if rows else -1

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - looked at by the verdict
            self.problems.append(repr(error))

    def _run(self) -> None:
        consumer = self._open_consumer(
            {
                "group.id": self.name,
                "enable.auto.commit": False,
                "isolation.level": self._isolation,
                "auto.offset.reset": "error",
                "log_level": 0,
                **self._config,
            }
        )
        try:
            consumer.assign([TopicPartition(*tp, 0) for tp in self._partitions])
            while not self._stop.is_set():
                rate = self.rate
                count = _BATCH if rate is None else ceil(rate * _WAIT_SECONDS)
                for message in consumer.consume(count, _WAIT_SECONDS):
                    self._note(message)
                if rate is not None:
                    self._stop.wait(_WAIT_SECONDS)
        finally:
            consumer.close()

    def _note(self, message: Message) -> None:
        tp = (str(message.topic()), int(message.partition() or 0))
        error = message.error()
        if error is None:
            row = (int(message.offset() or 0), checksum(message.key(), message.value()))
            self.assignments[tp].rows.append(row)
        elif error.code() not in _AWAY:
            self.problems.append(f"{tp}: {error.str()}")


class ConsoleReader:
    """Kafka's console consumer on one partition, from its first offset on."""

    def __init__(self, bootstrap: str, tp: Partition, root: Path) -> None:
        self.tp = tp
        self.output = root / "console-consumer.out"
        self.errors = root / "console-consumer.err"
        self._bootstrap = bootstrap
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = [
            *console_consumer(), "--bootstrap-server", self._bootstrap,
            "--topic", self.tp[0], "--partition", str(self.tp[1]), "--offset", "0",
            "--command-property", "auto.offset.reset=none",
            "--formatter-property", "print.offset=true",
            "--formatter-property", "print.value=false",
        ]  # fmt: skip
        with self.output.open("wb") as output, self.errors.open("wb") as errors:
            self._process = subprocess.Popen(command, stdout=output, stderr=errors)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)

    def offsets(self) -> list[int]:
        """The offsets in the order in which they came."""
        lines = self.output.read_text().split("\n")[:-1]  # the last one may be cut
        return [int(line.split(":")[1].split()[0]) for line in lines if line.startswith("Offset:")]

    def last(self) -> int:
        """The last offset that was received; -1 before the first."""
        return max(self.offsets()[-1:], default=-1)

    def violations(self, acknowledged: Sequence[int]) -> Iterator[str]:
        """Yield what it skipped or repeated."""
        offsets = self.offsets()
        falls = [after for before, after in pairwise(offsets) if after <= before]
        if falls:
            yield f"{self.tp}: {len(falls)} offsets came again, the first at {falls[0]}"
        gone = sorted(set(acknowledged) - set(offsets))
        if gone:
            errors = self.errors.read_text()[-2000:]
            yield f"{self.tp}: {len(gone)} records never came, the first at {gone[0]}; {errors}"

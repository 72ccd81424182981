"""The contenders of the mirror benchmark: `sidetier mirror` and MirrorMaker 2."""

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Consumer, TopicPartition

from devtools.sandbox.kafka import KraftCluster
from devtools.sandbox.kafka_clients import MIRROR_MAKER
from lib.clock import monotonic, pause
from lib.installed import installed_programs
from lib.mirror_clusters import PARTITIONS, RECORD_BYTES, Shape, has_records
from lib.processes import cpu_seconds, has_ended, peak_resident_bytes
from sidetier.brokers.jars import class_path, jars_of
from sidetier.brokers.java import find_java
from sidetier.brokers.kafka import logging_flags, write_properties
from sidetier.brokers.ports import HOST, free_port
from sidetier.brokers.processes import Command, ManagedProcess

_GIB = 1 << 30
_POLL_SECONDS = 0.02
_TIMEOUT_SECONDS = 900.0
_WARM = 0.25
"""Share of the records that are copied before the measurement begins."""
_MIRROR_MAKER_JVM_FLAGS = (
    "-Xms256m",
    "-Xmx2g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-Djava.awt.headless=true",
)
"""JVM flags of `connect-mirror-maker.sh`."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The two clusters of a benchmark."""

    source: KraftCluster
    target: KraftCluster


@dataclass(frozen=True, slots=True)
class Copied:
    """One copy, from the commit of a quarter of the records to the last commit.

    Attributes:
        size: Bytes of keys and values that were copied in this time.
        start_seconds: Seconds from the start of the process to its first record on the target.
    """

    size: int
    seconds: float
    cpu_seconds: float
    source_cpu_seconds: float
    target_cpu_seconds: float
    start_seconds: float
    start_cpu_seconds: float
    peak_resident_bytes: int

    @property
    def megabytes_per_second(self) -> float:
        """MB/s of keys and values."""
        return self.size / self.seconds / 1e6

    @property
    def cpu_per_gib(self) -> float:
        """CPU seconds of the copying process per GiB."""
        return self.cpu_seconds * _GIB / self.size

    @property
    def brokers_cpu_per_gib(self) -> float:
        """CPU seconds of both brokers per GiB."""
        return (self.source_cpu_seconds + self.target_cpu_seconds) * _GIB / self.size


class Contender(ABC):
    """A process that copies one topic; leaving the context ends it."""

    name: str
    """Name in tables."""
    topic: str
    """Name of the copy on the target."""

    def __init__(self, process: ManagedProcess) -> None:
        self.process = process

    def __enter__(self) -> Self:
        self.process.start()
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    @abstractmethod
    def committed(self) -> int:
        """Return the number of source records that are copied and committed."""


class SidetierMirror(Contender):
    """`sidetier mirror`. Its group on the target shows the progress."""

    def __init__(self, directory: Path, pair: Pair, shape: Shape, run: str, delivery: str) -> None:
        self.name = f"mirror, {delivery}"
        self.topic = f"{run}.{shape.name}"
        self._copies = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
        self._group = Consumer(
            {
                "bootstrap.servers": pair.target.bootstrap_servers,
                "group.id": f"sidetier-mirror-{run}",
                "isolation.level": "read_uncommitted",  # do not wait for open transactions
                "log_level": 0,
            }
        )
        line = [str(installed_programs("consumer") / "sidetier"), "mirror", "--name", run]
        line += ["--topic", shape.name, "--rename", rf"(.*)={run}.\1", "--delivery", delivery]
        line += ["--source", f"bootstrap.servers={pair.source.bootstrap_servers}"]
        line += ["--target", f"bootstrap.servers={pair.target.bootstrap_servers}"]
        super().__init__(
            ManagedProcess(
                Command(
                    "sidetier mirror",
                    [*line, "--no-archive", "--until-caught-up", "--output", "json"],
                    directory / f"{run}.log",
                    {"PYTHONDONTWRITEBYTECODE": ""},
                )
            )
        )

    def __exit__(self, *_: object) -> None:
        self.process.stop()
        self._group.close()

    def committed(self) -> int:
        """Return the sum of the progress group's offsets."""
        pause(_POLL_SECONDS)
        return sum(
            max(committed_offset.offset, 0)
            for committed_offset in self._group.committed(self._copies, 30)
        )


class MirrorMaker(Contender):
    """MirrorMaker 2 in dedicated mode with exactly-once. Its offsets topic shows the progress."""

    name = "MirrorMaker 2, exactly-once"

    def __init__(self, directory: Path, pair: Pair, shape: Shape, run: str) -> None:
        self.topic = f"{run}.{shape.name}"  # default naming policy
        home = directory / run
        home.mkdir(parents=True)
        config = home / "mm2.properties"
        write_properties(config, _mirror_maker_properties(pair, shape, run))
        flags = [*_MIRROR_MAKER_JVM_FLAGS, *logging_flags(home, log4j2=True)]
        jars = class_path(jars_of(MIRROR_MAKER))
        line = [str(find_java().program), *flags, "-cp", jars]
        super().__init__(
            ManagedProcess(
                Command(
                    "MirrorMaker 2",
                    [*line, "org.apache.kafka.connect.mirror.MirrorMaker", config],
                    home / "mirror-maker.log",
                )
            )
        )
        self._offsets = _OffsetsTopic(pair.target, f"mm2-offsets.{run}.internal", shape.name)

    def __exit__(self, *_: object) -> None:
        self.process.kill()  # a clean stop takes up to half a minute
        self._offsets.close()

    def committed(self) -> int:
        """Return the sum of Kafka Connect's source offsets."""
        return self._offsets.total()


def _mirror_maker_properties(pair: Pair, shape: Shape, run: str) -> dict[str, str]:
    """Return settings for throughput.

    One task for each partition, the source's batch size and codec, fetches as large as those of
    `sidetier mirror`, and like it a transaction each second.
    """
    flow = f"{run}->target"
    return {
        "clusters": f"{run}, target",
        f"{run}.bootstrap.servers": pair.source.bootstrap_servers,
        "target.bootstrap.servers": pair.target.bootstrap_servers,
        f"{flow}.enabled": "true",
        f"{flow}.topics": shape.name,
        f"target->{run}.enabled": "false",
        "target.exactly.once.source.support": "enabled",
        "dedicated.mode.enable.internal.rest": "true",
        "listeners": f"http://{HOST}:{free_port()}",
        "tasks.max": str(PARTITIONS),
        "emit.heartbeats.enabled": "false",
        "emit.checkpoints.enabled": "false",
        "sync.topic.acls.enabled": "false",
        "sync.group.offsets.enabled": "false",
        **{
            f"{name}.replication.factor": "1"
            for name in (
                *("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic"),
                *("offset.storage", "status.storage", "config.storage"),
            )
        },
        "replication.factor": "1",
        f"{flow}.transaction.boundary": "interval",
        f"{flow}.transaction.boundary.interval.ms": "1000",
        f"{flow}.consumer.isolation.level": "read_committed",
        f"{flow}.consumer.auto.offset.reset": "earliest",
        f"{flow}.consumer.max.poll.records": "10000",
        f"{flow}.consumer.fetch.max.bytes": str(32 << 20),
        f"{flow}.consumer.max.partition.fetch.bytes": str(8 << 20),
        f"{flow}.consumer.receive.buffer.bytes": "-1",
        f"{flow}.producer.override.batch.size": str(shape.batch_bytes),
        f"{flow}.producer.override.linger.ms": "100",
        f"{flow}.producer.override.buffer.memory": str(128 << 20),
        f"{flow}.producer.override.max.request.size": str(16 << 20),
        f"{flow}.producer.override.send.buffer.bytes": "-1",
        f"{flow}.producer.override.compression.type": shape.codec,
    }


class _OffsetsTopic:
    """Reads the source offsets that MirrorMaker 2 commits in its transactions."""

    def __init__(self, target: KraftCluster, name: str, source_topic: str) -> None:
        self._name = name
        self._source_topic = source_topic
        self._next: dict[int, int] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": target.bootstrap_servers,
                "group.id": name,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "topic.metadata.refresh.interval.ms": 500,
                "log_level": 0,
            }
        )
        self._consumer.subscribe([name])

    def total(self) -> int:
        for message in self._consumer.consume(1000, _POLL_SECONDS):
            if message.error() is None and message.key() and message.value():
                self._take(json.loads(message.key()), json.loads(message.value()))
        return sum(self._next.values())

    def _take(self, key: Any, value: Any) -> None:  # noqa: ANN401 - JSON
        _, partition = key
        if isinstance(partition, dict) and partition.get("topic") == self._source_topic:
            self._next[partition["partition"]] = value["offset"] + 1

    def close(self) -> None:
        self._consumer.close()


@dataclass(frozen=True, slots=True)
class _Observation:
    """Committed records at a time, and CPU seconds of contender, source and target."""

    committed: int
    at: float
    cpu: tuple[float, ...]


def copy_once(contender: Contender, pair: Pair, shape: Shape) -> Copied:
    """Run a contender until the whole topic is copied.

    Raises:
        RuntimeError: It ended before.
        TimeoutError: It takes longer than a quarter of an hour.
    """
    began = monotonic()
    memory = 0
    with contender:
        pids = [
            contender.process.pid,
            *(kafka_cluster.process_of(1).pid for kafka_cluster in (pair.source, pair.target)),
        ]
        while not has_records(pair.target, contender.topic):
            _check(contender, began)
        first, first_cpu = monotonic(), cpu_seconds(pids[0])
        start: _Observation | None = None
        while True:
            # An ended process keeps its CPU time until it is waited for.
            ended = has_ended(pids[0])
            if not ended:
                memory = peak_resident_bytes(pids[0])
            observed = _Observation(
                contender.committed(), monotonic(), tuple(map(cpu_seconds, pids))
            )
            if observed.committed >= shape.records:
                break
            if ended:
                raise RuntimeError(f"{contender.name} has ended:\n{contender.process.log_tail()}")
            if start is None and observed.committed >= shape.records * _WARM:
                start = observed
            _check_time(contender, began)
    if start is None:
        raise RuntimeError(f"{contender.name}: one commit had all records; give more MiB")
    own, source, target = (
        after - before for before, after in zip(start.cpu, observed.cpu, strict=True)
    )
    return Copied(
        size=(observed.committed - start.committed) * RECORD_BYTES,
        seconds=observed.at - start.at,
        cpu_seconds=own,
        source_cpu_seconds=source,
        target_cpu_seconds=target,
        start_seconds=first - began,
        start_cpu_seconds=first_cpu,
        peak_resident_bytes=memory,
    )


def _check(contender: Contender, began: float) -> None:
    """Wait a moment while the contender starts, and check that it runs."""
    pause(_POLL_SECONDS)
    if has_ended(contender.process.pid):
        raise RuntimeError(f"{contender.name} has ended:\n{contender.process.log_tail()}")
    _check_time(contender, began)


def _check_time(contender: Contender, began: float) -> None:
    if monotonic() - began > _TIMEOUT_SECONDS:
        raise TimeoutError(f"{contender.name} takes too long:\n{contender.process.log_tail()}")

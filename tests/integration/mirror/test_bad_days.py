"""Workers and brokers that fail at a bad moment: the copy has each record once and in order."""

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from devtools.sandbox.kafka import KraftCluster
from sidetier.brokers.java import Java
from sidetier.brokers.kafka import KAFKA_4_3
from sidetier.mirror.topics.rules import MirrorNames
from sidetier.wire.cluster import Cluster
from sidetier.wire.requests import Transaction, committed_offsets, describe_transaction
from sidetier.wire.settings import ClientSettings
from tests.harness.disks import make_disk
from tests.harness.mirror_runs import WAIT, command, consumed, mirror, write, write_until
from tests.harness.topics import create_topic, leader_of, move_leader
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]
PARTITIONS = 4
PROPERTIES = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
}


@pytest.fixture(scope="module")
def target(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KraftCluster]:
    """Three brokers, so that each may be killed."""
    del java  # is there
    directory = tmp_path_factory.mktemp("target")
    with KraftCluster(directory, KAFKA_4_3, brokers=3, properties=PROPERTIES) as cluster:
        yield cluster


def cluster_of(servers: KraftCluster) -> Cluster:
    return Cluster(ClientSettings.from_properties({"bootstrap.servers": servers.bootstrap_servers}))


@dataclass
class Worker:
    """A process of `sidetier mirror`, its log, and the state of its transaction."""

    name: str
    mirror_name: str
    process: subprocess.Popen[bytes]
    log: Path

    def events(self, event: str) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines()
        logged = [json.loads(line) for line in lines if line.startswith("{")]
        return [entry for entry in logged if entry["event"] == event]

    def workers(self) -> int:
        """Number of workers in the group, as this worker knows."""
        joined = self.events("mirror.joined")
        return int(joined[-1]["workers"]) if joined else 0

    def is_in_transaction(self, target: Cluster) -> bool:
        return self.transaction(target).state == "Ongoing"

    def transaction(self, target: Cluster) -> Transaction:
        transactional_id = MirrorNames(self.mirror_name).transactional_id(self.name)
        return describe_transaction(target, transactional_id)

    def pause_in_transaction(self, target: Cluster) -> None:
        """Pause the process while its records are written and its progress is not.

        Written progress would make the other workers wait for the end of the transaction.
        """

        def is_paused() -> bool:
            self.process.send_signal(signal.SIGSTOP)
            transaction = self.transaction(target)
            topics = {tp.topic for tp in transaction.partitions}
            if transaction.state == "Ongoing" and "__consumer_offsets" not in topics:
                return True
            self.process.send_signal(signal.SIGCONT)
            return False

        wait_until(is_paused, WAIT, f"an open transaction of worker {self.name}", 0.2)


class Run:
    """Two workers of one mirror; `grows` waits until more of each partition is copied."""

    def __init__(
        self, stack: ExitStack, source: str, target: KraftCluster, topic: str, directory: Path
    ) -> None:
        self.target = target
        self.topic = topic
        self.client = stack.enter_context(cluster_of(target))
        self._stack = stack
        self._source = source
        self._directory = directory

    def start(self, name: str, *more: str) -> Worker:
        """Start a worker; it is killed at the end of the test."""
        line = command(
            *(self.topic, self.topic, self._source, self.target.bootstrap_servers),
            *("--worker", name, "--session-timeout", "6s", *more),
        )
        log = self._directory / f"{name}.log"
        with log.open("ab") as stderr:
            process = subprocess.Popen(line, stderr=stderr, stdout=subprocess.DEVNULL)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return Worker(name, self.topic, process, log)

    def progress(self) -> list[int]:
        group = MirrorNames(self.topic).group
        result = committed_offsets(self.client, group, require_stable=False)
        return [committed.offset for _, committed in sorted(result.items())]

    def grows(self) -> None:
        wait_until(lambda: len(self.progress()) == PARTITIONS, WAIT, "progress", 0.5)
        before = self.progress()
        wait_until(
            lambda: all(now > was for now, was in zip(self.progress(), before, strict=True)),
            WAIT,
            f"progress in each partition beyond {before}",
            0.5,
        )


def test_workers_share_partitions_and_survive_pauses_broker_deaths_and_kills(
    kraft43: KraftCluster, target: KraftCluster, topic: str, tmp_path: Path
) -> None:
    source = kraft43.bootstrap_servers
    create_topic(source, topic, partitions=PARTITIONS, configs={"retention.ms": -1})
    stop = threading.Event()
    failures: list[BaseException] = []
    writer = threading.Thread(target=write_until, args=(stop, source, topic, failures, PARTITIONS))
    with ExitStack() as stack:
        run = Run(stack, source, target, topic, tmp_path)
        stack.callback(writer.join, WAIT)
        stack.callback(stop.set)
        writer.start()
        first = run.start("first", "--transaction-timeout", "5m")
        # Longer than a transaction on a slow machine.
        second = run.start("second", "--transaction-timeout", "20s")
        wait_until(lambda: (first.workers(), second.workers()) == (2, 2), WAIT, "both workers")
        run.grows()

        # The group has expelled the first worker, but its transaction is still open: only the
        # group's generation shows that its records must not be committed.
        first.pause_in_transaction(run.client)
        wait_until(lambda: second.workers() == 1, WAIT, "the second worker alone")
        run.grows()
        assert first.is_in_transaction(run.client)
        first.process.send_signal(signal.SIGCONT)
        wait_until(lambda: (first.workers(), second.workers()) == (2, 2), WAIT, "both again")
        assert any("MEMBER" in entry["reason"] for entry in first.events("mirror.aborted"))

        # The coordinator aborts the transaction of the second.
        second.pause_in_transaction(run.client)
        wait_until(
            lambda: not second.is_in_transaction(run.client), WAIT, "the transaction's timeout", 0.5
        )
        second.process.send_signal(signal.SIGCONT)
        wait_until(lambda: second.workers() == 2, WAIT, "the second worker")
        run.grows()

        # The broker that coordinates all transactions is killed, and then the group moves.
        coordinator = leader_of(target.bootstrap_servers, "__transaction_state", 0)
        assert coordinator is not None
        wait_until(lambda: first.is_in_transaction(run.client), WAIT, "a transaction")
        target.kill_broker(coordinator)
        run.grows()
        target.start_broker(coordinator)
        of_group = leader_of(target.bootstrap_servers, "__consumer_offsets", 0)
        move_leader(
            target.bootstrap_servers,
            "__consumer_offsets",
            0,
            next(broker for broker in (1, 2, 3) if broker != of_group),
        )
        run.grows()

        second.process.kill()
        wait_until(lambda: first.workers() == 1, WAIT, "the first worker alone")
        run.grows()
        stop.set()
        writer.join(WAIT)
        assert failures == []
        first.process.send_signal(signal.SIGTERM)
        assert first.process.wait(WAIT) == 0, first.log.read_text()
    line = command(topic, topic, source, target.bootstrap_servers)
    code, _, errors = mirror(line, "--until-caught-up")
    assert code == 0, errors
    assert consumed(target.bootstrap_servers, topic) == consumed(source, topic)


def test_partition_without_a_leader_is_left_out_and_copied_later(
    kraft43: KraftCluster, target: KraftCluster, topic: str
) -> None:
    """The cluster with three brokers is the source. Only one of both partitions has progress."""
    source, copy = target.bootstrap_servers, kraft43.bootstrap_servers
    lost = f"{topic}.lost"
    configs = {"retention.ms": -1, "min.insync.replicas": 1}
    create_topic(source, topic, assignment=[[1], [2], [3]], configs=configs)
    for partition in range(3):
        write(source, topic, b"first", partition=partition)
    line = command(topic, f"{topic}.*", source, copy)
    code, _, errors = mirror(line, "--until-caught-up")
    assert code == 0, errors
    create_topic(source, lost, assignment=[[3]], configs=configs)
    write(source, lost, b"first")
    for partition in range(3):
        write(source, topic, b"later", partition=partition)

    target.kill_broker(3)
    wait_until(lambda: leader_of(source, topic, 2) is None, WAIT, "a partition without a leader")
    wait_until(lambda: leader_of(source, lost, 0) is None, WAIT, "a topic without a leader")
    try:
        code, copied, errors = mirror(line, "--until-caught-up")
    finally:
        target.start_broker(3)
    assert code == 3, errors
    assert copied["left_out_partitions"].keys() == {f"{topic}-2", f"{lost}-0"}
    assert all("leader" in reason for reason in copied["left_out_partitions"].values())
    assert [len(rows) for _, rows in sorted(consumed(copy, topic).items())] == [2, 2, 1]

    code, _, errors = mirror(line, "--until-caught-up")
    assert code == 0, errors
    for name in (topic, lost):
        assert consumed(copy, name) == consumed(source, name)


def test_full_disk_of_the_target_only_delays_the_copy(
    kraft43: KraftCluster, java: Java, topic: str, tmp_path: Path
) -> None:
    del java  # is there
    source = kraft43.bootstrap_servers
    create_topic(source, topic, partitions=PARTITIONS, configs={"retention.ms": -1})
    stop = threading.Event()
    failures: list[BaseException] = []
    writer = threading.Thread(target=write_until, args=(stop, source, topic, failures, PARTITIONS))
    with ExitStack() as stack:
        directory = tmp_path / "full"
        disk = stack.enter_context(make_disk(directory / "broker-1" / "disk"))
        full = stack.enter_context(
            KraftCluster(
                directory,
                KAFKA_4_3,
                properties={
                    "log.dirs": "{directory}/disk/data",
                    "log.segment.bytes": 1024 * 1024,
                    "log.index.size.max.bytes": 64 * 1024,
                },
            )
        )
        run = Run(stack, source, full, topic, tmp_path)
        stack.callback(writer.join, WAIT)
        stack.callback(stop.set)
        writer.start()
        worker = run.start("0")
        run.grows()

        def is_refused() -> bool:
            disk.fill()
            return bool(worker.events("mirror.aborted"))

        wait_until(is_refused, WAIT, "a transaction that the full disk ends", 0.5)
        disk.repair()
        full.kill_broker(1)  # it may have ended by itself, without its only log dir
        full.start_broker(1)
        run.grows()
        stop.set()
        writer.join(WAIT)
        assert failures == []
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(WAIT) == 0, worker.log.read_text()
        line = command(topic, topic, source, full.bootstrap_servers)
        code, _, errors = mirror(line, "--until-caught-up")
        assert code == 0, errors
        assert consumed(full.bootstrap_servers, topic) == consumed(source, topic)

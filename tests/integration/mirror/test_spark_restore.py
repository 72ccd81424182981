"""`sidetier restore --engine spark`: executors are killed and tasks run twice; each record arrives
once.
"""

import os
import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from devtools.sandbox.kafka import KraftCluster
from devtools.sandbox.s3server import S3Server
from sidetier.mirror.copy.target import KafkaTarget
from sidetier.segments.errors import KafkaApiError, ProducerFencedError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.wire.cluster import Cluster
from sidetier.wire.requests import CommittedOffset, committed_offsets
from sidetier.wire.settings import ClientSettings
from tests.harness.archive_objects import s3_store
from tests.harness.encryption import count_logs, encryption
from tests.harness.local_segments import small_segments
from tests.harness.mirror_runs import consumed_at
from tests.harness.s3 import S3Bucket
from tests.harness.s3_proxy import Fault, S3Proxy, _Handler
from tests.harness.sidecar import beside, merged
from tests.harness.spark_cli import command_line
from tests.harness.spark_cluster import (
    executor_logs,
    kill_executors,
    speculating,
    speculative_attempts,
)
from tests.harness.topics import create_topic
from tests.harness.waiting import wait_until
from tests.integration.mirror.test_restore import (
    Commands,
    contents,
    write_transactions,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]
SLOWEST = 240.0


@dataclass
class BadDay:
    """Faults of the two tasks of a restore, each in the middle of its partition's segments.

    Once both have committed something, all executors are killed. Afterwards the second partition's
    task waits for its segment until Spark has started another attempt that requests it; that
    attempt waits until the first one has found out that it is fenced.
    """

    keys: tuple[str, str]
    cluster: Mapping[str, str]
    servers: str
    group: str
    copy: str
    killed: threading.Event = field(default_factory=threading.Event)
    asked_again: threading.Event = field(default_factory=threading.Event)
    asked: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def rule(self, method: str, key: str) -> Fault | None:
        if method != "GET" or key not in self.keys or self.asked_again.is_set():
            return None
        if key == self.keys[0]:
            return None if self.killed.is_set() else self._kill
        if not self.killed.is_set():
            return self._wait_for_the_end
        with self.lock:
            self.asked += 1
            return self._first if self.asked == 1 else self._second

    def _kill(self, handler: _Handler) -> None:
        with Cluster(settings_of(self.servers)) as target:
            wait_until(lambda: self._both_have_committed(target), SLOWEST, "a commit of each task")
        kill_executors(self.cluster)
        self.killed.set()
        handler.cut()

    def _both_have_committed(self, target: Cluster) -> bool:
        tps = [TopicPartition(self.copy, number) for number in range(2)]
        result = committed_offsets(target, self.group, tps, require_stable=False)
        return all(tp in result and result[tp].offset > 0 for tp in tps)

    def _wait_for_the_end(self, handler: _Handler) -> None:
        self.killed.wait(SLOWEST)
        handler.cut()

    def _first(self, handler: _Handler) -> None:
        self.asked_again.wait(SLOWEST)
        handler.pass_on()

    def _second(self, handler: _Handler) -> None:
        self.asked_again.set()
        wait_until(
            lambda: "mirror.attempt_stands_by" in executor_logs(self.cluster),
            SLOWEST,
            "the fenced attempt",
        )
        handler.pass_on()


def settings_of(servers: str) -> ClientSettings:
    return ClientSettings.from_properties({"bootstrap.servers": servers})


def middle_segments(bucket: S3Bucket, topic: str) -> tuple[str, str]:
    """Key of a segment in the middle of each of the two partitions."""
    result = []
    for number in range(2):
        prefix = ArchiveLayout("test", 5).partition_prefix(TopicPartition(topic, number))
        listed = bucket.client.list_objects_v2(Bucket=bucket.name, Prefix=prefix)["Contents"]
        keys = sorted(row["Key"] for row in listed if row["Key"].endswith(".log"))
        assert len(keys) > 4, "too few segments for the test"
        result.append(keys[len(keys) // 2])
    return result[0], result[1]


def test_each_record_is_restored_once_whichever_attempt_ends(
    kraft43: KraftCluster, s3_bucket: S3Bucket, s3_server: S3Server, topic: str, tmp_path: Path
) -> None:
    servers = kraft43.bootstrap_servers
    create_topic(servers, topic, partitions=2, configs=small_segments(size=10_000, retention_ms=-1))
    (tmp_path / "key").write_text(s3_server.access_key)
    (tmp_path / "secret").write_text(s3_server.secret_key)
    with S3Proxy(s3_server.port) as proxy, speculating(tmp_path / "spark") as (driver, cluster):
        store = s3_store(s3_bucket, proxy.url)
        file = tmp_path / "sidetier.yaml"
        by_file = {
            "access_key_id": {"file": str(tmp_path / "key")},
            "secret_access_key": {"file": str(tmp_path / "secret")},
        }
        patient = {"base": SLOWEST, "silence": SLOWEST}
        changes = {"storage": {"s3": by_file, "deadline": patient}}
        settings = beside(kraft43, store)
        settings["storage"]["s3"].pop("access_key_id")
        settings["storage"]["s3"].pop("secret_access_key")
        commands = Commands(file, os.environ)
        settings = merged(settings, changes)
        encrypted = {"storage": {"encryption": encryption(tmp_path)}}
        for chosen in (settings, merged(settings, encrypted)):
            write_transactions(servers, topic, 30)
            file.write_text(yaml.safe_dump(chosen))
            commands.run("backfill", "--topic", topic)
        assert min(count_logs(store.objects)) > 1
        source = consumed_at(servers, topic)
        copy = f"copy.{topic}"
        restore = ("--topic", topic, "--open-transactions", "abort")
        whole = (*restore, "--name", topic, "--rename", f"{topic}={copy}")
        # The archive may end within a transaction, which then counts as aborted.
        planned, _ = commands.run(
            "restore", *whole, "--dry-run", "--open-transactions", "leave-out"
        )
        ends = {item["partition"]: item["end"] for item in planned["partitions"]}

        day = BadDay(
            middle_segments(s3_bucket, topic),
            cluster,
            servers,
            f"sidetier-restore-{topic}",
            copy,
        )
        proxy.misbehave(day.rule)
        line = ["restore", "--config", str(file), *whole, "--transaction-bytes", "5KiB"]
        code = driver.call(command_line, line=[*line, "--engine", "spark"])
        assert code == 0, driver.log()
        assert day.killed.is_set()
        assert day.asked_again.is_set()
        wait_until(lambda: speculative_attempts(cluster), 60, "the end of the other attempt")
        expected = {number: contents(source, 0, end)[number] for number, end in ends.items()}
        result = contents(consumed_at(servers, copy))
        assert result == expected, {number: len(seen) for number, seen in result.items()}
        events = "".join(
            log.read_text()
            for log in Path(cluster["spark.eventLog.dir"].removeprefix("file://")).iterdir()
        )
        shown = events + driver.log() + executor_logs(cluster)
        assert s3_server.secret_key not in shown
        assert (tmp_path / "k1").read_text().strip() not in shown

        # A complete partition needs no task; one process continues after the tasks.
        assert driver.call(command_line, line=[*line, "--engine", "spark"]) == 0, driver.log()
        again, _ = commands.run("restore", *whole)
        assert (again["records"], again["transactions"]) == (0, 0)
        assert all(item["verified"]["problems"] == [] for item in again["partitions"])


def test_task_and_process_fence_each_other(kraft43: KraftCluster, topic: str) -> None:
    """They have different transactional IDs and write the same partition."""
    servers = kraft43.bootstrap_servers
    create_topic(servers, topic, partitions=1)
    settings = settings_of(servers)
    progress = {TopicPartition(topic, 0): CommittedOffset(Offset(7))}

    def target(own: str, rival: str) -> KafkaTarget:
        return KafkaTarget(
            Cluster(settings), topic, f"{topic}{own}", rivals=lambda: [topic + rival]
        )

    with (
        closing(target(":0", "-0")) as task,
        closing(target("-0", ":0")) as process,
        closing(target(":0", "-0")) as other_task,
    ):
        task.start()
        for former, later in ((task, process), (process, other_task)):
            former.commit(progress)
            later.start()
            with pytest.raises(KafkaApiError):
                former.commit(progress)
            with pytest.raises(ProducerFencedError):
                former.start()

"""The two Spark tasks of a copy from an archive on S3: both are killed, then one runs twice."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devtools.sandbox.kafka import KraftCluster
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import TopicPartition
from sidetier.wire.cluster import Cluster
from sidetier.wire.requests import committed_offsets
from sidetier.wire.settings import ClientSettings
from tests.harness.archive_objects import s3_store
from tests.harness.s3 import S3Bucket
from tests.harness.s3_proxy import Fault, _Handler
from tests.harness.sidecar import beside, merged
from tests.harness.spark_cluster import executor_logs, kill_executors
from tests.harness.waiting import wait_until

SLOWEST = 240.0


@dataclass
class KilledAndFenced:
    """Faults of the two tasks of a copy, each in the middle of its partition's segments.

    Once both have committed something, their executors are killed. Afterwards the second
    partition's task waits for its segment until Spark has started another attempt that requests
    it; that attempt waits until the first one has found out that it is fenced.
    """

    keys: tuple[str, str]
    cluster: Mapping[str, str]
    servers: str
    group: str
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
        settings = ClientSettings.from_properties({"bootstrap.servers": self.servers})
        with Cluster(settings) as target:
            wait_until(
                lambda: both_have_committed(target, self.group), SLOWEST, "a commit of each task"
            )
        if kill_executors(self.cluster):
            self.killed.set()
        handler.cut()

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


def both_have_committed(target: Cluster, group: str) -> bool:
    """Return whether both tasks have committed an offset behind the first record."""
    progress = committed_offsets(target, group, require_stable=False)
    return len(progress) == 2 and all(committed.offset > 0 for committed in progress.values())


def middle_segments(bucket: S3Bucket, topic: str) -> tuple[str, str]:
    """Return the key of a segment in the middle of each of the two partitions."""
    result = []
    for number in range(2):
        prefix = ArchiveLayout("test", 5).partition_prefix(TopicPartition(topic, number))
        listed = bucket.client.list_objects_v2(Bucket=bucket.name, Prefix=prefix)["Contents"]
        keys = sorted(row["Key"] for row in listed if row["Key"].endswith(".log"))
        assert len(keys) > 4, "too few segments for the test"
        result.append(keys[len(keys) // 2])
    return result[0], result[1]


def patient_settings(
    cluster: KraftCluster, bucket: S3Bucket, endpoint_url: str, directory: Path
) -> dict[str, Any]:
    """Return a sidecar's configuration that executors can use, too: its secrets are in files.

    A request may take as long as a fault delays it.
    """
    (directory / "key").write_text(bucket.server.access_key)
    (directory / "secret").write_text(bucket.server.secret_key)
    settings = beside(cluster, s3_store(bucket, endpoint_url))
    settings["storage"]["s3"] |= {
        "access_key_id": {"file": str(directory / "key")},
        "secret_access_key": {"file": str(directory / "secret")},
    }
    return merged(settings, {"storage": {"deadline": {"base": SLOWEST, "silence": SLOWEST}}})

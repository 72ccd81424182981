"""The servers of a chaos run: three brokers, a sidecar each behind a proxy of its own, a store."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sidetier.sandbox.kafka import KafkaCluster
from sidetier.sandbox.kafka_config import Properties
from sidetier.segments.keys import ArchiveLayout
from tests.end_to_end.chaos.ledger import Partition
from tests.end_to_end.chaos.schedule import BROKERS
from tests.harness.archive_objects import s3_store
from tests.harness.local_segments import closed_end, small_segments
from tests.harness.s3 import S3Bucket
from tests.harness.s3_proxy import S3Proxy
from tests.harness.sidecar import Sidecar, beside, merged
from tests.harness.topics import admin_of, create_topic
from tests.harness.waiting import wait_until

TOPICS: Mapping[str, int] = {"plain": 4, "paid": 3}
"""Topics with their numbers of partitions; `paid` is written in transactions."""

PARTITIONS: tuple[Partition, ...] = tuple(
    (topic, number) for topic, count in TOPICS.items() for number in range(count)
)
SEGMENT_BYTES = 24 * 1024
HEAL_SECONDS = 240.0
CATCH_UP_SECONDS = 150.0
ASK_SECONDS = 0.5
CLUSTER_NAME = "test"
ENTROPY_BITS = 5

CLUSTER_PROPERTIES: Properties = {
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "min.insync.replicas": 2,
    "unclean.leader.election.enable": "false",
    "auto.leader.rebalance.enable": "false",  # elections are the schedule's
    "replica.lag.time.max.ms": 6000,
}

SIDECAR_SETTINGS: Mapping[str, Any] = {
    "storage": {
        "prefix_entropy_bits": ENTROPY_BITS,
        "retry": {"attempts": 3, "first_delay": "50ms", "max_delay": "500ms", "max_elapsed": "5s"},
        "deadline": {"base": "3s", "connect": "1s", "silence": "3s"},
    },
    "uploader": {"local_delete_delay": "1s", "niceness": 0},
}
"""Requests are given up sooner than the store's late ones arrive. On two cores that run all this, a
sidecar that stands back for everybody would only show how long it can be kept waiting.
"""


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that runs; each sidecar and each proxy under its broker's id."""

    cluster: KafkaCluster
    bucket: S3Bucket
    sidecars: Mapping[int, Sidecar]
    proxies: Mapping[int, S3Proxy]
    layout: ArchiveLayout
    admin: AdminClient

    def is_healed(self) -> bool:
        """All replicas of all partitions are in sync, and all have leaders."""
        try:
            metadata = self.admin.list_topics(timeout=5)
        except KafkaException:
            return False
        partitions = [p for topic in metadata.topics.values() for p in topic.partitions.values()]
        return set(metadata.brokers) == set(BROKERS) and all(
            p.leader >= 0 and set(p.isrs) == set(p.replicas) for p in partitions
        )

    def wait_until_healed(self) -> None:
        """Until `is_healed`; AssertionError when that takes too long."""
        wait_until(self.is_healed, HEAL_SECONDS, "all replicas to be in sync", ASK_SECONDS)

    def closed_end(self, tp: Partition) -> int | None:
        """The end of the last closed segment on the leader's disk; None while nobody leads."""
        topic = self.admin.list_topics(tp[0], timeout=60).topics[tp[0]]
        leader = topic.partitions[tp[1]].leader
        if leader not in BROKERS:
            return None
        return closed_end(self.cluster.log_dirs(leader)[0] / f"{tp[0]}-{tp[1]}")

    def sidecar_events(self, broker: int) -> Iterator[dict[str, Any]]:
        """All that a sidecar has logged, over all its lives."""
        with self.sidecars[broker].process.command.log.open(errors="replace") as log:
            for line in log:
                if line.startswith("{") and line.endswith("}\n"):
                    yield json.loads(line)


@contextmanager
def set_up(
    cluster: KafkaCluster, bucket: S3Bucket, directory: Path, retention: float
) -> Iterator[Scene]:
    """Topics whose closed segments are deleted after `retention` seconds, and ready sidecars."""
    configs = small_segments(
        cluster.version,
        SEGMENT_BYTES,
        retention_ms=int(retention * 1000),
        file_delete_delay_ms=1000,
        min_insync_replicas=2,
        unclean_leader_election_enable="false",
    )
    for topic, count in TOPICS.items():
        create_topic(
            cluster.bootstrap_servers, topic, partitions=count, replicas=3, configs=configs
        )
    with ExitStack() as stack:
        proxies = {b: stack.enter_context(S3Proxy(bucket.server.port)) for b in BROKERS}
        sidecars = {b: _sidecar(cluster, bucket, proxies[b], directory, b) for b in BROKERS}
        for sidecar in sidecars.values():
            stack.enter_context(sidecar)
        for sidecar in sidecars.values():
            sidecar.wait_until_ready()
        layout, admin = (
            ArchiveLayout(CLUSTER_NAME, ENTROPY_BITS),
            admin_of(cluster.bootstrap_servers),
        )
        yield Scene(cluster, bucket, sidecars, proxies, layout, admin)


def _sidecar(
    cluster: KafkaCluster, bucket: S3Bucket, proxy: S3Proxy, directory: Path, broker: int
) -> Sidecar:
    store = s3_store(bucket, proxy.url)
    settings = beside(cluster, store, broker_id=broker, topics=list(TOPICS))
    return Sidecar(directory / f"sidecar-{broker}", merged(settings, SIDECAR_SETTINGS), store)

"""Leadership sources beside the brokers of a real cluster, and the cluster's own answers."""

import json
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from devtools.sandbox.kafka import KafkaCluster, KraftCluster, ZookeeperCluster
from sidetier.leadership.factory import open_leadership
from sidetier.leadership.kraft.metadata_log import METADATA_DIRECTORY, MetadataFiles
from sidetier.leadership.port import LeadershipSource
from sidetier.leadership.settings import (
    KraftSettings,
    LeadershipSettings,
    ZookeeperSettings,
)
from sidetier.segments.offsets import BrokerId, LeaderEpoch, TopicPartition
from tests.harness.fake_leadership import ViewRecorder
from tests.harness.topics import TIMEOUT_SECONDS, admin_of
from tests.harness.waiting import wait_for, wait_until

SESSION_TIMEOUT = 15.0
"""In seconds; within ZooKeeper's limits, and longer than a busy machine stalls."""


@dataclass(frozen=True, slots=True)
class Follower:
    """A source beside one broker, and the views that it has shown."""

    name: str
    broker_id: int
    source: LeadershipSource
    views: ViewRecorder

    def leads(self) -> set[TopicPartition]:
        return set(self.views.last.leads)

    def epoch(self, partition: TopicPartition) -> LeaderEpoch | None:
        return self.views.last.leads.get(partition)

    def wait_for_epoch(
        self, partition: TopicPartition, wanted: Callable[[LeaderEpoch], bool]
    ) -> LeaderEpoch:
        def probe() -> LeaderEpoch | None:
            epoch = self.epoch(partition)
            return epoch if epoch is not None and wanted(epoch) else None

        return wait_for(probe, TIMEOUT_SECONDS, f"{self.name} to lead {partition}")


class Followers:
    """Opens sources, and stops all of them at the end."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def open(self, name: str, settings: LeadershipSettings) -> Follower:
        broker_id = getattr(settings, "broker_id", 0)
        follower = Follower(name, broker_id, open_leadership(settings), ViewRecorder())
        self._stack.callback(follower.source.stop)
        follower.source.start(follower.views)
        return follower

    def beside(self, cluster: KafkaCluster) -> list[Follower]:
        """Open one source beside each broker, of each kind that the cluster allows."""
        return [
            self.open(f"broker {broker_id} by {kind}", settings)
            for broker_id in cluster.broker_ids
            for kind, settings in settings_of(cluster, broker_id).items()
        ]


@dataclass(frozen=True, slots=True)
class Onlooker:
    """A long-lived follower, and the files of the metadata log when it started."""

    follower: Follower
    begun: MetadataFiles


def metadata_directory(cluster: KraftCluster, broker_id: int) -> Path:
    """Return the directory of a broker's copy of the metadata log."""
    return cluster.metadata_log_dir(broker_id) / METADATA_DIRECTORY


def settings_of(cluster: KafkaCluster, broker_id: int) -> dict[str, LeadershipSettings]:
    """Return the settings of each way to follow a broker, the usual one first."""
    us = BrokerId(broker_id)
    if isinstance(cluster, ZookeeperCluster):
        connect = cluster.zookeeper_connect
        return {"zookeeper": ZookeeperSettings(us, connect, session_timeout=SESSION_TIMEOUT)}
    assert isinstance(cluster, KraftCluster)
    log_dir, bootstrap = cluster.metadata_log_dir(broker_id), cluster.bootstrap_of(broker_id)
    return {
        "both": KraftSettings(us, log_dir, bootstrap, cluster.cluster_id, poll_interval=2.0),
        "log": KraftSettings(us, log_dir),
        "broker": KraftSettings(us, None, bootstrap, cluster.cluster_id, poll_interval=0.5),
    }


def led_by(bootstrap: str, broker_id: int) -> set[TopicPartition]:
    """Return the partitions that a broker leads according to the admin API."""
    topics = admin_of(bootstrap).list_topics(timeout=TIMEOUT_SECONDS).topics
    return {
        TopicPartition(name, number)
        for name, topic in topics.items()
        for number, partition in topic.partitions.items()
        if partition.leader == broker_id
    }


def wait_for_agreement(
    followers: Iterable[Follower], bootstrap: str, timeout: float = TIMEOUT_SECONDS
) -> None:
    """Wait until every source shows the leaders of the admin API."""
    for follower in followers:
        wait_until(
            lambda follower=follower: (  # type: ignore[misc]
                follower.views.last.known
                and follower.leads() == led_by(bootstrap, follower.broker_id)
            ),
            timeout,
            f"{follower.name} to agree with the admin API",
        )
        assert follower.source.failure() is None


def epoch_on_disk(cluster: KafkaCluster, broker_id: int, partition: TopicPartition) -> int:
    """Return the last epoch in the replica's `leader-epoch-checkpoint`; -1 for none."""
    for log_dir in cluster.log_dirs(broker_id):
        checkpoint = log_dir / str(partition) / "leader-epoch-checkpoint"
        if checkpoint.exists():
            lines = checkpoint.read_text().splitlines()[2:]
            return int(lines[-1].split()[0]) if lines else -1
    return -1


def quorum_leader(log_dir: Path) -> int | None:
    """Return the active controller according to a KRaft node's `quorum-state`."""
    with suppress(OSError, ValueError):
        leader = json.loads((log_dir / METADATA_DIRECTORY / "quorum-state").read_text())
        return int(leader["leaderId"])
    return None

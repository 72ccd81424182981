"""Servers of a chaos run: three brokers with two log dirs each, one sidecar per broker behind its
own proxy, and a store.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from devtools.sandbox.kafka import KafkaCluster
from sidetier.brokers.errors import ServerDiedError
from sidetier.brokers.kafka import Properties
from sidetier.segments.keys import ArchiveLayout
from tests.end_to_end.chaos.ledger import Partition
from tests.end_to_end.chaos.schedule import BROKERS, FEW_PARTITIONS, NOT_EARLY, Early
from tests.end_to_end.chaos.store import ChaosStore
from tests.end_to_end.chaos.troubles import DENIED
from tests.harness.archive_objects import ArchiveStore
from tests.harness.disks import Disk, make_disk
from tests.harness.local_segments import closed_end, small_segments
from tests.harness.s3_proxy import S3Proxy
from tests.harness.sidecar import Sidecar, beside, merged
from tests.harness.topics import admin_of, create_topic
from tests.harness.waiting import wait_until

TOPICS: Mapping[str, int] = {"plain": 4, "paid": 3}
"""Topics with their numbers of partitions; `paid` is written in transactions."""

UNCLEAN, RECREATED, SHORTENED, SPOOLED = "unclean", "recreated", "shortened", "spooled"
TRIMMED = "trimmed"
SPECIAL_TOPICS: Sequence[str] = (UNCLEAN, RECREATED, SHORTENED, SPOOLED, TRIMMED)
"""Topics for actions that would break the guarantees of the other topics: unclean elections discard
records, topics are recreated, records are deleted, all sidecars are killed, and local retention
deletes archived records.
"""

PARTITIONS: tuple[Partition, ...] = tuple(
    (topic, number) for topic, count in TOPICS.items() for number in range(count)
)
SPECIAL_PARTITIONS: tuple[Partition, ...] = tuple(
    (topic, number) for topic in SPECIAL_TOPICS for number in range(FEW_PARTITIONS)
)
TRIMMED_PARTITIONS = tuple(tp for tp in SPECIAL_PARTITIONS if tp[0] == TRIMMED)
ALL_PARTITIONS = PARTITIONS + SPECIAL_PARTITIONS

CONTROLLERS = 3
DISK = "disk"
"""The directory of each broker that is a separate disk, with the second log dir on it."""
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
    "auto.leader.rebalance.enable": "false",  # the schedule runs elections
    "replica.lag.time.max.ms": 6000,
}
TWO_LOG_DIRS: Properties = {"log.dirs": f"{{directory}}/data-1,{{directory}}/{DISK}/data-2"}

SIDECAR_SETTINGS: Mapping[str, Any] = {
    "storage": {
        "prefix_entropy_bits": ENTROPY_BITS,
        "retry": {"attempts": 3, "first_delay": "50ms", "max_delay": "500ms", "max_elapsed": "5s"},
        "deadline": {"base": "3s", "connect": "1s", "silence": "3s"},
    },
    "uploader": {
        "local_delete_delay": "1s",
        "niceness": 0,
        "on_recreated": "retire",
        "rescue": {"patience": "8s"},
    },
    "retention": {"local": {"topics": [TRIMMED], "age": "4s", "interval": "2s"}},
}
"""Requests time out before the late requests of the store arrive. On two cores that run everything,
a sidecar with a high niceness would only show how long it can be delayed. A leader waits for longer
before it records a gap than the store faults of any one sidecar last.
"""


@dataclass(frozen=True, slots=True)
class Scene:
    """All processes; each sidecar, proxy and disk by its broker's ID. `configs` are the configs of
    the topics, and `early` says which of them are archived early.
    """

    cluster: KafkaCluster
    store: ChaosStore
    sidecars: Mapping[int, Sidecar]
    proxies: Mapping[int, S3Proxy]
    layout: ArchiveLayout
    admin: AdminClient
    disks: Mapping[int, Disk]
    configs: Mapping[str, object]
    early: Early = NOT_EARLY

    def is_healed(self) -> bool:
        """Return whether all partitions have a leader and all replicas in sync."""
        try:
            metadata = self.admin.list_topics(timeout=5)
        except KafkaException:
            return False
        partitions = [p for topic in metadata.topics.values() for p in topic.partitions.values()]
        return set(metadata.brokers) == set(BROKERS) and all(
            p.leader >= 0 and set(p.isrs) == set(p.replicas) for p in partitions
        )

    def wait_until_healed(self) -> None:
        """Wait until `is_healed`; AssertionError on a timeout."""
        wait_until(self.is_healed, HEAL_SECONDS, "all replicas to be in sync", ASK_SECONDS)

    def closed_end(self, tp: Partition) -> int | None:
        """The end of the last closed segment on the leader's disk; None without a leader."""
        leader = self.leader_of(tp)
        directory = None if leader is None else self.directory_of(leader, tp)
        return None if directory is None else closed_end(directory)

    def leader_of(self, tp: Partition) -> int | None:
        """The leader of a partition; None without one."""
        found = self.admin.list_topics(tp[0], timeout=60).topics[tp[0]].partitions.get(tp[1])
        return None if found is None or found.leader not in BROKERS else found.leader

    def in_sync(self, tp: Partition) -> set[int]:
        """The brokers in sync with a partition's leader."""
        return set(self.admin.list_topics(tp[0], timeout=60).topics[tp[0]].partitions[tp[1]].isrs)

    def directory_of(self, broker: int, tp: Partition) -> Path | None:
        """Directory of a broker's replica of a partition; None without an accessible one."""
        paths = (path / f"{tp[0]}-{tp[1]}" for path in self.cluster.log_dirs(broker))
        return next((path for path in paths if path.is_dir()), None)

    def start_sidecar(self, broker: int, tell: Callable[[str], None]) -> None:
        """Start a sidecar as a supervisor does. A denied access at the start looks like a
        configuration error: the sidecar refuses to start, and is started again.
        """
        while True:
            try:
                self.sidecars[broker].start()
            except ServerDiedError as error:
                if DENIED not in str(error).splitlines()[-1]:
                    raise
                tell("a sidecar refuses to start while the store denies access")
                threading.Event().wait(1.0)
            else:
                return

    def create_topic(self, topic: str) -> None:
        """Create one of the special topics with its original settings."""
        create_special(self.cluster.bootstrap_servers, topic, self.configs)

    def sidecar_events(self, broker: int) -> Iterator[dict[str, Any]]:
        """All log events of a sidecar, over all its restarts."""
        with self.sidecars[broker].process.command.log.open(errors="replace") as log:
            for line in log:
                if line.startswith("{") and line.endswith("}\n"):
                    yield json.loads(line)


def create_special(bootstrap: str, topic: str, configs: Mapping[str, object]) -> None:
    """Create the special topics. An unclean election needs a leader that acknowledges alone, and
    one follower. Only local retention deletes records of the trimmed topic.
    """
    if topic != UNCLEAN:
        kept = {**configs, "retention.ms": -1} if topic == TRIMMED else configs
        create_topic(bootstrap, topic, partitions=FEW_PARTITIONS, replicas=3, configs=kept)
        return
    pairs = [BROKERS[number : number + 2] for number in range(FEW_PARTITIONS)]
    alone = {**configs, "min.insync.replicas": 1}
    create_topic(bootstrap, topic, assignment=pairs, configs=alone)


@contextmanager
def make_disks(cluster: Path) -> Iterator[Mapping[int, Disk]]:
    """Make a disk for each broker of a cluster below this directory, before the cluster starts."""
    with ExitStack() as stack:
        yield {
            broker: stack.enter_context(make_disk(cluster / f"broker-{broker}" / DISK))
            for broker in BROKERS
        }


@contextmanager
def set_up(  # noqa: PLR0913 -- half of them have a default
    cluster: KafkaCluster,
    store: ChaosStore,
    directory: Path,
    retention: float,
    *,
    disks: Mapping[int, Disk] = MappingProxyType({}),
    early: Early = NOT_EARLY,
    tail_interval: float | None = None,
) -> Iterator[Scene]:
    """Create topics whose closed segments are deleted after `retention` seconds, and ready
    sidecars. With `disks`, also create the special topics and a spool on each disk. With
    `tail_interval` in seconds, all topics have a tail.
    """
    uploader: dict[str, object] = {"early": early.settings}
    if tail_interval is not None:
        uploader["tail"] = {"interval": f"{tail_interval:g}s"}
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
    for topic in SPECIAL_TOPICS if disks else ():
        create_special(cluster.bootstrap_servers, topic, configs)
    with ExitStack() as stack:
        proxies = {b: stack.enter_context(S3Proxy(store.port)) for b in BROKERS}
        sidecars = {
            b: _sidecar(
                cluster, store.behind(proxies[b].url), directory, b, uploader, spooled=bool(disks)
            )
            for b in BROKERS
        }
        for sidecar in sidecars.values():
            stack.enter_context(sidecar)
        for sidecar in sidecars.values():
            sidecar.wait_until_ready()
        layout, admin = (
            ArchiveLayout(CLUSTER_NAME, ENTROPY_BITS),
            admin_of(cluster.bootstrap_servers),
        )
        yield Scene(cluster, store, sidecars, proxies, layout, admin, disks, configs, early)


def _sidecar(
    cluster: KafkaCluster,
    store: ArchiveStore,
    directory: Path,
    broker: int,
    uploader: Mapping[str, object],
    *,
    spooled: bool,
) -> Sidecar:
    topics = [*TOPICS, *SPECIAL_TOPICS]
    settings = beside(cluster, store, broker_id=broker, topics=topics)
    spools = [spool_of(path) for path in cluster.log_dirs(broker)] if spooled else []
    for spool in spools:
        spool.mkdir()
    pins = {"spool": [str(path) for path in spools]}
    settings = merged(settings, {"uploader": {**uploader, "pins": pins}})
    return Sidecar(directory / f"sidecar-{broker}", merged(settings, SIDECAR_SETTINGS), store)


def spool_of(log_dir: Path) -> Path:
    """The spool of a log dir, beside it on the same disk."""
    return log_dir.with_name(f"{log_dir.name}-spool")

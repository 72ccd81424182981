"""A sidecar's real engine; the simulation moves its jobs, clock, leadership and brokers."""

from collections.abc import Callable, Iterable, Mapping
from unittest.mock import patch

from prometheus_client import CollectorRegistry

from sidetier.leadership.port import HighWatermark, LeadershipView, TopicConfig
from sidetier.segments.offsets import BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.storage.fake import FakeStorage
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.engine import Engine
from sidetier.uploader.running.clock import Clock
from sidetier.uploader.running.workers import Outcome
from sidetier.uploader.surroundings import Surroundings
from sidetier.uploader.watching.log_dirs import LogDirs
from tests.harness.daemons import LAYOUT, LeadershipByHand, place_of, uploader_config
from tests.harness.simulation.network import Fate, Request, SteppedPool, Task
from tests.harness.simulation.replicas import TP, WALL_START, Replicated
from tests.harness.simulation.stepped_store import SteppedStore

_PROMPT_RESCUE = {"enabled": True, "patience": 3.0}


class _Brokers:
    """Tells the high watermark of the partition's leader, as ListOffsets does, and how the topic is
    configured.
    """

    def __init__(self, cluster: Replicated) -> None:
        self._cluster = cluster

    def high_watermarks(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, HighWatermark]:
        cluster = self._cluster
        answer = HighWatermark(Offset(cluster.high_watermark), LeaderEpoch(cluster.epoch))
        return dict.fromkeys(partitions, answer)

    def topic_configs(self, topics: Iterable[str]) -> Mapping[str, TopicConfig | None]:
        return dict.fromkeys(topics, self._cluster.config)

    def close(self) -> None:
        """No connection."""


class Sidecar:
    """One life of the process beside a broker; a kill ends it."""

    def __init__(
        self, cluster: Replicated, broker: int, store: FakeStorage, now: Callable[[], float]
    ) -> None:
        self.broker = broker
        self._cluster = cluster
        self._pools: list[SteppedPool] = []
        replica = cluster.replicas[broker]
        self.store = SteppedStore(store)
        place = place_of(self.store)
        with patch("sidetier.uploader.parts.WorkerPool", self._pool):
            self.engine = Engine(
                uploader_config(rescue=_PROMPT_RESCUE),
                Surroundings(
                    log_dirs=LogDirs([str(replica.log_dir)], lambda _: True),
                    leadership=LeadershipByHand(),
                    places=lambda _: place,
                    high_watermarks=_Brokers(cluster),
                    topic_configs=_Brokers(cluster),
                    broker_id=BrokerId(broker),
                    cluster=LAYOUT.cluster,
                    metrics=Metrics(CollectorRegistry()),
                    clock=Clock(now, lambda: WALL_START + now()),
                ),
            )
        # Its watcher's board and its partitions: the simulation is the file system's events, and
        # the kernel that closes what a dead process had open.
        self._board = self.engine._board
        self._leads = self.engine._leads
        self.engine.begin_to_follow()
        self.hear_of_leadership()

    def _pool(self, _: str, size: int, deliver: Callable[[Outcome], None]) -> SteppedPool:
        pool = SteppedPool(size, deliver)
        self._pools.append(pool)
        return pool

    def hear_of_leadership(self) -> None:
        """The present view arrives; until the next one it is what this sidecar believes."""
        cluster = self._cluster
        leads = {TP: LeaderEpoch(cluster.epoch)} if cluster.leader == self.broker else {}
        ids = {TP.topic: cluster.topic_id}
        self.engine.deliver(LeadershipView(leads=leads, topic_ids=ids, known=True))

    def step(self, *, events: bool = True) -> None:
        """File events arrive, if none is lost, and the engine acts on all that it knows."""
        if events:
            self._board.touch(str(self._cluster.replicas[self.broker].log.path))
        self.engine.wake()
        self.engine.step()
        self._cluster.noticed(self.broker)

    def waiting(self) -> list[tuple[SteppedPool, Task]]:
        """The jobs that stand before a request, in the order in which they began."""
        return [(pool, task) for pool in self._pools for task in pool.tasks]

    def work(self, steps: int, *, events: bool = True) -> None:
        """Undisturbed: every request arrives."""
        for _ in range(steps):
            self.step(events=events)
            for pool, task in self.waiting():
                if not task.ended and task.request is not None:
                    pool.go_on(task, Fate.ARRIVES)

    def __str__(self) -> str:
        """What it would say if asked why nothing goes on."""
        return "; ".join(
            f"broker {self.broker}, archive {p.archive}, {p.gap}, asks {p.requesting}, "
            f"{p.hold.error}, {p.halted or p.refused}, "
            f"{[(t.segment, t.stage.name, t.hold.error) for t in p.tracked.values()]}"
            for p in self._leads.with_parked()
        )

    def kill(self) -> list[Request]:
        """What is on the wire may still take effect."""
        left = [request for pool in self._pools for request in pool.kill()]
        self.engine.abandon()
        for partition in self._leads.with_parked():
            for tracked in partition.tracked.values():
                tracked.close()
        return left

"""A sidecar's real engine. The simulation drives its jobs, clock, leadership and brokers."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from prometheus_client import CollectorRegistry

from sidetier.config.retention import LocalRetentionConfig
from sidetier.leadership.port import (
    HighWatermark,
    LeadershipView,
    ReadGroups,
    RecordDeletion,
    TopicConfig,
)
from sidetier.segments.cluster_state import GroupMember
from sidetier.segments.errors import (
    BrokerUnavailableError,
    LeadershipError,
    LeadershipUnavailableError,
    SidetierError,
)
from sidetier.segments.offsets import BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import RemoteStorage
from sidetier.storage.retrying import RetryingStorage
from sidetier.storage.settings import RetryPolicy
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.clock import Clock
from sidetier.uploader.context import DaemonContext
from sidetier.uploader.engine import Engine, Incoming
from sidetier.uploader.watching.log_dirs import LogDirs
from sidetier.uploader.workers import WorkerPool
from sidetier.wire.log_offsets import AnsweredOffset, OffsetKind
from tests.harness.daemons import LAYOUT, LeadershipByHand, place_of, uploader_config
from tests.harness.simulation.disk import FaultyDisk, Machine
from tests.harness.simulation.network import Fate, Request, Run, SteppedPool, ask
from tests.harness.simulation.replicas import WALL_START, Replicated, open_transaction
from tests.harness.simulation.stepped_store import SteppedStore
from tests.harness.simulation.world import FLOOR, World

_PROMPT_RESCUE = {"enabled": True, "patience": 1.5}
_BY_BYTES = {"bytes": 100, "age": "9999d"}
"""A part of an active segment has one or two batches."""
_METRICS = Metrics(CollectorRegistry())
"""Shared by all lives: nothing reads them here, and creating them takes longer than a step."""

Answers = Mapping[TopicPartition, HighWatermark]


class _Brokers:
    """Returns high watermarks, as ListOffsets does, and topic configurations.

    The simulation decides when an answer arrives. `isolated` holds the answers of brokers at the
    time when they were cut off from the others.
    """

    def __init__(self, partitions: Sequence[Replicated], broker: int) -> None:
        self._partitions = partitions
        self._broker = broker
        self.isolated: Answers | None = None

    def now(self) -> Answers:
        return {
            p.tp: HighWatermark(Offset(p.high_watermark), LeaderEpoch(p.epoch))
            for p in self._partitions
        }

    def high_watermarks(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, HighWatermark]:
        answers = self.now() if self.isolated is None else self.isolated
        answer = {tp: answers[tp] for tp in partitions}
        ask(Request("offsets", "", lambda: None, LeadershipUnavailableError))
        return answer

    def offsets(
        self, kind: OffsetKind, partitions: Sequence[tuple[TopicPartition, LeaderEpoch]]
    ) -> Sequence[AnsweredOffset | SidetierError]:
        def arrive() -> object:
            if self.isolated is not None:
                raise BrokerUnavailableError("isolated")
            by_name = {partition.tp: partition for partition in self._partitions}
            return [self._answer(kind, by_name[tp], epoch) for tp, epoch in partitions]

        answers = ask(Request("offsets", "", arrive, BrokerUnavailableError))
        return cast("Sequence[AnsweredOffset | SidetierError]", answers)

    def _answer(
        self, kind: OffsetKind, partition: Replicated, epoch: LeaderEpoch
    ) -> AnsweredOffset | SidetierError:
        if (partition.leader, partition.epoch) != (self._broker, epoch):
            return LeadershipError("FENCED_LEADER_EPOCH")
        end = partition.high_watermark
        if kind is OffsetKind.LAST_STABLE:
            open_from = open_transaction(partition.replicas[self._broker].batches, end)
            end = end if open_from is None else open_from
        return AnsweredOffset(Offset(end), epoch)

    def topic_configs(self, topics: Iterable[str]) -> Mapping[str, TopicConfig | None]:
        return dict.fromkeys(topics, self._partitions[0].config)

    def delete_records(
        self, deletions: Mapping[TopicPartition, RecordDeletion]
    ) -> Mapping[TopicPartition, Offset | SidetierError]:
        def arrive() -> object:
            if self.isolated is not None:
                raise BrokerUnavailableError("isolated")
            by_name = {partition.tp: partition for partition in self._partitions}
            return {tp: self._trim(by_name[tp], wanted) for tp, wanted in deletions.items()}

        answers = ask(Request("delete-records", "", arrive, BrokerUnavailableError))
        return cast("Mapping[TopicPartition, Offset | SidetierError]", answers)

    def _trim(self, partition: Replicated, wanted: RecordDeletion) -> Offset | SidetierError:
        if (partition.leader, partition.epoch) != (self._broker, wanted.leader_epoch):
            return LeadershipError("FENCED_LEADER_EPOCH")
        if wanted.end > partition.high_watermark:
            return LeadershipError("OFFSET_OUT_OF_RANGE")
        partition.trim(wanted.end)
        return wanted.end

    def committed_offsets(
        self, names: Collection[str], wanted: Callable[[str], bool] | None
    ) -> ReadGroups:
        return ReadGroups({name: {} for name in names if wanted is None or wanted(name)})

    def members(self, groups: Collection[str]) -> Mapping[str, tuple[GroupMember, ...]]:
        return dict.fromkeys(groups, ())

    def close(self) -> None:
        """Do nothing: there is no connection."""


class Sidecar:
    """One life of the process beside a broker; a kill ends it."""

    def __init__(  # noqa: PLR0913, PLR0917 - a process has this many inputs
        self,
        partitions: Sequence[Replicated],
        broker: int,
        store: FakeStorage,
        now: Callable[[], float],
        world: World,
        disk: FaultyDisk,
        machine: Machine,
        opened: Callable[[RemoteStorage], RemoteStorage] = lambda store: store,
    ) -> None:
        self.broker = broker
        self.machine = machine
        self._disk = disk
        self._partitions = partitions
        self._pools: list[SteppedPool] = []
        beside = partitions[0].brokers[broker]
        self.store = SteppedStore(store)
        self.brokers = _Brokers(partitions, broker)
        policy = RetryPolicy(attempts=world.attempts, first_delay=0.0, max_delay=0.0)
        place = place_of(RetryingStorage(opened(self.store), policy, clock=now))
        pins = {
            "min_free_disk": FLOOR,
            "max_files": world.max_files,
            "max_deleted_bytes": world.max_deleted_bytes,
            "spool": [beside.spool] if world.spool else [],
        }
        self.engine = Engine(
            uploader_config(
                rescue=_PROMPT_RESCUE,
                pins=pins,
                offset_reset=world.offset_reset,
                on_gap=world.on_gap,
                early={**_BY_BYTES, "topics": ["t"] if world.early else []},
            ),
            DaemonContext(
                log_dirs=LogDirs(map(str, beside.log_dirs), lambda _: True),
                leadership=LeadershipByHand(),
                places=lambda _: place,
                high_watermarks=self.brokers,
                topic_configs=self.brokers,
                local_retention=LocalRetentionConfig.model_validate(
                    {"topics": ["t"] if world.local_retention else [], "bytes": 0, "interval": 1}
                ),
                record_deleter=self.brokers,
                log_offsets=self.brokers,
                broker_id=BrokerId(broker),
                cluster=LAYOUT.cluster,
                metrics=_METRICS,
                clock=Clock(now, lambda: WALL_START + now() + beside.skew),
            ),
            self._pool,
        )
        retention = self.engine._local_retention
        if retention is not None:  # the simulated network knows the requests of the pool's thread
            retention.trimmer = replace(retention.trimmer, threads=1)
        # The simulation reaches into the engine: it stands for the file system's events, for the
        # passing of time, and for the kernel, which closes the files of a dead process.
        self._measures_always = world.early
        self._board = self.engine._board
        self._leads = self.engine._leads
        self.engine._open_spool()
        self.engine.begin_to_follow()
        self.hear_of_leadership()

    def _pool(self, name: str, size: int, deliver: Callable[[Incoming], None]) -> WorkerPool[Any]:
        pool = SteppedPool(name, size, deliver)
        self._pools.append(pool)
        return cast("WorkerPool[Any]", pool)

    def hear_of_leadership(self) -> None:
        """Deliver the present leadership view. The sidecar believes it until the next one."""
        led = (p for p in self._partitions if p.leader == self.broker)
        leads = {partition.tp: LeaderEpoch(partition.epoch) for partition in led}
        ids = {partition.tp.topic: partition.topic_id for partition in self._partitions}
        self.engine.deliver(LeadershipView(leads=leads, topic_ids=ids, known=True))

    def step(self, *, events: bool = True) -> None:
        """Deliver file events, unless they are lost, and let the engine act on its state."""
        if events:
            for partition in self._partitions:
                self._board.touch(str(partition.replicas[self.broker].log.path))
        self.engine.wake()
        if self._measures_always:
            self.engine._next_report = self.engine._next_tails = float("-inf")
        with self._disk.running(self.machine):
            self.engine.step()
        if self.machine.fault is None:
            for partition in self._partitions:
                partition.noticed(self.broker)

    def waiting(self) -> list[tuple[SteppedPool, Run]]:
        """Return the jobs that wait in a request, in the order in which they began."""
        return [(pool, task) for pool in self._pools for task in pool.tasks]

    def go_on(self, pool: SteppedPool, task: Run, fate: Fate) -> None:
        """Apply a fate to the request, and continue the sidecar's process."""
        with self._disk.running(self.machine):
            pool.go_on(task, fate)

    def work(self, steps: int, *, events: bool = True) -> None:
        """Run without faults: every request arrives.

        It ends early where the engine would sleep: the clock does not move, so another step would
        change nothing.
        """
        for _ in range(steps):
            was_busy = self._is_busy()
            self.step(events=events)
            if not (was_busy or self._is_busy()) and self._would_sleep():
                return
            for pool, task in self.waiting():
                if not task.ended and task.request is not None:
                    self.go_on(pool, task, Fate.ARRIVES)

    def _is_busy(self) -> bool:
        """Return whether a job is running, or its outcome is not handled yet."""
        return any(pool.busy for pool in self._pools)

    def _would_sleep(self) -> bool:
        """Return whether nothing is due. A disk fault ends after some calls: each step counts."""
        return self.machine.fault is None and self.engine.wait_seconds() > 0

    def halted(self, tp: TopicPartition) -> str | None:
        """Return why a partition is halted until an operator acts; None if it is not."""
        partition = self._leads.get(tp)
        return None if partition is None else partition.halted

    def error(self, tp: TopicPartition) -> str | None:
        """Return why the last request of a partition failed; None if it succeeded."""
        partition = self._leads.get(tp)
        return None if partition is None else partition.hold.error

    def __str__(self) -> str:
        """Describe the state of each partition, to show why nothing progresses."""
        return "; ".join(
            f"broker {self.broker}, {p.topic_partition}, archive {p.archive}, {p.gap.gap}, "
            f"asks {p.requesting}, {p.hold.error}, {p.halted or p.refused}, "
            f"{[(t.segment, t.stage.name, t.hold.error) for t in p.log.tracked.values()]}"
            for p in self._leads.with_parked()
        )

    def kill(self) -> list[Request]:
        """Kill the process, and return its requests in flight, which may still take effect."""
        in_flight = [request for pool in self._pools for request in pool.kill()]
        self.engine.abandon()
        for partition in self._leads.with_parked():
            for tracked in partition.log.tracked.values():
                tracked.close()
            if partition.log.early is not None:
                partition.log.early.close()
        return in_flight

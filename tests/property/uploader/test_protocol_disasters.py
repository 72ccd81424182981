"""The protocol when the cluster itself breaks its guarantees.

Elections lose acknowledged records, topics are deleted and created again, and some topics must not
be archived.

Records that the cluster has discarded end in quarantine, and the archive continues with the
leader's records. A new topic of the same name waits until the previous archive has been retired.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from sidetier.archive.objects.watermark import read_watermark
from sidetier.leadership.port import TopicConfig
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.encrypting import EncryptingStorage
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import RemoteStorage
from sidetier.uploader.archive.quarantine.mover import MoveContext
from sidetier.uploader.archive.quarantine.retirement import retire
from tests.harness.daemons import LAYOUT, stored_logs, watermark_of
from tests.harness.encryption import RING, DecryptedView
from tests.harness.simulation.laws import batches_of
from tests.harness.simulation.replicas import Replicated
from tests.harness.simulation.world import WORLDS
from tests.property.uploader.test_protocol import (
    BROKERS,
    PARTITIONS,
    SECONDS,
    Protocol,
    Watched,
    examples,
)

pytestmark = pytest.mark.timeout(SECONDS)
_ROUNDS = 5
BROKER_IDS = (1, 2, 3)


class Disasters(Protocol):
    """Unclean elections, and a topic that is recreated."""

    worlds: ClassVar = WORLDS.map(lambda world: replace(world, offset_reset="earliest"))
    created_again = False
    archived_before: frozenset[TopicPartition] = frozenset()

    @rule(
        broker=BROKERS,
        records=st.integers(1, 3),
        segments=st.integers(1, 3),
        stored=st.sampled_from([12, 4, 0]),
        deaf=st.sets(BROKERS),
        at=PARTITIONS,
    )
    def an_unclean_election(
        self, broker: int, records: int, segments: int, stored: int, deaf: set[int], at: int = 0
    ) -> None:
        """A replica has fallen behind; the others commit and store records that it will never
        have.
        """
        self.now += 0.1
        cluster = self._at(at)
        if broker == cluster.leader:
            broker = broker % len(cluster.replicas) + 1
        self._fetch(cluster, set(cluster.replicas))
        cluster.fall_behind(broker)
        for _ in range(segments):
            cluster.append(records)
            self._fetch(cluster, cluster.in_sync)
            cluster.roll(cluster.leader)
        self._fetch(cluster, cluster.in_sync)
        self.sidecars[cluster.leader].work(stored)
        cluster.elect_unclean(broker)
        self._pins_are_lost()  # a truncated file is no longer a copy
        self._tell(cluster.replicas.keys() - deaf)

    @precondition(lambda self: not self.created_again)
    @rule(chance=st.integers(0, 3), deaf=st.sets(BROKERS))
    def the_topic_is_created_again(self, chance: int, deaf: set[int]) -> None:
        if chance == 3:
            self.created_again = True
            for partition in self.partitions:
                tp = partition.cluster.tp
                if watermark_of(self.store, tp) is not None:
                    self.archived_before |= {tp}
                partition.cluster.create_again()
            self._tell(self.brokers.keys() - deaf)

    def _refused(self, partition: Watched) -> bool:
        """A late request of the deleted topic's sidecar has left its `leader-epoch-checkpoint`. It
        contradicts the new topic's log, although no stored batch does: an operator has to remove
        it.
        """
        says = self.sidecars[partition.cluster.leader].error(partition.cluster.tp) or ""
        return self.created_again and "nothing is moved; compare both" in says

    def _has_settled(self, partition: Watched) -> bool:
        return self._refused(partition) or super()._has_settled(partition)

    def _has_caught_up(self, partition: Watched) -> None:
        if not self._refused(partition):
            super()._has_caught_up(partition)

    def _fetch(self, cluster: Replicated, brokers: set[int]) -> None:
        for broker in sorted(brokers):
            cluster.replicate(broker)
            cluster.checkpoint(broker)

    def _catch_up(self) -> None:
        self._heal()
        for partition in self.partitions:
            cluster, everyone = partition.cluster, set(self.brokers)
            self._fetch(cluster, everyone)
            cluster.append(1)  # an idle partition checks nothing
            cluster.roll(cluster.leader)
            self._fetch(cluster, everyone)
        self._tell(self.brokers)
        if self.created_again:
            self._retire_what_was_before()
        super()._catch_up()

    def _retire_what_was_before(self) -> None:
        """Retire the old archive. A request under way when the topic was deleted may move the first
        watermark.
        """
        self._go_on()
        for partition in self.partitions:
            cluster = partition.cluster
            watermark = watermark_of(self.store, cluster.tp)
            if watermark is None or watermark.topic_id == cluster.topic_id:
                continue
            if cluster.tp in self.archived_before:
                self._nothing_of_the_new_topic_has_come(cluster)
            mark = read_watermark(self.store, LAYOUT.watermark_key(cluster.tp))
            retire(
                MoveContext(self.opened(self.store), LAYOUT),
                cluster.tp,
                mark,
                "its topic is no more",
            )

    def _go_on(self) -> None:
        for _ in range(_ROUNDS):
            self.now += 65.0
            for sidecar in self.sidecars.values():
                sidecar.work(6, events=False)
            self._check()

    def _nothing_of_the_new_topic_has_come(self, cluster: Replicated) -> None:
        logs = stored_logs(self.store, cluster.tp).values()
        stored = {batch for log in logs for *_, batch in batches_of(log)}
        ids = {cluster.topics[batch] for batch in stored}
        assert cluster.topic_id not in ids, "it did not wait until the old one was retired"


class Refused(Protocol):
    """A topic whose configuration forbids archiving: nothing is ever written."""

    def _catch_up(self) -> None:
        for _ in range(_ROUNDS):
            self.now += 65.0
            for sidecar in self.sidecars.values():
                sidecar.work(6, events=False)
        assert not self.store.contents()


class Compacted(Refused):
    """A compacted topic, whose closed segments would be rewritten."""

    config: ClassVar = TopicConfig(compacted=True)


class TieredNatively(Refused):
    """A topic whose segments the broker tiers itself."""

    config: ClassVar = TopicConfig(native_tiering=True)


@pytest.mark.parametrize("elections", [0, 5])
def test_epoch_of_a_deleted_topic_does_not_apply_to_its_successor(elections: int) -> None:
    """Found by random runs. A sidecar that had heard of epoch 3 of the deleted topic stored records
    of its successor in that epoch; an unclean election truncated them. No leader was heard until
    epoch 3 occurred again, and then its records were stored after the others.
    """
    state = Disasters()
    state.begin(seed=1)
    for broker in (2, 1, 3):
        state.elect(broker=broker, deaf=set())
        state.live(records=1, rolls=set(), lagging=set(), frozen=set(BROKER_IDS))
    state.the_topic_is_created_again(chance=3, deaf=set(BROKER_IDS))
    state.an_unclean_election(broker=2, records=3, segments=2, stored=12, deaf=set(BROKER_IDS))
    state.a_backlog(records=3, rolls=set(BROKER_IDS), segments=4)
    for number in range(elections):
        state.elect(broker=number % 3 + 1, deaf=set())
        state.live(records=1, rolls=set(BROKER_IDS), lagging=set(), frozen=set())
        state.laws_hold()
    state.teardown()


def test_epoch_that_began_in_a_gap_is_no_divergence() -> None:
    """Found by random runs. Stored records were truncated and quarantined; then records of the new
    leader's first epoch were deleted before they could be stored.
    """
    state = Disasters()
    state.begin(seed=1)
    state.a_backlog(records=1, rolls=set(BROKER_IDS), segments=2)
    state.live(records=1, rolls=set(BROKER_IDS), lagging=set(), frozen=set())
    state.an_unclean_election(broker=2, records=3, segments=1, stored=12, deaf=set())
    state.live(records=2, rolls=set(BROKER_IDS), lagging=set(), frozen=set(BROKER_IDS))
    state.live(records=2, rolls=set(BROKER_IDS), lagging=set(), frozen=set(BROKER_IDS))
    for broker in BROKER_IDS:
        state.kill(broker=broker, late=False)
        state.retention(broker=broker, segments=8, seen=False, unlink=False)
        for path in state.cluster.replicas[broker].marked_for_deletion():
            path.unlink()
    state.live(records=2, rolls=set(BROKER_IDS), lagging=set(), frozen=set())
    state.teardown()
    assert state.laws.gaps


def test_quarantine_of_many_segments_has_time_to_end() -> None:
    """The simulation lets a sidecar continue as long as it changes the store."""
    state = Disasters()
    state.begin(seed=1)
    cluster = state.cluster
    state.a_backlog(records=1, rolls=set(BROKER_IDS), segments=1)
    cluster.fall_behind(2)
    for _ in range(40):
        cluster.append(1)
        state._fetch(cluster, cluster.in_sync)
        for broker in (1, 3):
            cluster.roll(broker)
    state._fetch(cluster, cluster.in_sync)
    state.sidecars[1].work(400)
    state.laws_hold()
    assert state.laws.moved_to == 42
    cluster.elect_unclean(2)
    state._pins_are_lost()
    state._tell(BROKER_IDS)
    state.teardown()


class Encrypted(Disasters):
    """Every sidecar encrypts its segments."""

    def new_store(self, now_ms: Callable[[], int]) -> FakeStorage:
        return DecryptedView(now_ms)

    def opened(self, store: RemoteStorage) -> RemoteStorage:
        return EncryptingStorage(store, RING, lambda _: True)


Disasters.TestCase.settings = examples(60)
Encrypted.TestCase.settings = examples(10)
Compacted.TestCase.settings = examples(8)
TieredNatively.TestCase.settings = examples(8)
TestDisasters = Disasters.TestCase
TestEncrypted = Encrypted.TestCase
TestCompacted = Compacted.TestCase
TestTieredNatively = TieredNatively.TestCase

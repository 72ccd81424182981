"""Kafka and the store act as one log, whatever happens in between.

Records are produced; segments are stored (sometimes after Kafka has deleted them: the sidecar keeps
them); retention and gc delete; the group rebalances; partitions are paused and sought; brokers and
the store are unavailable for a while; responses arrive late; consumers are killed; and the topic is
deleted and created again, while its archive stays or is retired. The records
that are delivered are, per assignment, in order and without a gap or a repetition; no offset is
committed whose record was not delivered; and at the end each record was delivered at least once.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import hypothesis.strategies as st
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaTopicPartition
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sidetier.consumer.partition import Source
from sidetier.segments.errors import StoreUnavailableError
from sidetier.segments.offsets import TopicPartition
from tests.harness.one_log import INVALID, Later, World
from tests.harness.tiered import OTHER, TP, Tiered, at, tiered

PARTITIONS = (TP, OTHER)
AWAY = StoreUnavailableError("the store is away")
KILLS = 3
RECREATIONS = 2
SELDOM = st.sampled_from([False, False, False, False, True])


class OneLog(RuleBasedStateMachine):
    """The state machine; subclasses set the mode."""

    mode = "KAFKA_PREFERRED"
    cooperative = False

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.pool = Later()
        self.next: dict[TopicPartition, int] = {}
        self.seen: dict[TopicPartition, set[int]] = {tp: set() for tp in PARTITIONS}
        self.paused: set[TopicPartition] = set()
        self.assigned: set[TopicPartition] = set()
        self.unnoticed: set[TopicPartition] = set()
        """Partitions of a recreated topic that were read on from an offset of the deleted one."""
        self.recreating = False
        self.again: set[TopicPartition] = set()
        """Partitions that were assigned again while a recreated topic is noticed."""
        self.kills = self.recreations = 0
        self.it: Tiered

    @initialize(seed=st.integers(0, 1000))
    def begin(self, seed: int) -> None:
        self.world.seed = seed
        for tp in PARTITIONS:
            log = self.world.log(tp)
            log.produce(12)
            log.upload(6)
        self.start()

    def start(self) -> None:
        strategy = {"partition.assignment.strategy": "cooperative-sticky"}
        self.pool = Later()
        config: dict[str, Any] = strategy if self.cooperative else {}
        self.world.has_told_id = False
        self.it = tiered(self.world, self.mode, config, pool=self.pool)
        self.it.consumer.subscribe(["t"], on_assign=self.came, on_revoke=self.went)
        self.assigned, self.paused, self.next = set(), set(), {}
        self.was_assigned = False
        self.give(set(PARTITIONS))

    # Actions of the group

    def came(self, _: object, partitions: list[KafkaTopicPartition]) -> None:
        for one in partitions:
            tp = TopicPartition(one.topic, one.partition)
            log = self.world.log(tp)
            low = min(log.kafka_start, log.store_start)
            self.next[tp] = self.world.committed.get(tp, low)
            if self.recreating:
                # What was committed may be an offset of the deleted topic: a commit has no id.
                self.again.add(tp)
                self.seen[tp] |= set(log.between(0, self.next[tp]))
            self.assigned.add(tp)
            self.was_assigned = True

    def went(self, _: object, partitions: list[KafkaTopicPartition]) -> None:
        for one in partitions:
            tp = TopicPartition(one.topic, one.partition)
            self.assigned.discard(tp)
            self.next.pop(tp, None)

    def give(self, wanted: set[TopicPartition]) -> None:
        """Rebalance so that these partitions are assigned to us."""
        if self.cooperative:
            self.it.kafka.rebalance(sorted(self.assigned - wanted), "on_revoke")
            self.it.kafka.rebalance(sorted(wanted - self.assigned))
        else:
            if self.assigned:
                self.it.kafka.rebalance(sorted(self.assigned), "on_revoke")
            self.it.kafka.rebalance(sorted(wanted))
        self.world.now += 0.1  # Kafka's client is polled at the next call
        self.poll(1)

    @rule(wanted=st.sets(st.sampled_from(PARTITIONS)))
    def rebalance(self, wanted: set[TopicPartition]) -> None:
        self.give(wanted)

    @precondition(lambda self: self.kills < KILLS)
    @rule()
    def kill(self) -> None:
        """Act as SIGKILL: assert that nothing was committed that was not returned."""
        self.kills += 1
        self.start()

    # Actions on the log

    @rule(tp=st.sampled_from(PARTITIONS), count=st.integers(1, 12), markers=st.integers(0, 2))
    def produce(self, tp: TopicPartition, count: int, markers: int) -> None:
        self.world.log(tp).produce(count, markers)

    @precondition(lambda self: not self.world.archived)  # the sidecar has stopped until `retire`
    @rule(tp=st.sampled_from(PARTITIONS), size=st.integers(1, 15))
    def upload(self, tp: TopicPartition, size: int) -> None:
        log = self.world.log(tp)
        log.upload(log.store_end + size)

    @precondition(lambda self: not self.world.archived)
    @rule(tp=st.sampled_from(PARTITIONS), size=st.integers(1, 20), late=st.integers(0, 4))
    def retain(self, tp: TopicPartition, size: int, late: int) -> None:
        log = self.world.log(tp)
        late = late if log.store_end else 0  # the beginning of a log that has no archive is Kafka's
        log.retain(min(log.kafka_start + size, log.store_end + late))

    @rule(tp=st.sampled_from(PARTITIONS), share=st.floats(0, 1))
    def gc(self, tp: TopicPartition, share: float) -> None:
        """Delete stored records below every reader's position; another test covers later ones."""
        log = self.world.log(tp)
        behind = min(self.world.committed.get(tp, 0), self.next.get(tp, 0), log.kafka_start)
        log.gc(int(behind * share))

    @precondition(
        lambda self: (
            self.recreations < RECREATIONS
            and not self.world.brokers_away
            and self.world.store_error is None
        )
    )
    @rule(
        records=st.integers(1, 30),
        retires=st.booleans(),
        ahead=st.booleans(),
        seen=st.booleans(),
    )
    def recreate(self, records: int, *, retires: bool, ahead: bool, seen: bool) -> None:
        """Create the topic again under the reader, and read until it has noticed. If its absence is
        not `seen`, Kafka's client fetches nothing of it until it is replaced, and then the group
        assigns the partitions again.

        Records of the deleted topic may still be returned, in order. Then the new topic's follow,
        from its first one on: except after a read from Kafka at an offset that the new topic has,
        too, where no consumer notices anything. It may notice later, when it compares the topic's
        ids to leave Kafka, and then reads the new topic from its first record on.
        """
        self.recreations += 1
        self.it.consumer.resume([at(INVALID, tp) for tp in PARTITIONS])
        self.paused.clear()
        old = dict(self.world.archived or self.world.logs)
        last, before = dict(self.world.logs), self.next
        unnoticed = self.unnoticed_positions()
        # At none of these positions, so that there is something to read.
        while records in set().union(*unnoticed.values()):
            records += 1
        # A consumer that has not learnt the id yet takes that of the new topic for the first one.
        self.world.recreate(records, seen=seen or not self.world.has_told_id)
        if retires or self.mode == "TIERED_STORAGE_ONLY":
            self.world.retire(uploads=True)
        if ahead:
            self.it.kafka.fetch(TP)
        self.next, self.seen = {}, {tp: set() for tp in PARTITIONS}
        self.unnoticed.clear()
        self.recreating = True
        for _ in range(150):
            self.pool.run()
            for tp, offset, value in self.consumed():
                topics = [log for log in (last[tp], old[tp]) if log.records.get(offset) == value]
                if topics:
                    assert tp not in self.next, f"{tp}: {offset} of the deleted topic came last"
                    assert offset == topics[0].between(before[tp], topics[0].end)[0]
                    before[tp] = offset + 1
                else:
                    self.handed_out_of_the_new_topic(tp, offset, unnoticed[tp])
            if all(self.next.get(tp) == records for tp in self.assigned):
                break
        assert self.next == dict.fromkeys(self.assigned, records), "a partition stands still"
        self.recreating = False
        self.again.clear()
        self.commit()
        # A commit right after the deletion may be one of the deleted topic (docs/consumer.md,
        # Commits). Kafka's client sends no lower one after it.
        committed = self.world.committed
        self.world.committed = {tp: at for tp, at in committed.items() if at <= records}

    def handed_out_of_the_new_topic(
        self, tp: TopicPartition, offset: int, unnoticed: set[int | None]
    ) -> None:
        if tp not in self.next or tp in self.again:
            skipped = offset if offset in {*unnoticed, self.next.get(tp)} else 0
            self.again.discard(tp)
            self.next[tp], self.seen[tp] = skipped, set(range(skipped))
            if skipped:
                self.unnoticed.add(tp)
        self.handed_out(*tp, [offset])

    def unnoticed_positions(self) -> dict[TopicPartition, set[int | None]]:
        """Return where the new topic may be read first: at an offset that the application or the
        group gave and no source was read at yet; or where Kafka's consumer notices nothing.
        """
        found: dict[TopicPartition, set[int | None]] = {tp: set() for tp in PARTITIONS}
        for tp, partition in self.it.consumer._state.partitions.items():
            if partition.source is not Source.STORE:
                fetched = self.it.kafka.fetchers[tp].offset
                found[tp] |= {partition.position, partition.start, partition.committed, fetched}
        return found

    def consumed(self) -> Iterator[tuple[TopicPartition, int, bytes]]:
        """Yield partition, offset and value of the records of one call."""
        for message in self.it.consumer.consume(20, 0.5):
            if message.error() is None:
                tp = TopicPartition(str(message.topic()), int(message.partition() or 0))
                yield tp, int(message.offset() or 0), bytes(message.value() or b"")
            else:  # the archive was retired while it was read
                assert "created again" in str(message.error())

    @rule()
    def retire(self) -> None:
        self.world.retire()

    @rule(tp=st.sampled_from(PARTITIONS))
    def fetch_ahead(self, tp: TopicPartition) -> None:
        self.it.kafka.fetch(tp)

    # Temporary faults

    @rule(away=SELDOM)
    def brokers(self, *, away: bool) -> None:
        # Without a broker, a consumer that never saw the new topic reads the old one's archive.
        self.world.brokers_away = away and not self.world.archived

    @rule(away=SELDOM)
    def store(self, *, away: bool) -> None:
        self.world.store_error = AWAY if away else None

    @rule()
    def answer(self) -> None:
        self.pool.run()

    @rule(seconds=st.floats(0.1, 12))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    # Actions of the application

    @rule(times=st.integers(1, 10))
    def poll(self, times: int) -> None:
        self.pool.run()
        for _ in range(times):
            message = self.it.consumer.poll(0.01)
            if message is not None:
                assert message.error() is None, str(message.error())
                self.handed_out(
                    str(message.topic()),
                    int(message.partition() or 0),
                    [int(message.offset() or 0)],
                )

    @rule(most=st.integers(1, 20))
    def consume(self, most: int) -> None:
        for message in self.it.consumer.consume(most, 0.02):
            assert message.error() is None, str(message.error())
            self.handed_out(
                str(message.topic()), int(message.partition() or 0), [int(message.offset() or 0)]
            )

    @rule(most=st.integers(1, 20))
    def consume_arrow(self, most: int) -> None:
        for batch in self.it.consumer.consume_arrow(most, 0.02):
            offsets = batch.records.column("offset").to_pylist()
            self.handed_out(batch.topic, batch.partition, offsets)

    @precondition(lambda self: not self.world.brokers_away)
    @rule()
    def commit(self) -> None:
        with suppress(KafkaException):  # nothing is stored above the last commit
            self.it.consumer.commit(asynchronous=False)

    @rule(tp=st.sampled_from(PARTITIONS))
    def pause(self, tp: TopicPartition) -> None:
        self.it.consumer.pause([at(INVALID, tp)])
        if self.was_assigned:
            self.paused.add(tp)

    @rule(tp=st.sampled_from(PARTITIONS))
    def resume(self, tp: TopicPartition) -> None:
        self.it.consumer.resume([at(INVALID, tp)])
        self.paused.discard(tp)

    @rule(tp=st.sampled_from(PARTITIONS), share=st.floats(0, 1))
    def seek(self, tp: TopicPartition, share: float) -> None:
        if tp not in self.assigned:
            return
        log = self.world.log(tp)
        low = min(log.kafka_start, log.store_start)
        offset = low + int((max(self.next[tp], low) - low) * share)
        self.it.consumer.seek(at(offset, tp))
        self.next[tp] = offset

    # Invariants

    def handed_out(self, topic: str, partition: int, offsets: list[int]) -> None:
        tp = TopicPartition(topic, partition)
        assert tp in self.assigned, f"{tp} is not ours"
        assert tp not in self.paused, f"{tp} is paused"
        log = self.world.log(tp)
        for offset in offsets:
            if tp in self.unnoticed and offset == log.between(0, log.end)[0] < self.next[tp]:
                self.unnoticed.remove(tp)
                self.next[tp] = offset
            expected = log.between(self.next[tp], log.end)
            assert expected, f"{tp}: {offset} was handed out before {self.next[tp]} was written"
            assert offset == expected[0], f"{tp}: {offset} instead of {expected[0]}"
            self.next[tp] = offset + 1
            self.seen[tp].add(offset)

    @invariant()
    def nothing_is_committed_that_was_not_handed_out(self) -> None:
        for tp, committed in self.world.committed.items():
            log = self.world.log(tp)
            missed = [one for one in log.between(0, committed) if one not in self.seen[tp]]
            assert not missed, f"{tp}: committed {committed} without {missed}"

    def teardown(self) -> None:
        """End all faults: each record is returned, and the group has committed all of them."""
        if not hasattr(self, "it"):
            return
        self.world.brokers_away, self.world.store_error = False, None
        self.world.retire()
        for tp in PARTITIONS:
            log = self.world.log(tp)
            log.upload(log.end)
        if self.assigned != set(PARTITIONS):
            self.give(set(PARTITIONS))
        self.it.consumer.resume([at(INVALID, tp) for tp in PARTITIONS])
        self.paused.clear()
        for _ in range(120):
            if all(self.next.get(tp) == self.world.log(tp).last + 1 for tp in PARTITIONS):
                break
            self.consume(50)
            self.answer()
            self.answer()
            self.world.now += 1.5
        for tp in PARTITIONS:
            assert self.next[tp] >= self.world.log(tp).last + 1, f"{tp} stands still"
            assert self.seen[tp] == set(self.world.log(tp).records), f"{tp}: not all came"


class KafkaPreferredCooperative(OneLog):
    cooperative = True


class StorePreferred(OneLog):
    mode = "TIERED_STORAGE_PREFERRED"


class StorePreferredCooperative(StorePreferred):
    cooperative = True


class StoreOnly(OneLog):
    mode = "TIERED_STORAGE_ONLY"


_EXAMPLES = settings(
    max_examples=int(os.environ.get("SIDETIER_ONE_LOG_EXAMPLES", "25")),
    stateful_step_count=50,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes minutes
)

TestKafkaPreferred = OneLog.TestCase
TestKafkaPreferredCooperative = KafkaPreferredCooperative.TestCase
TestStorePreferred = StorePreferred.TestCase
TestStorePreferredCooperative = StorePreferredCooperative.TestCase
TestStoreOnly = StoreOnly.TestCase
for _case in (
    TestKafkaPreferred,
    TestKafkaPreferredCooperative,
    TestStorePreferred,
    TestStorePreferredCooperative,
    TestStoreOnly,
):
    _case.settings = _EXAMPLES

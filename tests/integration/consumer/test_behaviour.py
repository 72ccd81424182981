"""confluent-kafka's consumer and ours, in every mode, behave alike at pause, seek and assign.

Each behaviour also runs against `confluent_kafka.Consumer`, which proves the expectation.
"""

from collections.abc import Callable
from contextlib import closing
from time import monotonic
from typing import Any, Final

import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    OFFSET_STORED,
    TIMESTAMP_CREATE_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from devtools.sandbox.kafka import KraftCluster
from sidetier import TieredConsumer
from tests.harness.raw_produce import produce_raw
from tests.harness.record_batches import MadeBatch, MadeRecord
from tests.harness.topics import create_topic
from tests.integration.consumer.conftest import Tier

pytestmark = pytest.mark.integration

KINDS = (
    "confluent",
    "KAFKA_ONLY",
    "KAFKA_PREFERRED",
    "TIERED_STORAGE_PREFERRED",
    "TIERED_STORAGE_ONLY",
)
START = 400
"""Both sources have the offsets from here on."""
QUIET: Final = 0.4
"""Seconds without a record that prove that none comes."""


class Subject:
    """A consumer under test, and what is read from it."""

    def __init__(self, tier: Tier, kind: str, **more: object) -> None:
        mode = "KAFKA_ONLY" if kind == "confluent" else kind
        settings = tier.settings(mode, **more)
        self.topic, self.group = tier.topic, settings["group.id"]
        if kind == "confluent":
            own = {key: settings[key] for key in settings if not key.startswith("tiered.")}
            self.consumer: Any = Consumer(own)
        else:
            self.consumer = TieredConsumer(settings)

    def at(self, offset: int = OFFSET_INVALID, partition: int = 0) -> TopicPartition:
        return TopicPartition(self.topic, partition, offset)

    def records(self, count: int) -> list[int]:
        """Return the offsets of the next records, of all partitions."""
        found: list[int] = []
        deadline = monotonic() + 30
        while len(found) < count:
            assert monotonic() < deadline, f"only {found}"
            found += map(_offset, self.consumer.consume(count - len(found), 0.2))
        return found

    def quiet(self) -> bool:
        """Return whether nothing comes."""
        deadline = monotonic() + QUIET
        while monotonic() < deadline:
            if self.consumer.consume(1, 0.1):
                return False
        return True

    def begin(self) -> None:
        """Assign partition 0, and read three records."""
        self.consumer.assign([self.at(START)])
        assert self.records(3) == [START, START + 1, START + 2]

    def position(self) -> int:
        offset: int = self.consumer.position([self.at()])[0].offset
        return offset


def _offset(message: Message) -> int:
    assert message.error() is None, str(message.error())
    return int(message.offset() or 0)


def pause_keeps_the_position(it: Subject) -> None:
    it.begin()
    it.consumer.pause([it.at()])
    assert it.quiet()
    assert it.position() == START + 3
    it.consumer.resume([it.at()])
    assert it.records(2) == [START + 3, START + 4]


def pause_lasts_over_assign(it: Subject) -> None:
    it.begin()
    it.consumer.pause([it.at()])
    it.consumer.assign([it.at(START)])
    assert it.quiet()
    it.consumer.resume([it.at()])
    assert it.records(1) == [START]


def pause_lasts_over_unassign(it: Subject) -> None:
    it.begin()
    it.consumer.pause([it.at()])
    it.consumer.unassign()
    it.consumer.assign([it.at(START + 9)])
    assert it.quiet()
    it.consumer.resume([it.at()])
    assert it.records(1) == [START + 9]


def pause_lasts_over_incremental_changes(it: Subject) -> None:
    it.begin()
    it.consumer.pause([it.at()])
    it.consumer.incremental_unassign([it.at()])
    it.consumer.incremental_assign([it.at(START)])
    assert it.quiet()
    it.consumer.resume([it.at()])
    assert it.records(1) == [START]


def pause_of_a_partition_that_is_not_assigned_counts_later(it: Subject) -> None:
    it.begin()
    it.consumer.pause([it.at(partition=1)])
    it.consumer.assign([it.at(START, 1)])
    assert it.quiet()
    it.consumer.resume([it.at(partition=1)])
    assert it.records(1) == [START]


def pause_before_the_first_assignment_is_ignored(it: Subject) -> None:
    it.consumer.pause([it.at()])
    it.consumer.assign([it.at(START)])
    assert it.records(1) == [START]


def resume_between_assignments_ends_the_pause(it: Subject) -> None:
    it.begin()
    it.consumer.pause([it.at()])
    it.consumer.unassign()
    it.consumer.resume([it.at()])
    it.consumer.assign([it.at(START)])
    assert it.records(1) == [START]


def pause_right_after_assign_holds_everything(it: Subject) -> None:
    it.consumer.assign([it.at(START)])
    it.consumer.pause([it.at()])
    assert it.quiet()
    assert it.position() == OFFSET_INVALID
    it.consumer.resume([it.at()])
    assert it.records(1) == [START]


def pause_of_one_partition_leaves_the_other(it: Subject) -> None:
    it.consumer.assign([it.at(START), it.at(START, 1)])
    it.records(2)
    it.consumer.pause([it.at()])
    deadline = monotonic() + QUIET
    while monotonic() < deadline:
        assert {message.partition() for message in it.consumer.consume(5, 0.1)} <= {1}


def seek_while_paused_counts_after_resume(it: Subject) -> None:
    it.begin()
    it.consumer.pause([it.at()])
    it.consumer.seek(it.at(START + 50))
    assert it.quiet()
    assert it.position() == OFFSET_INVALID
    it.consumer.resume([it.at()])
    assert it.records(2) == [START + 50, START + 51]
    assert it.position() == START + 52


def seek_drops_fetched_records(it: Subject) -> None:
    it.begin()
    for offset in (START + 80, START, START + 40):
        it.consumer.seek(it.at(offset))
        assert it.position() == OFFSET_INVALID
        assert it.records(2) == [offset, offset + 1]


def seek_right_after_assign(it: Subject) -> None:
    it.consumer.assign([it.at(START)])
    it.consumer.seek(it.at(START + 40))
    assert it.records(1) == [START + 40]


def seek_needs_an_assignment(it: Subject) -> None:
    assert _code(lambda: it.consumer.seek(it.at(START))) == KafkaError._UNKNOWN_PARTITION
    it.begin()
    assert _code(lambda: it.consumer.seek(it.at(START, 1))) == KafkaError._STATE


def assign_replaces_and_returns_offsets(it: Subject) -> None:
    it.begin()
    it.consumer.assign([it.at(START + 7, 1), it.at()])
    given = {(one.partition, one.offset) for one in it.consumer.assignment()}
    assert given == {(1, START + 7), (0, OFFSET_STORED)}
    it.consumer.assign([])
    assert it.consumer.assignment() == []
    assert it.quiet()


def assign_without_an_offset_continues_after_the_commit(it: Subject) -> None:
    it.begin()
    it.consumer.commit(asynchronous=False)
    it.consumer.assign([it.at()])
    assert it.records(1) == [START + 3]


def incremental_changes_of_wrong_partitions_are_refused(it: Subject) -> None:
    removal = lambda: it.consumer.incremental_unassign([it.at()])  # noqa: E731
    assert _code(removal) == KafkaError._INVALID_ARG
    it.begin()
    added = lambda: it.consumer.incremental_assign([it.at(START)])  # noqa: E731
    assert _code(added) == KafkaError._CONFLICT


def positions_are_known_after_a_record_only(it: Subject) -> None:
    assert it.position() == OFFSET_INVALID
    it.consumer.assign([it.at(START)])
    assert it.position() == OFFSET_INVALID
    it.records(3)
    assert it.position() == START + 3
    it.consumer.assign([it.at(START)])
    assert it.position() == OFFSET_INVALID


def callbacks_may_assign_and_pause(it: Subject) -> None:
    def on_assign(consumer: Any, partitions: list[TopicPartition]) -> None:  # noqa: ANN401
        for one in partitions:
            one.offset = START
        consumer.assign(partitions)
        consumer.pause(partitions)

    it.consumer.subscribe([it.topic], on_assign=on_assign)
    deadline = monotonic() + 30
    while not it.consumer.assignment():
        assert monotonic() < deadline
        assert it.consumer.consume(1, 0.1) == []
    assert it.quiet()
    it.consumer.resume(it.consumer.assignment())
    assert it.records(1) == [START]


def pause_lasts_over_unsubscribe(it: Subject) -> None:
    it.consumer.subscribe([it.topic])
    it.records(2)
    both = [it.at(), it.at(partition=1)]
    it.consumer.pause(both)
    it.consumer.unsubscribe()
    it.consumer.consume(1, 0.1)
    it.consumer.subscribe([it.topic])
    deadline = monotonic() + 30
    while len(it.consumer.assignment()) < 2:
        assert monotonic() < deadline
        assert it.consumer.consume(1, 0.1) == []
    assert it.quiet()
    it.consumer.resume(both)
    it.records(1)


def _code(call: Callable[[], object]) -> int:
    with pytest.raises(KafkaException) as raised:
        call()
    code: int = raised.value.args[0].code()
    return code


BEHAVIOURS: Final[tuple[Callable[[Subject], None], ...]] = (
    pause_keeps_the_position,
    pause_lasts_over_assign,
    pause_lasts_over_unassign,
    pause_lasts_over_incremental_changes,
    pause_of_a_partition_that_is_not_assigned_counts_later,
    pause_before_the_first_assignment_is_ignored,
    resume_between_assignments_ends_the_pause,
    pause_right_after_assign_holds_everything,
    pause_of_one_partition_leaves_the_other,
    seek_while_paused_counts_after_resume,
    seek_drops_fetched_records,
    seek_right_after_assign,
    seek_needs_an_assignment,
    assign_replaces_and_returns_offsets,
    assign_without_an_offset_continues_after_the_commit,
    incremental_changes_of_wrong_partitions_are_refused,
    positions_are_known_after_a_record_only,
    callbacks_may_assign_and_pause,
    pause_lasts_over_unsubscribe,
)


@pytest.mark.parametrize("behave", BEHAVIOURS)
@pytest.mark.parametrize("kind", KINDS)
def test_consumers_behave_alike(tier: Tier, kind: str, behave: Callable[[Subject], None]) -> None:
    it = Subject(tier, kind)
    with closing(it.consumer):
        behave(it)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("kind", KINDS)
def test_pause_lasts_over_rebalances(tier: Tier, kind: str, strategy: str) -> None:
    group: dict[str, object] = {
        "partition_assignment_strategy": strategy,
        "heartbeat_interval_ms": 300,
    }
    it = Subject(tier, kind, **group)
    with closing(it.consumer):
        it.consumer.subscribe([it.topic])
        it.records(20)
        both = it.consumer.assignment()
        assert len(both) == 2
        it.consumer.pause(both)
        other = Subject(tier, kind, **group, group_id=it.group)
        with closing(other.consumer):
            other.consumer.subscribe([it.topic])
            _until(it, 1, other)
        _until(it, 2)
        assert it.quiet()
        it.consumer.resume(it.consumer.assignment())
        it.records(20)


def _until(it: Subject, count: int, other: Subject | None = None) -> None:
    """Poll until each member has this number of partitions; nothing of `it` may come."""
    members = [it] if other is None else [it, other]
    deadline = monotonic() + 40
    while any(len(member.consumer.assignment()) != count for member in members):
        assert monotonic() < deadline
        assert it.consumer.consume(1, 0.05) == []
        if other is not None:
            other.consumer.consume(1, 0.05)


def test_record_without_a_timestamp_has_type_1(kraft43: KraftCluster, topic: str) -> None:
    """`messages_of` returns the same for records of the store; see the unit tests."""
    create_topic(kraft43.bootstrap_servers, topic)
    records = (MadeRecord(0, -1, value=b"untimed"),)
    produce_raw(kraft43.bootstrap_servers, topic, 0, MadeBatch(records))
    with Consumer({"bootstrap.servers": kraft43.bootstrap_servers, "group.id": "plain"}) as plain:
        plain.assign([TopicPartition(topic, 0, 0)])
        message = plain.poll(60)
    assert message is not None
    assert message.timestamp() == (TIMESTAMP_CREATE_TIME, -1)

"""A `TieredConsumer` over a real broker and an archive of a real sidecar."""

from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from prometheus_client import CollectorRegistry

from sidetier import TieredConsumer
from tests.integration.consumer.conftest import PARTITIONS, Tier

pytestmark = pytest.mark.integration

TIERED = ("KAFKA_PREFERRED", "TIERED_STORAGE_PREFERRED", "TIERED_STORAGE_ONLY")
SECONDS = 30.0


class Seen:
    """Messages that a consumer has returned, by partition; asserts order and uniqueness of
    offsets.
    """

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.offsets: dict[int, list[int]] = {number: [] for number in PARTITIONS}

    def take(self, message: Message | None) -> None:
        """Assert that a message equals the record that was sent, and store its offset."""
        if message is None:
            return
        assert message.error() is None, str(message.error())
        number, offset = int(message.partition() or 0), int(message.offset() or 0)
        sent = self.tier.sent[number][offset]
        assert (message.key(), message.value()) == (sent.key, sent.value)
        if self.offsets[number]:
            assert offset == self.offsets[number][-1] + 1
        self.offsets[number].append(offset)

    def until(self, poll: Callable[[], list[Message]], done: Callable[[], object]) -> None:
        """Poll until the condition is true."""
        deadline = monotonic() + SECONDS
        while not done():
            assert monotonic() < deadline, {n: (o[:1], o[-1:]) for n, o in self.offsets.items()}
            for message in poll():
                self.take(message)

    def to(self, consumer: Any, ends: dict[int, int]) -> None:  # noqa: ANN401
        """Poll until all messages below these ends have arrived."""
        self.until(
            lambda: consumer.consume(100, 0.2),
            lambda: all(
                len(self.offsets[n]) and self.offsets[n][-1] + 1 >= end for n, end in ends.items()
            ),
        )


def ends_of(tier: Tier, mode: str) -> dict[int, int]:
    return tier.stored if mode == "TIERED_STORAGE_ONLY" else dict.fromkeys(PARTITIONS, 600)


@pytest.mark.parametrize("mode", TIERED)
def test_group_reads_everything_from_the_beginning_and_commits_to_kafka(
    tier: Tier, mode: str
) -> None:
    registry = CollectorRegistry()
    settings = tier.settings(mode, tiered_storage_metrics_registry=registry)
    seen, ends = Seen(tier), ends_of(tier, mode)
    with TieredConsumer(settings) as consumer:
        consumer.subscribe([tier.topic])
        seen.to(consumer, ends)
        committed = consumer.commit(asynchronous=False)
    assert {one.partition: one.offset for one in committed or []} == ends
    assert all(offsets[0] == 0 for offsets in seen.offsets.values())
    name = "sidetier_consumer_records_total"
    from_store = registry.get_sample_value(name, {"source": "store"})
    least = sum(tier.kafka_start.values() if mode == "KAFKA_PREFERRED" else tier.stored.values())
    assert from_store is not None
    assert from_store >= least
    plain = Consumer({key: settings[key] for key in ("bootstrap.servers", "group.id", "log_level")})
    found = plain.committed([TopicPartition(tier.topic, n) for n in PARTITIONS], timeout=60)
    plain.close()
    assert {one.partition: one.offset for one in found} == ends


@pytest.mark.parametrize("mode", TIERED)
def test_group_of_a_killed_consumer_continues_at_its_commit(tier: Tier, mode: str) -> None:
    settings = tier.settings(mode, enable_auto_commit=False)
    first = TieredConsumer(settings)
    first.subscribe([tier.topic])
    seen = Seen(tier)
    seen.until(lambda: first.consume(20, 0.2), lambda: all(map(len, seen.offsets.values())))
    first.commit(asynchronous=False)
    done = {number: offsets[-1] + 1 for number, offsets in seen.offsets.items()}
    lost = Seen(tier)
    lost.until(lambda: first.consume(20, 0.2), lambda: any(map(len, lost.offsets.values())))
    first.close()  # without a commit
    again = Seen(tier)
    with TieredConsumer(settings) as second:
        second.subscribe([tier.topic])
        ends = ends_of(tier, mode)
        again.to(second, {number: end for number, end in ends.items() if done[number] < end})
    found = {number: offsets[0] for number, offsets in again.offsets.items() if offsets}
    assert found == {number: offset for number, offset in done.items() if offset < ends[number]}


def shared(one: TieredConsumer, two: TieredConsumer) -> bool:
    return len(one.assignment()) == len(two.assignment()) == 1


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_rebalance_between_two_members_loses_nothing(tier: Tier, strategy: str) -> None:
    settings = tier.settings(
        "TIERED_STORAGE_PREFERRED", partition_assignment_strategy=strategy, session_timeout_ms=6000
    )
    given: list[tuple[str, int]] = []
    seen = Seen(tier)
    with TieredConsumer(settings) as one:
        one.subscribe([tier.topic], on_assign=lambda _, ps: given.append(("one", len(ps))))
        seen.until(lambda: one.consume(10, 0.2), lambda: all(map(len, seen.offsets.values())))
        one.commit(asynchronous=False)
        with TieredConsumer(settings) as two:
            two.subscribe([tier.topic], on_assign=lambda _, ps: given.append(("two", len(ps))))
            parts: dict[int, list[int]] = {number: [] for number in PARTITIONS}
            deadline = monotonic() + SECONDS
            while any(599 not in parts[n] for n in PARTITIONS) or not shared(one, two):
                assert monotonic() < deadline, {n: (o[:1], o[-1:]) for n, o in parts.items()}
                for consumer in (one, two):
                    for message in consumer.consume(50, 0.05):
                        assert message.error() is None, str(message.error())
                        parts[int(message.partition() or 0)].append(int(message.offset() or 0))
    for number in PARTITIONS:
        everything = set(seen.offsets[number]) | set(parts[number])
        assert everything == set(range(600))
    assert ("two", 1) in given


def test_message_of_the_store_equals_the_message_of_kafka(tier: Tier) -> None:
    where = TopicPartition(tier.topic, 0, 300)
    with Consumer({"bootstrap.servers": tier.bootstrap, "group.id": "plain"}) as plain:
        plain.assign([where])
        theirs = plain.consume(50, 20)
    with TieredConsumer(tier.settings("TIERED_STORAGE_ONLY")) as consumer:
        consumer.assign([where])
        ours: list[Message] = []
        while len(ours) < 50:
            ours += consumer.consume(50 - len(ours), 20)
    assert len(theirs) == len(ours) == 50
    assert ours == theirs
    for left, right in zip(ours, theirs, strict=True):
        for name in (
            "topic",
            "partition",
            "offset",
            "key",
            "value",
            "headers",
            "timestamp",
            "leader_epoch",
            "latency",
            "error",
            "delivery_count",
        ):
            assert getattr(left, name)() == getattr(right, name)(), name
        assert len(left) == len(right)


def test_arrow_batches_are_equal_from_both_sources(tier: Tier) -> None:
    columns = ["offset", "timestamp", "timestamp_type", "key", "value", "headers", "leader_epoch"]
    tables = []
    for mode in ("KAFKA_ONLY", "TIERED_STORAGE_ONLY"):
        with TieredConsumer(tier.settings(mode)) as consumer:
            consumer.assign([TopicPartition(tier.topic, 0, 300)])
            rows: list[dict[str, Any]] = []
            deadline = monotonic() + SECONDS
            while len(rows) < 100 and monotonic() < deadline:
                for batch in consumer.consume_arrow(100, 0.5):
                    assert (batch.topic, batch.partition) == (tier.topic, 0)
                    rows += batch.records.select(columns).to_pylist()
            tables.append(rows[:100])
    assert tables[0] == tables[1]
    assert [row["offset"] for row in tables[0]] == list(range(300, 400))


@pytest.mark.parametrize(
    ("mode", "low", "high"),
    [
        ("KAFKA_ONLY", 300, 600),
        ("KAFKA_PREFERRED", 0, 600),
        ("TIERED_STORAGE_PREFERRED", 0, 600),
        ("TIERED_STORAGE_ONLY", 0, None),
    ],
)
def test_bounds_and_times_are_those_of_the_union(
    tier: Tier, mode: str, low: int, high: int | None
) -> None:
    with TieredConsumer(tier.settings(mode)) as consumer:
        found = consumer.get_watermark_offsets(TopicPartition(tier.topic, 0), 60)
        assert found == (low, tier.stored[0] if high is None else high)
        at = consumer.offsets_for_times([TopicPartition(tier.topic, 0, 0)], 60)
        assert at[0].offset == low
        late = consumer.offsets_for_times([TopicPartition(tier.topic, 0, 2**45)], 60)
        assert late[0].offset == OFFSET_END


def test_seeks_can_cross_between_the_sources(tier: Tier) -> None:
    with TieredConsumer(tier.settings("KAFKA_PREFERRED")) as consumer:
        consumer.assign([TopicPartition(tier.topic, 0, 550)])
        for offset in (550, 10, 580, 250, 0, 599):
            consumer.seek(TopicPartition(tier.topic, 0, offset))
            message = consumer.poll(60)
            assert message is not None
            assert message.error() is None
            assert message.offset() == offset
            assert consumer.position([TopicPartition(tier.topic, 0)])[0].offset == offset + 1
        consumer.seek(TopicPartition(tier.topic, 0, OFFSET_BEGINNING))
        message = consumer.poll(60)
        assert message is not None
        assert message.offset() == 0


def test_store_is_read_without_any_broker(tier: Tier) -> None:
    settings = {
        "tiered.storage.mode": "TIERED_STORAGE_ONLY",
        "tiered.storage.config": str(tier.config),
        "auto.offset.reset": "earliest",
    }
    seen = Seen(tier)
    with TieredConsumer(settings) as consumer:
        consumer.assign([TopicPartition(tier.topic, n) for n in PARTITIONS])
        seen.to(consumer, tier.stored)
        with pytest.raises(KafkaException, match=r"commit\(\) needs bootstrap.servers"):
            consumer.commit()
        with pytest.raises(KafkaException, match=r"subscribe\(\) needs bootstrap.servers"):
            consumer.subscribe([tier.topic])


@pytest.mark.parametrize("mode", ["KAFKA_PREFERRED", "TIERED_STORAGE_PREFERRED"])
def test_store_is_read_as_far_as_possible_while_no_broker_answers(tier: Tier, mode: str) -> None:
    """The store is read while nothing of Kafka is needed; Kafka's errors appear like those of its
    client.
    """
    told: list[KafkaError] = []
    settings = tier.settings(mode)
    settings |= {"bootstrap.servers": "127.0.0.1:1", "error_cb": told.append}
    with TieredConsumer(settings) as consumer:
        consumer.assign([TopicPartition(tier.topic, 0, 10)])
        deadline = monotonic() + 60
        while not told and monotonic() < deadline:
            consumer.poll(0.1)
        message = consumer.poll(3 if mode == "KAFKA_PREFERRED" else 60)
        if mode == "TIERED_STORAGE_PREFERRED":
            assert message is not None
            assert message.error() is None
        else:
            assert message is None
        assert {error.code() for error in told} & {
            KafkaError._TRANSPORT,
            KafkaError._ALL_BROKERS_DOWN,
        }
        with pytest.raises(KafkaException):
            consumer.committed([TopicPartition(tier.topic, 0)], timeout=0.5)


@pytest.mark.parametrize("mode", ["KAFKA_ONLY", "KAFKA_PREFERRED"])
def test_callback_that_raises_loses_nothing_and_does_not_block_close(tier: Tier, mode: str) -> None:
    """confluent-kafka itself drops the messages it was about to return, and hangs in close."""
    seen, raised = Seen(tier), [0]

    def stats(_: str) -> None:
        come = sum(map(len, seen.offsets.values()))
        if come > raised[-1]:
            raised.append(come)
            raise ValueError("mine")

    settings = tier.settings(mode, statistics_interval_ms=1, fetch_message_max_bytes=1000)
    with suppress(ValueError), TieredConsumer(settings, stats_cb=stats) as consumer:
        consumer.subscribe([tier.topic])

        def poll() -> list[Message]:
            try:
                return consumer.consume(100, 0.1)
            except ValueError:
                return []

        seen.until(poll, lambda: all(o[-1:] == [599] for o in seen.offsets.values()))
    assert len(raised) > 1
    starts = {number: offsets[0] for number, offsets in seen.offsets.items()}
    assert starts == (tier.kafka_start if mode == "KAFKA_ONLY" else dict.fromkeys(PARTITIONS, 0))

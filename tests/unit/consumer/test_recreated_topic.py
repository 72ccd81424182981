"""An archive is read only if it is of the topic that the cluster has; and a reset never goes back
to an archive that Kafka does not continue.
"""

import logging
from collections.abc import Collection
from itertools import product
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, Message

from sidetier.consumer.lookups import Answer, Question
from sidetier.consumer.partition import Partition
from sidetier.consumer.routing import _learn
from sidetier.consumer.sources import Archive, Identity
from sidetier.consumer.subscription_state import SILENT_SECONDS
from sidetier.consumer.tiered_consumer import TieredConsumer
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition
from tests.harness.one_log import FakeKafka, Later, World
from tests.harness.tiered import OTHER, TP, Tiered, at, tiered, world_of

READING = ("KAFKA_PREFERRED", "TIERED_STORAGE_PREFERRED")
BOTH = pytest.mark.parametrize("mode", READING)
ALL = pytest.mark.parametrize("mode", [*READING, "TIERED_STORAGE_ONLY"])
NO_ID = pytest.mark.parametrize("answer", [None, KafkaError(KafkaError._TIMED_OUT)])
"""The asked broker does not know the topic (yet), or no broker answers."""


def values(it: Tiered, polls: int = 200) -> list[bytes]:
    """Return the values from this number of polls, without errors."""
    found = [it.consumer.poll(0.1) for _ in range(polls)]
    return [bytes(one.value() or b"") for one in found if one is not None and one.error() is None]


def new_records(end: int, start: int = 0) -> list[bytes]:
    return [b"new-1-%d" % offset for offset in range(start, end)]


def recreated(records: int) -> World:
    """Return a world whose archive, [0, 80), is of a deleted topic."""
    world = world_of(kafka_start=60, store=(0, 80))
    world.recreate(records)
    return world


@BOTH
@pytest.mark.parametrize("start", [0, 5, OFFSET_BEGINNING, -1001])
def test_archive_of_a_deleted_topic_is_not_read(
    mode: str, start: int, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[KafkaError] = []
    caplog.set_level(logging.WARNING, "sidetier.consumer")
    it = tiered(recreated(20), mode, {"error_cb": told.append})
    it.consumer.assign([at(start)])
    assert values(it) == new_records(20, max(start, 0))
    assert it.consumer.get_watermark_offsets(at(0)) == (0, 20)
    assert it.consumer.offsets_for_times([at(15)])[0].offset == 15
    assert it.consumer.offsets_for_times([at(50)])[0].offset == OFFSET_END
    if mode == "TIERED_STORAGE_PREFERRED" or start < 0:
        assert caplog.text.count("consumer.archive_of_another_topic") == 1
        assert "sidetier retire t" in caplog.text
        assert "sidetier retire t" in told[0].str()


@BOTH
@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_position_above_the_new_topic_is_reset_within_kafka(mode: str, reset: str) -> None:
    it = tiered(recreated(20), mode, {"auto.offset.reset": reset})
    it.consumer.assign([at(80)])
    found = values(it)
    it.world.log(TP).produce(5)
    assert found + values(it) == new_records(25, 0 if reset == "earliest" else 20)
    assert it.count("offset_resets_total") == 1


def test_archive_of_a_deleted_topic_is_read_after_it_was_retired_only() -> None:
    told: list[KafkaError] = []
    it = tiered(recreated(20), "TIERED_STORAGE_ONLY", {"error_cb": told.append})
    it.consumer.assign([at(0)])
    assert values(it) == []
    assert it.consumer.get_watermark_offsets(at(0)) == (0, 0)
    assert "sidetier retire t" in told[0].str()
    it.world.retire()
    it.world.log(TP).upload(15)
    assert values(it, 400) == new_records(15)


def test_archive_of_a_deleted_topic_is_read_without_a_broker() -> None:
    """Nothing can be compared, and this is how the archive of a deleted topic is read."""
    it = tiered(recreated(20), "TIERED_STORAGE_ONLY", broker=False)
    it.consumer.assign([at(0)])
    assert len(values(it)) == 80


@BOTH
@pytest.mark.parametrize("records", [20, 100, 200])
def test_topic_recreated_while_its_archive_is_read_is_read_from_its_beginning(
    mode: str, records: int
) -> None:
    """Also if Kafka has the offset at which the old archive ends."""
    it = tiered(world_of(kafka_start=60, store=(0, 80)), mode)
    it.consumer.assign([at(0)])
    assert it.read(3) == [0, 1, 2]
    it.world.recreate(records)
    found = values(it, 600)
    old = [value for value in found if value.startswith(b"value")]
    assert old == [b"value-%d" % offset for offset in range(3, 3 + len(old))]
    assert found[len(old) :] == new_records(records)


@BOTH
@pytest.mark.parametrize("broker", [True, False])
def test_archive_retired_while_it_is_read_is_continued_by_the_new_topic(
    mode: str,
    broker: bool,  # noqa: FBT001 -- a parameter of the test
) -> None:
    mode = mode if broker else "TIERED_STORAGE_ONLY"
    it = tiered(world_of(kafka_start=60, store=(0, 80)), mode, broker=broker)
    it.consumer.assign([at(0)])
    assert it.read(3) == [0, 1, 2]
    it.world.recreate(200)
    it.world.retire()
    log = it.world.log(TP)
    log.upload(150)
    log.retain(100)
    found = values(it, 900)
    assert found[-1] == b"new-1-%d" % (199 if broker else 149)
    assert [value for value in found if value.startswith(b"new")] == new_records(
        200 if broker else 150
    )


@BOTH
def test_kafka_is_not_read_at_an_archives_end_before_a_broker_confirmed_the_topic(
    mode: str,
) -> None:
    it = tiered(world_of(kafka_start=60, store=(0, 80)), mode)
    it.consumer.assign([at(0)])
    assert it.read(3) == [0, 1, 2]
    it.world.brokers_away = True
    assert len(values(it)) >= 57
    it.world.recreate(200)
    it.world.brokers_away = False
    assert [value for value in values(it, 900) if value.startswith(b"new")] == new_records(200)


@BOTH
@NO_ID
def test_remembered_topic_id_does_not_lead_back_to_the_archive_of_a_deleted_topic(
    mode: str, answer: KafkaError | None
) -> None:
    """Kafka has refused the offset and answers about offsets, but not about topic ids."""
    it = tiered(world_of(kafka_start=60, end=150, store=(0, 80)), mode)
    it.consumer.assign([at(0)])
    assert it.read(600) == list(range(150))
    it.world.recreate(120)
    it.clients.topic_ids = lambda topics: dict.fromkeys(topics, answer)
    assert values(it, 20) == []
    it.clients.topic_ids = it.world.topic_ids
    assert values(it, 600) == new_records(120)


@ALL
@NO_ID
@pytest.mark.parametrize("start", [OFFSET_BEGINNING, -1001])
@pytest.mark.parametrize("away", [True, False])
def test_archive_of_the_new_topic_is_read_from_its_beginning_before_brokers_name_the_topic(
    mode: str,
    start: int,
    away: bool,  # noqa: FBT001 -- a parameter of the test
    answer: KafkaError | None,
) -> None:
    """The topic may be away already when the consumer begins to read the old archive."""
    it = tiered(world_of(kafka_start=60, store=(0, 80)), mode)
    it.world.committed[TP] = 0
    if away:
        it.clients.topic_ids = lambda topics: dict.fromkeys(topics, None)
    it.consumer.assign([at(start)])
    assert values(it, 3)
    assert it.count("records_total", source="kafka") == 0
    it.clients.topic_ids = lambda topics: dict.fromkeys(topics, answer)
    it.world.recreate(120)
    it.world.retire(uploads=True)
    found = values(it, 200)
    it.clients.topic_ids = it.world.topic_ids
    found += values(it, 300)
    assert [value for value in found if value.startswith(b"new")] == new_records(120)
    assert it.count("offset_resets_total") == 1


@BOTH
@NO_ID
def test_archive_of_a_deleted_topic_is_not_left_for_kafka_before_a_broker_names_the_topic(
    mode: str, answer: KafkaError | None
) -> None:
    it = tiered(world_of(kafka_start=60, store=(0, 80)), mode)
    it.consumer.assign([at(0)])
    assert it.read(3) == [0, 1, 2]
    it.clients.topic_ids = lambda topics: dict.fromkeys(topics, answer)
    it.world.recreate(120)
    assert not [value for value in values(it) if value.startswith(b"new")]
    it.clients.topic_ids = it.world.topic_ids
    assert values(it, 300) == new_records(120)


@ALL
@NO_ID
def test_archive_of_a_deleted_topic_stays_unread_while_the_asked_broker_does_not_know_the_new_one(
    mode: str, answer: KafkaError | None
) -> None:
    it = tiered(recreated(20), mode)
    it.consumer.assign([at(OFFSET_BEGINNING)])
    there = [] if mode == "TIERED_STORAGE_ONLY" else new_records(20)
    assert values(it) == there
    it.clients.topic_ids = lambda topics: dict.fromkeys(topics, answer)
    it.consumer.seek(at(OFFSET_BEGINNING))
    assert values(it) == []
    assert it.consumer.get_watermark_offsets(at(0)) == (0, len(there))
    it.clients.topic_ids = it.world.topic_ids
    it.world.retire(uploads=True)
    assert values(it, 300) == new_records(20)


@BOTH
def test_archive_of_another_cluster_is_not_read(mode: str, caplog: Any) -> None:  # noqa: ANN401
    caplog.set_level(logging.WARNING, "sidetier.consumer")
    world = world_of(end=20, store=(0, 80))
    world.topic_id, world.archived_cluster = None, "other"  # as before Kafka 2.8
    it = tiered(world, mode)
    it.consumer.assign([at(OFFSET_BEGINNING)])
    assert it.read(60) == list(range(20))
    assert it.count("records_total", source="store") == 0
    assert "tiered.storage.cluster.name" in caplog.text


@BOTH
@pytest.mark.parametrize("archived_id", ["0", None])
def test_archive_that_ends_above_the_log_is_read_once(mode: str, archived_id: str | None) -> None:
    """As after an unclean election, before the sidecar has moved the records to quarantine."""
    it = tiered(world_of(end=40, kafka_start=20, store=(0, 80)), mode)
    it.world.archived_id = archived_id
    log = it.world.log(TP)
    log.records |= {offset: b"discarded-%d" % offset for offset in range(40, 80)}
    it.consumer.assign([at(0)])
    found = it.read(400)
    assert it.consumer.get_watermark_offsets(at(0)) == (0, 40)
    if mode == "TIERED_STORAGE_PREFERRED":
        assert found == [*range(80), *range(20, 40)]
        assert it.count("offset_resets_total") == 1
    else:
        assert found == list(range(40))
    log.records = {offset: value for offset, value in log.records.items() if offset < 40}
    log.produce(10)
    assert it.read(100) == list(range(40, 50))


@BOTH
def test_archive_whose_topic_is_unknown_is_not_read_after_a_refusal(mode: str) -> None:
    world = world_of(end=40, kafka_start=20, store=(0, 30))
    world.archived_id = None
    it = tiered(world, mode)
    it.consumer.assign([at(500)])
    assert it.read(60) == list(range(20, 40))


def test_foreign_archive_is_confirmed_before_it_counts_as_foreign(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The topic may be created again, and its archive retired, between the two answers."""
    pool = Later()
    it = tiered(world_of(end=40, store=(0, 30)), "TIERED_STORAGE_PREFERRED", pool=pool)
    it.consumer.assign([at(OFFSET_BEGINNING)])
    assert it.consumer.poll(0.1) is None  # Kafka has answered, and the store has not
    it.world.recreate(200)
    it.world.retire(uploads=True)
    it.world.log(TP).retain(100)
    found: list[bytes] = []
    for _ in range(300):
        pool.run()
        found += values(it, 3)
    assert found == new_records(200)
    assert "archive_of_another_topic" not in caplog.text


@pytest.mark.parametrize("mode", [*READING, "TIERED_STORAGE_ONLY"])
def test_foreign_archive_that_no_broker_confirms_is_looked_up_again(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Later()
    it = tiered(world_of(end=40, store=(0, 30)), mode, pool=pool)
    it.world.recreate(20)
    it.consumer.assign([at(OFFSET_BEGINNING)])
    assert it.consumer.poll(0.1) is None  # Kafka has answered, and the store has not
    late = dict.fromkeys(["t"], KafkaError(KafkaError._TIMED_OUT))
    with monkeypatch.context() as patch:
        patch.setattr(it.clients, "topic_ids", lambda _: late)
        pool.run()
        assert values(it, 3) == []
    it.world.retire(uploads=True)
    found: list[bytes] = []
    for _ in range(300):
        pool.run()
        found += values(it, 3)
    assert found == new_records(20)


GROUPS = pytest.mark.parametrize("strategy", ["", "range", "cooperative-sticky"])
LONG = 900
"""Polls of more than twice `SILENT_SECONDS`."""


def at_kafka(mode: str, strategy: str = "", **config: object) -> Tiered:
    """Return a consumer that has read [0, 30) to the end, of a group if it has a strategy."""
    more = {"partition.assignment.strategy": strategy} if strategy else {}
    it = tiered(world_of(end=30, store=(0, 20)), mode, {**more, **config})
    if strategy:
        it.consumer.subscribe(["t"])
        it.kafka.rebalance([TP])
    else:
        it.consumer.assign([at(0)])
    assert it.read(100) == list(range(30))
    return it


@BOTH
@GROUPS
@pytest.mark.parametrize("records", [20, 30, 50])
def test_recreated_topic_whose_absence_kafkas_client_has_not_seen_is_read_with_a_new_client(
    mode: str, strategy: str, records: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Librdkafka #4898. The new topic may be shorter or longer than the deleted one."""
    caplog.set_level(logging.WARNING, "sidetier.consumer")
    it = at_kafka(mode, strategy)
    it.world.recreate(records, seen=False)
    began = it.world.now
    found: list[bytes] = []
    while len(found) < records and it.world.now < began + 2 * SILENT_SECONDS + 5:
        found += values(it, 1)
    assert found == new_records(records)
    assert values(it) == []
    assert [client.closed for client in it.clients.opened] == [True, False]
    assert it.world.committed.get(TP) in {None, records}
    assert caplog.text.count("consumer.kafka_client_replaced recreated=t") == 1
    assert it.count("kafka_clients_replaced_total") == 1
    it.world.log(TP).produce(3)
    assert values(it) == new_records(records + 3, records)
    it.consumer.commit(asynchronous=False)
    assert it.world.committed[TP] == records + 3


@BOTH
@GROUPS
def test_silent_partition_keeps_kafkas_client_while_its_topic_is_the_same(
    mode: str, strategy: str
) -> None:
    it = at_kafka(mode, strategy)
    asked = []

    def topic_ids(topics: Collection[str]) -> dict[str, str | KafkaError | None]:
        asked.append(it.world.now)
        return it.world.topic_ids(topics)

    it.clients.topic_ids = topic_ids
    began = it.world.now
    while it.world.now < began + 20 * SILENT_SECONDS:
        assert values(it, 10) == []
    assert 19 <= len(asked) <= 21
    it.world.brokers_away = True
    assert values(it, LONG) == []
    assert len(it.clients.opened) == 1


@BOTH
@pytest.mark.parametrize("first", [None, KafkaError(KafkaError._TIMED_OUT)])
def test_client_is_kept_if_the_topic_was_not_known_when_it_was_assigned(
    mode: str, first: KafkaError | None
) -> None:
    """The topic did not exist yet, or brokers answered late. Later answers are compared."""
    it = tiered(world_of(end=30, store=(0, 20)), mode)
    it.clients.topic_ids = lambda topics: dict.fromkeys(topics, first)
    it.consumer.assign([at(25)])
    values(it)
    it.clients.topic_ids = it.world.topic_ids
    values(it, LONG)
    assert len(it.clients.opened) == 1
    it.world.recreate(20, seen=False)
    assert values(it, LONG) == new_records(20)
    assert len(it.clients.opened) == 2


@BOTH
def test_topic_recreated_while_its_archive_is_read_needs_a_new_client_for_the_rest(
    mode: str,
) -> None:
    """Its partitions were assigned to Kafka's client all the time, and are fetched first now."""
    it = tiered(world_of(kafka_start=60, store=(0, 80)), mode)
    it.consumer.assign([at(0)])
    assert it.read(3) == [0, 1, 2]
    it.world.recreate(200, seen=False)
    found = values(it, 2 * LONG)
    assert [value for value in found if value.startswith(b"new")] == new_records(200)
    assert len(it.clients.opened) == 2


def test_records_from_the_archive_do_not_show_that_kafkas_client_fetches_the_new_topic() -> None:
    """Librdkafka #4898: it fetches nothing of the new topic, whose records the archive has."""
    pool = Later()
    it = tiered(world_of(end=30, store=(0, 20)), "TIERED_STORAGE_PREFERRED", pool=pool)
    it.consumer.assign([at(OFFSET_BEGINNING)])
    assert values(it, 1) == []  # the store has not answered yet
    it.world.recreate(20, seen=False)
    it.world.retire(uploads=True)
    found: list[bytes] = []
    for produced in (20, 23):
        it.world.log(TP).produce(produced - it.world.log(TP).end)
        for _ in range(LONG):
            pool.run()
            found += values(it, 1)
        assert found == new_records(produced)


@BOTH
@GROUPS
def test_client_that_has_noticed_the_new_topic_is_kept(mode: str, strategy: str) -> None:
    """It was refused and reset, and has read the new topic: the partition is just quiet now."""
    it = at_kafka(mode, strategy)
    it.world.recreate(20)
    assert values(it) == new_records(20)
    assert values(it, LONG) == []
    it.world.log(TP).produce(3)
    assert values(it, LONG) == new_records(23, 20)
    assert len(it.clients.opened) == 1


def test_other_partitions_continue_at_their_positions_with_the_new_client() -> None:
    """Paused partitions stay paused."""
    world = world_of(end=30, store=(0, 20))
    world.log(OTHER).produce(40)
    quiet, stored = TopicPartition("u", 0), TopicPartition("u", 1)
    world.log(quiet).produce(50)
    world.log(stored).produce(60)
    world.log(stored).upload(60)
    it = tiered(world, "KAFKA_PREFERRED")
    it.clients.topic_ids = lambda topics: {
        topic: world.topic_id if topic == "t" else "u" for topic in topics
    }
    it.consumer.assign([at(0), at(0, OTHER), at(0, quiet), at(0, stored)])
    assert len(it.read(300)) == 180
    it.consumer.pause([at(0, OTHER)])
    logs = {tp: world.log(tp) for tp in (quiet, stored)}
    world.recreate(20, seen=False)
    world.logs |= logs  # the other topic stays
    for log in logs.values():
        log.produce(5)
    found = [(one.topic(), one.partition(), one.offset()) for one in it.messages(2 * LONG)]
    assert sorted(found) == [
        *(("t", 0, offset) for offset in range(20)),
        *(("u", 0, offset) for offset in range(50, 55)),
        *(("u", 1, offset) for offset in range(60, 65)),
    ]
    it.consumer.resume([at(0, OTHER)])
    assert sorted(values(it)) == sorted(new_records(20))


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_offset_that_the_application_has_sought_in_the_new_topic_stays(reset: str) -> None:
    it = at_kafka("KAFKA_PREFERRED", **{"auto.offset.reset": reset})
    it.world.recreate(50, seen=False)
    it.consumer.seek(at(10))
    assert values(it, LONG) == new_records(50, 10)
    assert it.count("offset_resets_total") == 0


def test_position_in_the_archive_of_the_deleted_topic_is_not_committed_for_the_new_one() -> None:
    """Another partition has shown that the topic was created again."""
    world = world_of(kafka_start=60, store=(0, 80))
    world.log(OTHER).produce(30)
    it = tiered(world, "TIERED_STORAGE_PREFERRED")
    it.consumer.assign([at(0), at(0, OTHER)])
    it.consumer.pause([at(0)])
    assert it.read(100) == list(range(30))
    world.recreate(20, seen=False)
    assert values(it, LONG) == new_records(20)
    it.consumer.resume([at(0)])
    while (found := values(it, 1)) != [b"new-1-0"]:
        assert not found or found[0].startswith(b"value")
        assert world.committed.get(TP) is None
        assert TP not in it.kafka.stored
    assert values(it) == new_records(20, 1)
    it.consumer.commit(asynchronous=False)
    assert world.committed[TP] == 20


def test_answer_without_an_id_does_not_let_a_position_in_the_deleted_topic_be_committed() -> None:
    it = tiered(world_of(kafka_start=60, store=(0, 80)), "TIERED_STORAGE_PREFERRED")
    it.consumer.assign([at(0)])
    assert it.read(3) == [0, 1, 2]
    it.world.recreate(20)
    kafka = it.consumer._sides.kafka
    assert kafka is not None
    kafka.identities(["t"])
    it.clients.topic_ids = lambda topics: dict.fromkeys(topics, None)
    kafka.identities(["t"])
    assert it.read(30)
    assert it.kafka.stored.get(TP, 0) <= 3


def test_answer_of_a_broker_that_lags_behind_delays_commits_only() -> None:
    it = at_kafka("KAFKA_PREFERRED", "range")
    it.consumer.commit(asynchronous=False)
    kafka = it.consumer._sides.kafka
    assert kafka is not None
    it.clients.topic_ids = lambda topics: dict.fromkeys(topics, "deleted")
    kafka.identities(["t"])
    it.clients.topic_ids = it.world.topic_ids
    it.world.log(TP).produce(5)
    assert it.read() == list(range(30, 35))
    assert it.kafka.stored[TP] == 30
    assert it.read(LONG) == []
    assert it.kafka.stored[TP] == 35
    assert len(it.clients.opened) == 1


@pytest.mark.parametrize(
    ("strategy", "step"),
    [
        *product([""], ["close", "assign", "pause", "store_offsets"]),
        *product(["range", "cooperative-sticky"], ["close", "subscribe", "store_offsets"]),
    ],
)
def test_interrupted_replacement_of_kafkas_client_is_finished_by_the_next_poll(
    strategy: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = at_kafka("KAFKA_PREFERRED", strategy)
    it.world.recreate(20, seen=False)

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FakeKafka, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            values(it, LONG)
    if strategy:  # the member that could not leave is gone
        it.world.left = it.world.left or [TP]
    assert values(it, LONG) == new_records(20)


def test_client_that_cannot_be_opened_is_tried_again_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    it = at_kafka("KAFKA_PREFERRED")
    it.world.recreate(20, seen=False)

    def refuse() -> None:
        raise KafkaException(KafkaError(KafkaError._CRIT_SYS_RESOURCE, "no threads"))

    with monkeypatch.context() as patch:
        patch.setattr(it.clients, "open_consumer", refuse)
        assert values(it, 2 * LONG) == []
    assert 2 <= caplog.text.count("consumer.kafka_client_not_replaced") <= 8
    assert values(it, LONG) == new_records(20)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_callback_may_poll_while_the_client_is_replaced(strategy: str) -> None:
    it = at_kafka("KAFKA_PREFERRED", strategy)
    polled: list[Message | None] = []

    def polls(consumer: TieredConsumer, _: object) -> None:
        if not polled:
            polled.append(consumer.poll(0))

    it.consumer.subscribe(["t"], on_revoke=polls)
    it.world.recreate(20, seen=False)
    assert values(it, LONG) == new_records(20)
    assert polled == [None]
    it.consumer.close()
    assert [client.closed for client in it.clients.opened] == [True, True]


def test_callback_that_closes_the_consumer_leaves_no_member_in_the_group() -> None:
    it = at_kafka("KAFKA_PREFERRED", "range")

    def closes(consumer: TieredConsumer, _: object) -> None:
        if not it.consumer._closing.is_set():
            consumer.close()

    it.consumer.subscribe(["t"], on_revoke=closes)
    it.world.recreate(20, seen=False)
    with pytest.raises(RuntimeError, match="closed"):
        values(it, LONG)
    assert [client.closed for client in it.clients.opened] == [True, True]
    assert it.clients.opened[1].group is False


def test_kafka_only_is_kafkas_client_alone() -> None:
    it = tiered(world_of(end=30), "KAFKA_ONLY")
    it.consumer.assign([at(0)])
    assert it.read(100) == list(range(30))
    it.world.recreate(20, seen=False)
    assert values(it, LONG) == []
    assert len(it.clients.opened) == 1


def test_other_credentials_are_given_to_all_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[str, str]] = []
    monkeypatch.setattr(
        FakeKafka, "set_sasl_credentials", lambda _, *pair: given.append(pair), raising=False
    )
    it = at_kafka("KAFKA_PREFERRED")
    it.consumer.set_sasl_credentials("me", "new")
    assert given == it.clients.credentials == [("me", "new")]


def test_answer_about_the_new_topic_drops_what_was_known_of_the_deleted_one() -> None:
    deleted, new = Identity("a", "c"), Identity("b", "c")
    partition = Partition(TP, 0, 1)
    archive = Archive(OffsetRange(Offset(0), Offset(80)), identity=deleted, verified=True)
    _learn(partition, Answer(Question(TP, 1, store=True), archive=archive, identity=deleted))
    assert (partition.archive, partition.recreated) == (archive, False)
    now = OffsetRange(Offset(0), Offset(20))
    _learn(partition, Answer(Question(TP, 1, kafka=True), kafka=now, identity=new))
    assert (partition.archive, partition.kafka, partition.recreated) == (None, now, True)


def test_archive_of_another_cluster_does_not_tell_which_topic_a_partition_is_of() -> None:
    partition = Partition(TP, 0, 1, identity=Identity("a", "c"))
    elsewhere = Archive(identity=Identity("a", "other"), foreign=True)
    here = Identity(None, "c")  # the brokers do not know the topic
    _learn(partition, Answer(Question(TP, 1, store=True), archive=elsewhere, identity=here))
    assert (partition.identity, partition.recreated) == (Identity("a", "c"), False)


@BOTH
def test_archive_without_topic_ids_is_left_for_kafka_without_topic_ids(mode: str) -> None:
    """As before Kafka 2.8."""
    world = world_of(kafka_start=60, store=(0, 80))
    world.topic_id, world.archived_id, world.archived_cluster = None, None, "fake"
    it = tiered(world, mode)
    it.consumer.assign([at(0)])
    assert it.read(100) == list(range(100))

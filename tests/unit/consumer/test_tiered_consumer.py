"""The face of the consumer, over fakes of both sides."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import confluent_kafka
import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.error import ConsumeError, ValueDeserializationError
from confluent_kafka.serialization import StringDeserializer

from sidetier import TieredConsumer
from sidetier.archive.reader import Failed, Taken
from sidetier.consumer.errors import GapError
from sidetier.consumer.kafka_side import Callbacks
from sidetier.segments.errors import AccessDeniedError, StoreUnavailableError
from sidetier.segments.offsets import Offset
from tests.harness.tiered import OTHER, TP, Tiered, at, tiered, world_of

STORED = (0, 80)
MISTAKES: Final[list[Callable[[Any], object]]] = [
    lambda consumer: consumer.assign([at(3), at(3)]),
    lambda consumer: consumer.assign("t"),
    lambda consumer: consumer.assign([("t", 0)]),
    lambda consumer: consumer.incremental_assign([at(3), at(4)]),
    lambda consumer: consumer.subscribe(["t"], on_assign=3),
    lambda consumer: consumer.subscribe(["t"], on_lost="f"),
    lambda consumer: consumer.store_offsets(),
    lambda consumer: consumer.store_offsets(message=Message("t", 0, 3), offsets=[at(3)]),
]


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_it_has_every_method_of_confluent_kafka_s_consumers() -> None:
    theirs = public(confluent_kafka.Consumer) | public(confluent_kafka.DeserializingConsumer)
    assert theirs <= public(TieredConsumer)
    for name in ("__enter__", "__exit__", "__iter__"):
        assert hasattr(TieredConsumer, name)


def of_the_group(mode: str = "TIERED_STORAGE_PREFERRED", *, auto_store: bool = True) -> Tiered:
    config = {"enable.auto.offset.store": auto_store}
    it = tiered(world_of(kafka_start=60, store=(0, 80)), mode, config)
    it.world.log(OTHER).produce(10)
    return it


def test_callbacks_are_given_the_tiered_consumer_and_may_choose_where_to_begin() -> None:
    it = of_the_group()
    given: list[object] = []

    def on_assign(consumer: TieredConsumer, partitions: list[TopicPartition]) -> None:
        given.append(consumer)
        for one in partitions:
            one.offset = 70
        consumer.assign(partitions)

    it.consumer.subscribe(["t"], on_assign=on_assign)
    it.kafka.rebalance([TP])
    assert it.read(20)[:2] == [70, 71]
    assert given == [it.consumer]


def test_a_callback_that_fails_leaves_the_partitions_assigned() -> None:
    it = of_the_group()

    def on_assign(_: object, __: object) -> None:
        raise ValueError("mine")

    it.consumer.subscribe(["t"], on_assign=on_assign)
    it.kafka.rebalance([TP])
    with pytest.raises(ValueError, match="mine"):
        it.consumer.poll(0.1)
    assert it.consumer.assignment() == [TopicPartition("t", 0)]


@pytest.mark.parametrize("mode", ["KAFKA_ONLY", "KAFKA_PREFERRED"])
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_what_an_interruption_takes_with_it_is_read_again(mode: str, strategy: str) -> None:
    """confluent-kafka drops the messages, and the errors, that it was about to return."""
    start = 60 if mode == "KAFKA_ONLY" else 0
    world = world_of(kafka_start=60, store=(0, 80))
    world.log(OTHER).produce(10)
    it = tiered(world, mode, {"partition.assignment.strategy": strategy})
    it.consumer.subscribe(["t"])
    it.kafka.rebalance([TP, OTHER])
    if mode == "KAFKA_ONLY":
        it.world.committed.update({TP: 60})

    def mine() -> None:
        raise ValueError("mine")

    seen: dict[int, list[int]] = {0: [], 1: []}
    for polls in range(200):
        if polls % 9 < 3:
            it.kafka.queue.append(mine)
        with suppress(ValueError):
            for message in it.consumer.consume(3, 0.1):
                seen[int(message.partition() or 0)].append(int(message.offset() or 0))
    assert seen == {0: list(range(start, 100)), 1: list(range(10))}


@pytest.mark.parametrize("event", ["on_assign", "on_revoke"])
def test_what_a_callback_raises_comes_once_kafka_s_client_has_returned(event: str) -> None:
    """Within its `consume` it would drop messages, and never close."""
    it = of_the_group("KAFKA_ONLY")

    def fail(_: object, __: object) -> None:
        raise ValueError("mine")

    callbacks: dict[str, Any] = {event: fail}
    it.consumer.subscribe(["t"], **callbacks)
    it.kafka.callbacks[event](it.kafka, [])  # which raises nothing
    with pytest.raises(ValueError, match="mine"):
        it.consumer.poll(0.1)
    it.consumer.poll(0.1)
    it.kafka.callbacks[event](it.kafka, [])
    with pytest.raises(ValueError, match="mine"):
        it.consumer.close()
    assert it.kafka.closed
    assert it.reader.closed


def test_the_callbacks_of_a_configuration_never_raise_within_kafka_s_client() -> None:
    callbacks, heard = Callbacks(), []

    def hear(*arguments: object) -> None:
        heard.append(arguments)
        raise ValueError(len(heard))

    names = ("error_cb", "stats_cb", "throttle_cb", "on_commit")
    given = dict.fromkeys(names, hear) | {"oauth_cb": hear, "group.id": "g"}
    config = callbacks.guarded(given)
    assert config["oauth_cb"] is hear
    assert config["group.id"] == "g"
    for name in names:
        config[name](name, 1)
    assert heard == [(name, 1) for name in names]
    with pytest.raises(ValueError, match="1"):
        callbacks.check()
    callbacks.check()


def test_an_error_callback_that_raises_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store fails for one partition right behind records of another one."""

    def error_cb(_: KafkaError) -> None:
        raise ValueError("mine")

    it = tiered(world_of(store=(0, 100)), "TIERED_STORAGE_PREFERRED", {"error_cb": error_cb})
    it.world.log(OTHER).produce(10)
    it.world.log(OTHER).store_end = 10
    take = it.reader.take

    def failing(most: int, timeout: float) -> list[Taken]:
        failed = Failed(OTHER, Offset(0), StoreUnavailableError("away"))
        return [*take(most, timeout), failed]

    it.consumer.assign([at(0), at(0, OTHER)])
    monkeypatch.setattr(it.reader, "take", failing)
    seen: dict[int, list[int]] = {0: [], 1: []}
    raised = 0
    for _ in range(300):
        try:
            for message in it.consumer.consume(10, 0.1):
                seen[int(message.partition() or 0)].append(int(message.offset() or 0))
        except ValueError:
            raised += 1
    assert raised
    assert seen == {0: list(range(100)), 1: list(range(10))}


@pytest.mark.parametrize(("own", "called"), [(True, "lost"), (False, "revoked")])
def test_lost_partitions_are_told_as_lost_or_else_as_revoked(own: bool, called: str) -> None:  # noqa: FBT001
    it = of_the_group()
    told: list[str] = []
    on_lost = {"on_lost": lambda _, __: told.append("lost")} if own else {}
    it.consumer.subscribe(["t"], on_revoke=lambda _, __: told.append("revoked"), **on_lost)
    it.kafka.rebalance([TP])
    it.kafka.rebalance([TP], "on_lost")
    it.consumer.poll(0.1)
    assert told == [called]
    assert it.consumer.assignment() == []
    assert not it.reader.readings


def test_what_was_handed_out_is_what_a_commit_commits() -> None:
    it = of_the_group()
    it.consumer.subscribe(["t"])
    it.kafka.rebalance([TP])
    assert it.read(6)[-1] == 5
    it.consumer.commit(asynchronous=False)
    assert it.world.committed == {TP: 6}
    message = it.consumer.poll(1)
    assert message is not None
    it.consumer.commit(message=message, asynchronous=False)
    assert it.world.committed == {TP: 7}


def test_a_rebalance_commits_nothing_that_was_not_returned() -> None:
    it = of_the_group()
    it.consumer.subscribe(["t"])
    it.kafka.rebalance([TP])
    assert len(it.consumer.consume(10, 1)) > 0
    seen = it.consumer.position([at(OFFSET_INVALID)])[0].offset
    it.kafka.rebalance([TP], "on_revoke")
    it.kafka.rebalance([OTHER])
    for _ in range(5):
        it.world.now += 0.1
        it.consumer.consume(3, 0.05)
    assert it.world.committed[TP] <= seen + 3
    assert it.world.committed[TP] >= seen


def test_offsets_are_stored_by_hand_where_that_is_wanted() -> None:
    it = of_the_group(auto_store=False)
    it.consumer.subscribe(["t"])
    it.kafka.rebalance([TP])
    first = it.messages(5)[0]
    with pytest.raises(KafkaException, match="no offset"):
        it.consumer.commit(asynchronous=False)
    it.consumer.store_offsets(message=first)
    it.consumer.commit(asynchronous=False)
    assert it.world.committed == {TP: 1}
    with pytest.raises(ValueError, match="mutually exclusive"):
        it.consumer.store_offsets(message=first, offsets=[at(3)])


def test_offsets_cannot_be_stored_by_hand_beside_the_automatic() -> None:
    it = of_the_group()
    it.consumer.assign([at(0)])
    with pytest.raises(KafkaException, match=r"enable\.auto\.offset\.store"):
        it.consumer.store_offsets(offsets=[at(3)])


def test_stored_offsets_outlive_an_assignment_that_is_made_anew() -> None:
    """Kafka refuses the offset, and takes another only with a new assignment of an eager group."""
    it = of_the_group("KAFKA_PREFERRED", auto_store=False)
    it.consumer.subscribe(["t"])
    it.world.committed.update({TP: 50, OTHER: 0})
    it.kafka.rebalance([TP, OTHER])
    other = next(one for one in it.messages(30) if one.partition() == 1)
    it.consumer.store_offsets(message=other)
    it.read(80)
    assert it.kafka.stored == {OTHER: int(other.offset() or 0) + 1}


def test_the_position_is_what_comes_next_once_something_came() -> None:
    it = of_the_group()
    it.consumer.assign([at(10)])
    assert it.consumer.position([at(0)])[0].offset == OFFSET_INVALID
    assert it.read(3) == [10, 11, 12]
    assert it.consumer.position([at(0), at(0, OTHER)])[0].offset == 13
    it.consumer.seek(at(5))
    assert it.consumer.position([at(0)])[0].offset == OFFSET_INVALID
    assert it.read(2) == [5, 6]


@pytest.mark.parametrize("where", [20, 90])
def test_a_pause_drops_what_is_at_hand_and_a_resume_reads_it_again(where: int) -> None:
    it = tiered(world_of(store=STORED), "TIERED_STORAGE_PREFERRED")
    it.consumer.assign([at(where)])
    assert it.read(3) == [where, where + 1, where + 2]
    it.consumer.pause([at(0)])
    assert it.read(5) == []
    it.consumer.resume([at(0)])
    assert it.read(3) == [where + 3, where + 4, where + 5]


def test_a_seek_to_what_is_not_assigned_is_refused() -> None:
    it = of_the_group()
    with pytest.raises(KafkaException) as raised:
        it.consumer.seek(at(3))
    assert raised.value.args[0].code() == KafkaError._STATE


def test_partitions_come_and_go_one_by_one() -> None:
    it = tiered(world_of(store=STORED), "TIERED_STORAGE_ONLY", broker=False)
    it.consumer.incremental_assign([at(0)])
    with pytest.raises(KafkaException, match="already part"):
        it.consumer.incremental_assign([at(0)])
    assert it.consumer.assignment() == [TopicPartition("t", 0)]
    it.consumer.incremental_unassign([at(0)])
    with pytest.raises(KafkaException):
        it.consumer.incremental_unassign([at(0)])
    assert it.read(3) == []


def test_bounds_and_times_are_those_of_what_the_mode_reads() -> None:
    bounds = {
        "KAFKA_ONLY": (60, 100),
        "KAFKA_PREFERRED": (20, 100),
        "TIERED_STORAGE_PREFERRED": (20, 100),
        "TIERED_STORAGE_ONLY": (20, 80),
    }
    for mode, both in bounds.items():
        it = tiered(world_of(kafka_start=60, store=(20, 80)), mode)
        if mode == "KAFKA_ONLY":
            it.reader.world.logs[TP].store_end = 20
        assert it.consumer.get_watermark_offsets(at(0)) == both
        assert it.consumer.offsets_for_times([at(0)])[0].offset == both[0]
        assert it.consumer.offsets_for_times([at(70)])[0].offset == 70
        assert it.consumer.offsets_for_times([at(500)])[0].offset == OFFSET_END


@pytest.mark.parametrize(
    ("mode", "cached", "bounds"),
    [
        ("KAFKA_ONLY", None, (OFFSET_INVALID, OFFSET_INVALID)),
        ("KAFKA_ONLY", 90, (OFFSET_INVALID, 90)),
        ("KAFKA_PREFERRED", None, (20, OFFSET_INVALID)),
        ("TIERED_STORAGE_PREFERRED", 90, (20, 90)),
        ("TIERED_STORAGE_PREFERRED", 70, (20, 80)),
        ("TIERED_STORAGE_ONLY", 90, (20, 80)),
    ],
)
def test_of_cached_bounds_only_what_is_known_is_told(
    mode: str, cached: int | None, bounds: tuple[int, int]
) -> None:
    stored = (0, 0) if mode == "KAFKA_ONLY" else (20, 80)
    it = tiered(world_of(kafka_start=60, store=stored), mode)
    if cached is not None:
        it.kafka.cached[TP] = cached
    assert it.consumer.get_watermark_offsets(at(0), cached=True) == bounds


@pytest.mark.parametrize(("mode", "end"), [("KAFKA_PREFERRED", 100), ("TIERED_STORAGE_ONLY", 80)])
def test_the_latest_as_a_timestamp_is_the_end(mode: str, end: int) -> None:
    it = tiered(world_of(kafka_start=60, store=(20, 80)), mode)
    assert it.consumer.offsets_for_times([at(OFFSET_END)])[0].offset == end


def test_arguments_that_are_wrong_are_refused_as_by_confluent_kafka() -> None:
    it = of_the_group(auto_store=False)
    real = confluent_kafka.Consumer(
        {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0}
        | {"enable.auto.offset.store": False}
    )
    for mistake in MISTAKES:
        refused: list[tuple[type, object]] = []
        for consumer in (real, it.consumer):
            with pytest.raises((TypeError, ValueError, KafkaException)) as raised:
                mistake(consumer)
            error = raised.value.args[0]
            code = error.code() if isinstance(error, KafkaError) else None
            refused.append((raised.type, code))
        assert refused[0] == refused[1]
    real.close()


def test_the_assignment_has_the_offsets_that_were_given() -> None:
    it = of_the_group()
    it.consumer.assign([at(7), at(OFFSET_END, OTHER)])
    assert [one.offset for one in it.consumer.assignment()] == [7, OFFSET_END]


def test_arrow_batches_come_from_both_sides_in_one_schema() -> None:
    it = tiered(world_of(store=STORED), "TIERED_STORAGE_PREFERRED")
    it.consumer.assign([at(0)])
    rows: list[dict[str, Any]] = []
    schemas = set()
    while len(rows) < 100:
        for batch in it.consumer.consume_arrow(7, 1):
            assert (batch.topic, batch.partition) == TP
            assert batch.records.num_rows <= 7
            schemas.add(str(batch.records.schema))
            rows += batch.records.to_pylist()
    assert [row["offset"] for row in rows] == list(range(100))
    assert [row["value"] for row in rows] == [b"value-%d" % offset for offset in range(100)]
    assert len(schemas) == 1


def test_an_error_is_raised_by_arrow_and_iteration_after_what_came_before() -> None:
    it = tiered(world_of(store=STORED), "TIERED_STORAGE_ONLY", broker=False)
    it.world.log(TP).gaps.append((20, 30))
    it.consumer.assign([at(0)])
    rows: list[int] = []

    def read_all() -> None:
        while True:
            rows.extend(one.records.num_rows for one in it.consumer.consume_arrow(50, 5))

    with pytest.raises(GapError) as raised:
        read_all()
    assert sum(rows) == 20
    assert (raised.value.first, raised.value.end) == (20, 30)
    it.consumer.seek(at(15))
    seen: list[int | None] = []
    with pytest.raises(KafkaException):
        seen.extend(message.offset() for message in it.consumer)
    assert seen == list(range(15, 20))


def test_iteration_ends_with_close() -> None:
    it = tiered(world_of(store=STORED), "TIERED_STORAGE_ONLY", broker=False)
    it.consumer.assign([at(0)])
    seen = []
    for message in it.consumer:
        seen.append(message.offset())
        if len(seen) == 5:
            it.consumer.close()
    assert seen == [0, 1, 2, 3, 4]


class Poisoned:
    """Refuses one value."""

    def __call__(self, value: bytes | None, context: object) -> str:
        del context
        if value == b"value-3":
            raise ValueError("poison")
        return (value or b"").decode()


@pytest.mark.parametrize("how", ["poll", "consume"])
def test_a_value_that_cannot_be_deserialized_is_raised_alone_and_passed(how: str) -> None:
    config = {"value.deserializer": Poisoned(), "key.deserializer": StringDeserializer()}
    it = tiered(world_of(store=STORED), "TIERED_STORAGE_PREFERRED", config)
    it.consumer.assign([at(0)])
    seen: list[object] = []
    refused: list[Message | None] = []
    positions: list[int] = []
    while len(seen) < 20:
        try:
            found = [it.consumer.poll(1)] if how == "poll" else [*it.consumer.consume(5, 1)]
        except ValueDeserializationError as error:
            refused.append(error.kafka_message)
            positions.append(it.consumer.position([at(0)])[0].offset)
            continue
        seen += [message.value() for message in found if message is not None]
    assert [message.offset() for message in refused if message is not None] == [3]
    assert positions == [4]
    wanted = [f"value-{offset}" for offset in range(25) if offset != 3]
    assert seen == wanted[: len(seen)]


def test_errors_are_raised_where_there_are_deserializers() -> None:
    config = {"value.deserializer": Poisoned()}
    it = tiered(world_of(store=STORED), "TIERED_STORAGE_ONLY", config, broker=False)
    it.world.log(TP).gaps.append((0, 30))
    it.consumer.assign([at(0)])
    with pytest.raises(ConsumeError):
        it.messages(50)


def test_a_closed_consumer_says_so() -> None:
    it = of_the_group()
    it.consumer.close()
    it.consumer.close()
    assert it.kafka.closed
    assert it.reader.closed
    for call in (it.consumer.poll, it.consumer.assignment, it.consumer.commit):
        with pytest.raises(RuntimeError, match="closed"):
            call()


def test_close_from_another_thread_interrupts_a_poll() -> None:
    it = tiered(world_of(store=STORED), "TIERED_STORAGE_ONLY", broker=False)
    it.consumer.assign([at(80)])
    ended: list[BaseException] = []

    def poll() -> None:
        try:
            it.consumer.poll()
        except RuntimeError as error:
            ended.append(error)

    thread = threading.Thread(target=poll)
    thread.start()
    it.consumer.close()
    thread.join(10)
    assert not thread.is_alive()
    assert [str(error) for error in ended] == ["Consumer closed"]


def test_close_revokes_and_commits_what_was_handed_out() -> None:
    it = of_the_group()
    told: list[int] = []
    it.consumer.subscribe(["t"], on_revoke=lambda _, partitions: told.append(len(partitions)))
    it.kafka.rebalance([TP])
    assert it.read(4)[-1] == 3
    it.consumer.close()
    assert told == [1]
    assert it.world.committed == {TP: 4}


def test_the_store_away_is_told_to_the_error_callback_and_waited_for() -> None:
    told: list[KafkaError] = []
    it = tiered(
        world_of(store=STORED),
        "TIERED_STORAGE_ONLY",
        {"error_cb": told.append},
        broker=False,
    )
    it.world.store_error = StoreUnavailableError("away")
    it.consumer.assign([at(0)])
    assert it.read(30) == []
    assert {error.code() for error in told} == {KafkaError._TRANSPORT}
    it.world.store_error = None
    it.world.now += 60
    assert it.read(10)[0] == 0


@pytest.mark.parametrize("mode", ["KAFKA_PREFERRED", "TIERED_STORAGE_PREFERRED"])
def test_kafka_is_read_where_the_store_is_away_and_kafka_has_the_offset(mode: str) -> None:
    it = tiered(world_of(kafka_start=60, store=(0, 80)), mode)
    it.world.store_error = StoreUnavailableError("away")
    it.consumer.assign([at(70)])
    assert it.read(60) == list(range(70, 100))


def test_a_store_that_refuses_is_an_error_of_the_application() -> None:
    it = tiered(world_of(store=STORED), "TIERED_STORAGE_ONLY", broker=False)
    it.world.store_error = AccessDeniedError("expired")
    it.consumer.assign([at(0)])
    error = it.error().error()
    assert error is not None
    assert error.code() == KafkaError._AUTHENTICATION
    assert "expired" in error.str()
    it.world.store_error = None
    it.world.now += 60
    found = [it.consumer.poll(0.1) for _ in range(40)]
    assert 0 in {one.offset() for one in found if one is not None and one.error() is None}


@pytest.mark.parametrize(
    ("mode", "told"), [("TIERED_STORAGE_ONLY", 1), ("TIERED_STORAGE_PREFERRED", 0)]
)
def test_where_nothing_is_stored_the_place_is_told_once(
    mode: str, told: int, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[KafkaError] = []
    it = tiered(world_of(), mode, {"error_cb": errors.append})
    it.consumer.assign([at(OFFSET_BEGINNING)])
    for _ in range(60):
        it.consumer.poll(1)
    place = "memory://archive/c/t-0/"
    lines = [record.getMessage() for record in caplog.records]
    assert lines.count(f"consumer.nothing_stored partition=t-0 where={place}") == 1
    assert [place in error.str() for error in errors] == [True] * told
    it.world.log(TP).store_end, it.world.now = 80, it.world.now + 20
    assert len(it.read(100)) == (80 if mode == "TIERED_STORAGE_ONLY" else 40)


def test_the_end_of_the_archive_is_told_where_that_is_wanted() -> None:
    config = {"enable.partition.eof": True}
    it = tiered(world_of(store=STORED), "TIERED_STORAGE_ONLY", config, broker=False)
    it.consumer.assign([at(78)])
    error = it.error()
    assert error.error().code() == KafkaError._PARTITION_EOF  # type: ignore[union-attr]
    assert error.offset() == 80


@pytest.mark.parametrize(
    "method", ["commit", "committed", "list_topics", "memberid", "subscribe", "unsubscribe"]
)
def test_what_needs_a_broker_is_refused_without_one(method: str) -> None:
    it = tiered(world_of(store=STORED), "TIERED_STORAGE_ONLY", broker=False)
    arguments: list[Any] = [[]] if method in ("committed", "subscribe") else []
    with pytest.raises(KafkaException, match=rf"{method}\(\) needs bootstrap\.servers"):
        getattr(it.consumer, method)(*arguments)


def test_kafka_s_client_is_served_while_the_store_hands_out() -> None:
    it = tiered(world_of(1000, store=(0, 1000)), "TIERED_STORAGE_PREFERRED")
    it.consumer.assign([at(0)])
    before = it.kafka.served
    for _ in range(100):
        it.consumer.poll(0)
        it.world.now += 0.03
    assert it.kafka.served - before >= 50


def test_neither_side_starves_the_other() -> None:
    world = world_of(3000, store=(0, 3000))
    world.log(OTHER).produce(3000)
    it = tiered(world, "TIERED_STORAGE_PREFERRED")
    it.consumer.assign([at(0), at(0, OTHER)])
    counts = {0: 0, 1: 0}
    for _ in range(400):
        for message in it.consumer.consume(10, 0.1):
            counts[int(message.partition() or 0)] += 1
    assert min(counts.values()) > 0.1 * max(counts.values()), counts


def test_what_kafka_hands_out_of_a_place_that_was_left_is_dropped() -> None:
    it = tiered(world_of(), "KAFKA_PREFERRED")
    it.consumer.assign([at(50)])
    it.consumer.poll(0)
    late = [Message("t", 0, offset, None, b"late") for offset in (3, 4)]
    late.append(Message("t", 7, 60, None, b"of nobody"))
    it.kafka.errors += late
    found = it.messages(60)
    assert b"late" not in {message.value() for message in found}
    assert {message.partition() for message in found} == {0}


def test_a_refusal_of_a_place_that_was_left_moves_nothing() -> None:
    it = tiered(world_of(kafka_start=20, store=(0, 80)), "KAFKA_PREFERRED")
    it.consumer.assign([at(50)])
    assert it.read(2) == [50, 51]
    error = KafkaError(KafkaError._AUTO_OFFSET_RESET, "long ago")
    it.kafka.errors.append(Message(topic="t", partition=0, offset=10, error=error))
    assert it.read(60) == list(range(52, 100))
    assert it.count("misses_total", source="kafka") == 0

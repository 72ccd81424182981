"""The consumer's public API over fakes of Kafka and the store."""

import itertools
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
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
from sidetier.consumer import tiered_consumer
from sidetier.consumer.errors import GapError, StoreError
from sidetier.consumer.feed import DeliveryRecorder
from sidetier.consumer.kafka_side import Callbacks, KafkaSide
from sidetier.consumer.settings import read_settings
from sidetier.consumer.sources import Identity
from sidetier.consumer.store_side import StoreSlice
from sidetier.segments.errors import AccessDeniedError, StoreUnavailableError
from sidetier.segments.offsets import Offset
from sidetier.segments.offsets import TopicPartition as PartitionName
from tests.harness.one_log import FakeClients
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


def test_consumer_has_every_method_of_confluent_kafkas_consumers() -> None:
    theirs = public(confluent_kafka.Consumer) | public(confluent_kafka.DeserializingConsumer)
    assert theirs <= public(TieredConsumer)
    for name in ("__enter__", "__exit__", "__iter__"):
        assert hasattr(TieredConsumer, name)


def of_the_group(mode: str = "TIERED_STORAGE_PREFERRED", *, auto_store: bool = True) -> Tiered:
    config = {"enable.auto.offset.store": auto_store}
    it = tiered(world_of(kafka_start=60, store=(0, 80)), mode, config)
    it.world.log(OTHER).produce(10)
    return it


def test_callbacks_receive_the_tiered_consumer_and_may_choose_offsets() -> None:
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


def test_failing_callback_leaves_the_partitions_assigned() -> None:
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
def test_messages_lost_to_an_interruption_are_read_again(mode: str, strategy: str) -> None:
    """confluent-kafka drops the messages and errors that it was about to return."""
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


def test_records_lost_to_an_interruption_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """KeyboardInterrupt may come between the archive reader's last instruction and the feed."""
    it = tiered(world_of(kafka_start=60, store=(0, 80)), "TIERED_STORAGE_PREFERRED")
    it.consumer.assign([at(0)])
    take, calls = it.reader.take, itertools.count()

    def interrupted(most: int, timeout: float) -> list[Taken]:
        taken = take(most, timeout)
        if next(calls) % 3 == 0:
            raise KeyboardInterrupt
        return taken

    monkeypatch.setattr(it.reader, "take", interrupted)
    seen: list[int] = []
    for _ in range(200):
        with suppress(KeyboardInterrupt):
            seen += [int(message.offset() or 0) for message in it.consumer.consume(7, 0.1)]
    assert seen == list(range(100))


def offsets_of_one_call(consumer: TieredConsumer, call: str) -> list[int]:
    if call == "consume_arrow":
        batches = consumer.consume_arrow(7, 0.1)
        return [offset for each in batches for offset in each.records.column("offset").to_pylist()]
    messages = [consumer.poll(0.1)] if call == "poll" else consumer.consume(7, 0.1)
    return [int(message.offset() or 0) for message in messages if message is not None]


@pytest.mark.parametrize("mode", ["KAFKA_PREFERRED", "TIERED_STORAGE_PREFERRED"])
@pytest.mark.parametrize(
    ("owner", "method"),
    [
        (DeliveryRecorder, "count_message"),
        (DeliveryRecorder, "count_messages"),
        (DeliveryRecorder, "count_slice"),
        (StoreSlice, "messages"),
        (StoreSlice, "batch"),
        (tiered_consumer, "batches_of"),
    ],
)
@pytest.mark.parametrize("call", ["poll", "consume", "consume_arrow"])
def test_records_of_an_interrupted_call_are_returned_by_the_next_one(
    monkeypatch: pytest.MonkeyPatch, owner: object, method: str, call: str, mode: str
) -> None:
    """The positions have moved when a call is interrupted, and `close` would commit them."""
    original = getattr(owner, method)
    for seed in range(6):
        calls = itertools.count(seed)

        def interrupted(*arguments: Any, calls: Iterator[int] = calls) -> Any:  # noqa: ANN401
            if next(calls) % 3 == 0:
                raise KeyboardInterrupt
            return original(*arguments)

        world = world_of(kafka_start=60, store=(0, 80))
        world.seed = seed
        it = tiered(world, mode)
        it.consumer.assign([at(0)])
        monkeypatch.setattr(owner, method, interrupted)
        seen: list[int] = []
        for _ in range(300):
            if len(seen) >= 100:
                break
            with suppress(KeyboardInterrupt):
                seen += offsets_of_one_call(it.consumer, call)
        assert seen == list(range(100))


@pytest.mark.parametrize("mode", ["KAFKA_PREFERRED", "TIERED_STORAGE_PREFERRED"])
@pytest.mark.parametrize("call", ["poll", "consume"])
def test_messages_whose_deserialization_is_interrupted_are_returned_by_the_next_call(
    call: str, mode: str
) -> None:
    calls = itertools.count()

    def deserialize(value: bytes | None, _: object) -> bytes | None:
        if next(calls) % 5 == 0:
            raise KeyboardInterrupt
        return value

    world = world_of(kafka_start=60, store=(0, 80))
    it = tiered(world, mode, {"value.deserializer": deserialize})
    it.consumer.assign([at(0)])
    seen: list[int] = []
    for _ in range(900):
        if len(seen) >= 100:
            break
        with suppress(KeyboardInterrupt):
            messages = [it.consumer.poll(0.1)] if call == "poll" else it.consumer.consume(3, 0.1)
            seen += [int(each.offset() or 0) for each in messages if each is not None]
    assert seen == list(range(100))


@pytest.mark.parametrize("is_done", [True, False])
def test_partition_whose_switch_to_the_store_is_interrupted_is_read(
    monkeypatch: pytest.MonkeyPatch, *, is_done: bool
) -> None:
    it = tiered(world_of(kafka_start=60, store=(0, 80)), "TIERED_STORAGE_PREFERRED")
    call, take = it.reader.assign, it.reader.take
    interruptions = itertools.count()

    def interrupted(tp: PartitionName, offset: int) -> None:
        is_first = next(interruptions) == 0
        if is_done or not is_first:
            call(tp, offset)
        if is_first:
            raise KeyboardInterrupt

    takes = itertools.count()

    def interrupted_take(most: int, timeout: float) -> list[Taken]:
        if next(takes) % 3 == 0:
            raise KeyboardInterrupt
        return take(most, timeout)

    it.consumer.assign([at(0)])
    monkeypatch.setattr(it.reader, "assign", interrupted)
    monkeypatch.setattr(it.reader, "take", interrupted_take)
    seen: list[int] = []
    for _ in range(200):
        with suppress(KeyboardInterrupt):
            seen += [int(message.offset() or 0) for message in it.consumer.consume(7, 0.1)]
    assert next(interruptions)
    assert seen == list(range(100))
    assert not it.reader.readings


def test_partition_that_leaves_the_store_is_read_on_after_an_interruption(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The archive reader has dropped it; then the next source was not searched."""
    it = tiered(world_of(kafka_start=60, store=(0, 80)), "TIERED_STORAGE_PREFERRED")
    unassign = it.reader.unassign
    it.consumer.assign([at(0)])
    seen = it.read(10)
    assert seen == list(range(len(seen)))

    def interrupted(tp: PartitionName) -> None:
        unassign(tp)
        raise KeyboardInterrupt

    monkeypatch.setattr(it.reader, "unassign", interrupted)
    with pytest.raises(KeyboardInterrupt):
        it.consumer.seek(at(20))
    monkeypatch.setattr(it.reader, "unassign", unassign)
    assert it.read()[0] in {len(seen), 20}


@pytest.mark.parametrize("event", ["on_assign", "on_revoke"])
def test_exception_of_a_callback_is_raised_after_kafkas_client_returned(event: str) -> None:
    """Raised inside its `consume`, it would make the client drop messages and never close."""
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


def test_configured_callbacks_never_raise_inside_kafkas_client() -> None:
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


def test_error_callback_that_raises_loses_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store fails for one partition right after records of another one."""

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
def test_lost_partitions_call_on_lost_or_else_on_revoke(own: bool, called: str) -> None:  # noqa: FBT001
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


def test_commit_covers_the_returned_messages() -> None:
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


def test_rebalance_commits_no_message_that_was_not_returned() -> None:
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


def test_offsets_are_stored_manually_if_configured() -> None:
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


def test_offsets_cannot_be_stored_manually_with_automatic_storing() -> None:
    it = of_the_group()
    it.consumer.assign([at(0)])
    with pytest.raises(KafkaException, match=r"enable\.auto\.offset\.store"):
        it.consumer.store_offsets(offsets=[at(3)])


def test_stored_offsets_survive_a_renewed_assignment() -> None:
    """Kafka refuses the offset, and an eager group accepts another one only with a new
    assignment.
    """
    it = of_the_group("KAFKA_PREFERRED", auto_store=False)
    it.consumer.subscribe(["t"])
    it.world.committed.update({TP: 50, OTHER: 0})
    it.kafka.rebalance([TP, OTHER])
    other = next(one for one in it.messages(30) if one.partition() == 1)
    it.consumer.store_offsets(message=other)
    it.read(80)
    assert it.kafka.stored == {OTHER: int(other.offset() or 0) + 1}


def test_position_is_the_next_offset_once_a_message_was_returned() -> None:
    it = of_the_group()
    it.consumer.assign([at(10)])
    assert it.consumer.position([at(0)])[0].offset == OFFSET_INVALID
    assert it.read(3) == [10, 11, 12]
    assert it.consumer.position([at(0), at(0, OTHER)])[0].offset == 13
    it.consumer.seek(at(5))
    assert it.consumer.position([at(0)])[0].offset == OFFSET_INVALID
    assert it.read(2) == [5, 6]


@pytest.mark.parametrize("where", [20, 90])
def test_pause_drops_buffered_messages_and_resume_reads_them_again(where: int) -> None:
    it = tiered(world_of(store=STORED), "TIERED_STORAGE_PREFERRED")
    it.consumer.assign([at(where)])
    assert it.read(3) == [where, where + 1, where + 2]
    it.consumer.pause([at(0)])
    assert it.read(5) == []
    it.consumer.resume([at(0)])
    assert it.read(3) == [where + 3, where + 4, where + 5]


def test_seek_of_an_unassigned_partition_is_refused() -> None:
    it = of_the_group()
    with pytest.raises(KafkaException) as raised:
        it.consumer.seek(at(3))
    assert raised.value.args[0].code() == KafkaError._UNKNOWN_PARTITION
    it.consumer.assign([at(3, OTHER)])
    with pytest.raises(KafkaException) as raised:
        it.consumer.seek(at(3))
    assert raised.value.args[0].code() == KafkaError._STATE


def test_partitions_are_assigned_and_unassigned_incrementally() -> None:
    it = tiered(world_of(store=STORED), "TIERED_STORAGE_ONLY", broker=False)
    it.consumer.incremental_assign([at(0)])
    with pytest.raises(KafkaException, match="already part"):
        it.consumer.incremental_assign([at(0)])
    assert it.consumer.assignment() == [TopicPartition("t", 0)]
    it.consumer.incremental_unassign([at(0)])
    with pytest.raises(KafkaException):
        it.consumer.incremental_unassign([at(0)])
    assert it.read(3) == []


def test_bounds_and_times_cover_the_sources_of_the_mode() -> None:
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
def test_cached_bounds_contain_only_known_values(
    mode: str, cached: int | None, bounds: tuple[int, int]
) -> None:
    stored = (0, 0) if mode == "KAFKA_ONLY" else (20, 80)
    it = tiered(world_of(kafka_start=60, store=stored), mode)
    if cached is not None:
        it.kafka.cached[TP] = cached
    assert it.consumer.get_watermark_offsets(at(0), cached=True) == bounds


def test_cached_bounds_need_no_broker() -> None:
    it = tiered(world_of(kafka_start=60, store=(20, 80)), "KAFKA_PREFERRED")
    asked = []

    def topic_ids(topics: Collection[str]) -> dict[str, str | KafkaError | None]:
        asked.append(list(topics))
        return it.world.topic_ids(topics)

    it.clients.topic_ids = topic_ids
    for _ in range(3):
        assert it.consumer.get_watermark_offsets(at(0), cached=True) == (20, OFFSET_INVALID)
    assert asked == [["t"]]  # once, because nothing was known


def test_topic_without_an_answer_does_not_hold_the_others() -> None:
    """Only brokers that do not answer at all are left alone for a second."""
    error = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
    answers: dict[str, str | KafkaError | None] = {"t": error, "u": "id"}
    clients = FakeClients(world_of(), cooperative=False)
    clients.topic_ids = lambda topics: {topic: answers[topic] for topic in topics}
    side = KafkaSide(clients, cooperative=False)  # type: ignore[arg-type]
    assert side.identities(["t", "u"]) == {"t": error, "u": Identity("id", "fake")}
    assert side.identities(["u"]) == {"u": Identity("id", "fake")}
    assert side.identities(["t"]) == {"t": error}
    assert side.identities(["u"]) == {"u": error}


@pytest.mark.parametrize(("mode", "end"), [("KAFKA_PREFERRED", 100), ("TIERED_STORAGE_ONLY", 80)])
def test_latest_timestamp_is_the_end_offset(mode: str, end: int) -> None:
    it = tiered(world_of(kafka_start=60, store=(20, 80)), mode)
    assert it.consumer.offsets_for_times([at(OFFSET_END)])[0].offset == end


def test_wrong_arguments_are_refused_as_by_confluent_kafka() -> None:
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


def test_errors_of_the_store_name_the_consumers_own_settings(tmp_path: Path) -> None:
    cause = AccessDeniedError(
        "s3://a/storage.s3.region: set storage.s3.access_key_id, storage.prefix_entropy_bits, "
        "cluster.name, storage.url, storage.encryption.keys or storage.gcs.credentials_file"
    )
    it = tiered(world_of(store=STORED), "TIERED_STORAGE_ONLY", broker=False)
    it.world.store_error = cause
    it.consumer.assign([at(0)])
    text = it.error().error().str()  # type: ignore[union-attr]
    assert text.endswith(
        "s3://a/storage.s3.region: set tiered.storage.s3.access.key.id, "
        "tiered.storage.prefix.entropy.bits, tiered.storage.cluster.name, tiered.storage.url, "
        "tiered.storage.encryption.keys or storage.gcs.credentials_file"
    )
    with pytest.raises(StoreError) as raised:
        it.consumer.get_watermark_offsets(at(0))
    assert str(raised.value.args[0].str()) == text

    file = tmp_path / "sidetier.yaml"
    file.write_text("cluster: {name: c}\nlog_dirs: [/logs]\nstorage: {url: 's3://a/b'}\n")
    rules = read_settings(
        {"tiered.storage.mode": "TIERED_STORAGE_ONLY", "tiered.storage.config": str(file)}
    ).rules
    assert rules.has_file
    error = StoreError(TP, None, cause, has_file=rules.has_file)
    assert error.error.str() == f"t-0: {cause}"


def test_assignment_returns_the_given_offsets() -> None:
    it = of_the_group()
    it.consumer.assign([at(7), at(OFFSET_END, OTHER)])
    assert [one.offset for one in it.consumer.assignment()] == [7, OFFSET_END]


def test_arrow_batches_of_both_sources_have_the_same_schema() -> None:
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


def test_arrow_and_iteration_return_records_before_raising_an_error() -> None:
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
    """A deserializer that refuses one value."""

    def __call__(self, value: bytes | None, context: object) -> str:
        del context
        if value == b"value-3":
            raise ValueError("poison")
        return (value or b"").decode()


@pytest.mark.parametrize("how", ["poll", "consume"])
def test_value_that_cannot_be_deserialized_is_raised_alone_and_skipped(how: str) -> None:
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


def test_errors_are_raised_when_deserializers_are_set() -> None:
    config = {"value.deserializer": Poisoned()}
    it = tiered(world_of(store=STORED), "TIERED_STORAGE_ONLY", config, broker=False)
    it.world.log(TP).gaps.append((0, 30))
    it.consumer.assign([at(0)])
    with pytest.raises(ConsumeError):
        it.messages(50)


def test_closed_consumer_raises_on_every_call() -> None:
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


def test_close_revokes_and_commits_the_returned_messages() -> None:
    it = of_the_group()
    told: list[int] = []
    it.consumer.subscribe(["t"], on_revoke=lambda _, partitions: told.append(len(partitions)))
    it.kafka.rebalance([TP])
    assert it.read(4)[-1] == 3
    it.consumer.close()
    assert told == [1]
    assert it.world.committed == {TP: 4}


def test_unavailable_store_calls_the_error_callback_and_is_waited_for() -> None:
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
def test_kafka_is_read_when_the_store_is_away_and_kafka_has_the_offset(mode: str) -> None:
    it = tiered(world_of(kafka_start=60, store=(0, 80)), mode)
    it.world.store_error = StoreUnavailableError("away")
    it.consumer.assign([at(70)])
    assert it.read(60) == list(range(70, 100))


def test_refusal_by_the_store_is_an_error_of_the_application() -> None:
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
def test_location_of_a_missing_archive_is_reported_once(
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


def test_end_of_the_archive_is_reported_if_configured() -> None:
    config = {"enable.partition.eof": True}
    it = tiered(world_of(store=STORED), "TIERED_STORAGE_ONLY", config, broker=False)
    it.consumer.assign([at(78)])
    error = it.error()
    assert error.error().code() == KafkaError._PARTITION_EOF  # type: ignore[union-attr]
    assert error.offset() == 80


@pytest.mark.parametrize(
    "method", ["commit", "committed", "list_topics", "memberid", "subscribe", "unsubscribe"]
)
def test_methods_that_need_a_broker_are_refused_without_one(method: str) -> None:
    it = tiered(world_of(store=STORED), "TIERED_STORAGE_ONLY", broker=False)
    arguments: list[Any] = [[]] if method in ("committed", "subscribe") else []
    with pytest.raises(KafkaException, match=rf"{method}\(\) needs bootstrap\.servers"):
        getattr(it.consumer, method)(*arguments)


def test_kafkas_client_is_polled_while_the_store_returns_records() -> None:
    it = tiered(world_of(1000, store=(0, 1000)), "TIERED_STORAGE_PREFERRED")
    it.consumer.assign([at(0)])
    before = it.kafka.served
    for _ in range(100):
        it.consumer.poll(0)
        it.world.now += 0.03
    assert it.kafka.served - before >= 50


@pytest.mark.parametrize("mode", ["KAFKA_ONLY", "KAFKA_PREFERRED", "TIERED_STORAGE_PREFERRED"])
def test_kafkas_client_is_not_called_for_every_message_of_kafka(mode: str) -> None:
    it = tiered(world_of(1000), mode)
    it.kafka.ahead = 100
    it.consumer.assign([at(0)])
    assert it.read(10) == list(range(10))
    before = it.kafka.served
    assert it.read(390) == list(range(10, 400))
    # Once for each 100 messages that the client has fetched ahead.
    assert it.kafka.served - before <= 5


def test_neither_source_starves_the_other() -> None:
    world = world_of(3000, store=(0, 3000))
    world.log(OTHER).produce(3000)
    it = tiered(world, "TIERED_STORAGE_PREFERRED")
    it.consumer.assign([at(0), at(0, OTHER)])
    counts = {0: 0, 1: 0}
    for _ in range(400):
        for message in it.consumer.consume(10, 0.1):
            counts[int(message.partition() or 0)] += 1
    assert min(counts.values()) > 0.1 * max(counts.values()), counts


def test_late_messages_of_a_former_position_are_dropped() -> None:
    it = tiered(world_of(), "KAFKA_PREFERRED")
    it.consumer.assign([at(50)])
    it.consumer.poll(0)
    late = [Message("t", 0, offset, None, b"late") for offset in (3, 4)]
    late.append(Message("t", 7, 60, None, b"of nobody"))
    it.kafka.errors += late
    found = it.messages(60)
    assert b"late" not in {message.value() for message in found}
    assert {message.partition() for message in found} == {0}


def test_late_error_of_a_former_position_is_ignored() -> None:
    it = tiered(world_of(kafka_start=20, store=(0, 80)), "KAFKA_PREFERRED")
    it.consumer.assign([at(50)])
    assert it.read(2) == [50, 51]
    error = KafkaError(KafkaError._AUTO_OFFSET_RESET, "long ago")
    it.kafka.errors.append(Message(topic="t", partition=0, offset=10, error=error))
    assert it.read(60) == list(range(52, 100))
    assert it.count("misses_total", source="kafka") == 0

"""Answers to Metadata, DescribeCluster and DescribeConfigs, and what the endpoint refuses."""

from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from time import monotonic
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs

from sidetier.archive.access import ArchiveAccess
from sidetier.endpoint.catalog import CatalogSettings
from sidetier.endpoint.groups.none import NoGroups
from sidetier.endpoint.offsets import ListedOffset, OffsetAnswers
from sidetier.endpoint.protocol import OFFERED, api_versions_response, offered_api
from sidetier.endpoint.session import Session
from sidetier.segments.errors import MalformedRequestError, StoreUnavailableError
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.provider import OpenStores, PatternEndpointProvider
from sidetier.storage.settings import StorageEndpoint
from sidetier.wire.protocol import ApiKey, decode_response, encode
from tests.harness.endpoint import EAGER, Parts, ask, endpoint_over, fetch_of, request_of
from tests.harness.made_archive import LAYOUT, MadeArchive, batches
from tests.harness.waiting import wait_until

EMPTY = BytesBody(b"")
TOPIC_ID = "cym-TlqmRE2h0UHouOCTtg"
METADATA = {"include_topic_authorized_operations": False}


@pytest.fixture
def store() -> FakeStorage:
    """Orders with partitions 0 and 2 and the cluster's topic id, and clicks without one."""
    made = FakeStorage()
    rows = (("orders", 0, TOPIC_ID), ("orders", 2, TOPIC_ID), ("clicks", 0, None))
    for topic, number, topic_id in rows:
        archive = MadeArchive(made, tp=TopicPartition(topic, number))
        archive.segments(0, 20)
        archive.mark(0, 20, topic_id=topic_id)
    return made


@pytest.fixture
def parts(store: FakeStorage) -> Iterator[Parts]:
    with endpoint_over(store) as made:
        yield made


@pytest.mark.parametrize("version", range(14))
def test_metadata_of_all_topics(parts: Parts, version: int) -> None:
    values: dict[str, Any] = {"topics": None if version else ()}
    if version >= 8:
        values["include_topic_authorized_operations"] = False
    if 8 <= version <= 10:
        values["include_cluster_authorized_operations"] = False
    response = ask(parts.handlers, ApiKey.METADATA, version, **values)
    assert [(b.node_id, b.host, b.port) for b in response.brokers] == [(0, "kafka.example", 9092)]
    assert [topic.name for topic in response.topics] == ["clicks", "orders"]
    orders = response.topics[1]
    # Partition 1 has no archive. Without it, librdkafka would not know partition 2.
    assert [row.partition_index for row in orders.partitions] == [0, 1, 2]
    assert {row.leader_id for row in orders.partitions} == {0}
    if version >= 7:
        assert {row.leader_epoch for row in orders.partitions} == {-1}
    if version >= 10:
        assert orders.topic_id == UUID(bytes=urlsafe_b64decode(f"{TOPIC_ID}=="))
        assert response.topics[0].topic_id not in {None, UUID(int=0)}
    if version >= 2:
        assert response.cluster_id == "prod-a"


def test_metadata_of_no_topic_and_of_unknown_ones(parts: Parts) -> None:
    assert ask(parts.handlers, ApiKey.METADATA, 12, **METADATA, topics=()).topics == ()
    asked = [
        {"name": "nothing", "topic_id": None},
        {"name": None, "topic_id": UUID(int=3)},
        {"name": "clicks", "topic_id": None},
        {"name": "no name", "topic_id": None},
    ]
    rows = ask(parts.handlers, ApiKey.METADATA, 12, **METADATA, topics=asked).topics
    assert [row.error_code for row in rows] == [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.none,
        ErrorCode.invalid_topic_exception,
    ]


def test_a_topic_that_is_named_twice_is_answered_once(parts: Parts) -> None:
    asked = [{"name": "clicks", "topic_id": None}] * 3
    rows = ask(parts.handlers, ApiKey.METADATA, 12, **METADATA, topics=asked).topics
    assert [row.name for row in rows] == ["clicks"]
    for name in ("clicks", "nothing"):
        repeated = [{"name": name, "topic_id": UUID(int=number)} for number in range(1, 4)]
        rows = ask(parts.handlers, ApiKey.METADATA, 12, **METADATA, topics=repeated).topics
        assert [row.name for row in rows] == [name]


@pytest.mark.parametrize("version", [10, 11])
def test_metadata_of_a_topic_without_a_name_is_refused_before_version_12(
    parts: Parts, version: int
) -> None:
    """The answer could not be encoded. Brokers refuse it, too."""
    topics = [{"topic_id": UUID(int=7), "name": None}]
    values: dict[str, Any] = {"topics": topics, **METADATA}
    if version == 10:
        values["include_cluster_authorized_operations"] = False
    with pytest.raises(MalformedRequestError, match=f"Metadata v{version} asks for a topic"):
        ask(parts.handlers, ApiKey.METADATA, version, **values)


def test_ids_of_the_archived_cluster_as_they_are_now(store: FakeStorage, parts: Parts) -> None:
    catalog = parts.catalog
    assert catalog.archived_topic_id("orders") == TOPIC_ID
    assert catalog.archived_topic_id("clicks") is None  # the derived one is not the cluster's
    assert catalog.archived_topic_id("other") is None
    again = "AAAAAAAAAAAAAAAAAAAAAQ"
    MadeArchive(store, tp=TopicPartition("orders", 0)).mark(0, 20, topic_id=again)
    assert catalog.archived_topic_id("orders") == again  # without a listing of all topics
    with store.away():  # offsets that are committed now belong to this id, too
        assert catalog.archived_topic_id("orders") == again


def test_one_object_makes_no_billion_partitions(store: FakeStorage) -> None:
    """Clients see the partitions up to the highest one that can be one; the log names the other."""
    for number in (3, 2_147_483_000):
        for topic in ("orders", "zzz"):
            store.put_object(f"{LAYOUT.partition_prefix(TopicPartition(topic, number))}x", EMPTY)
    with capture_logs() as logs, endpoint_over(store) as parts:
        answer = ask(parts.handlers, ApiKey.METADATA, 12, **METADATA, topics=None)
        counts = {topic.name: len(topic.partitions) for topic in answer.topics}
        assert counts == {"clicks": 1, "orders": 4, "zzz": 4}
        assert parts.catalog.partition("orders", 2_147_483_000) is None
        parts.catalog.topic("unknown")  # lists again
    left_out = [row for row in logs if row["event"] == "endpoint.partition_left_out"]
    assert sorted((row["topic"], row["partition"]) for row in left_out) == [
        ("orders", 2_147_483_000),
        ("zzz", 2_147_483_000),
    ]


def test_topic_ids_are_stable_over_restarts(store: FakeStorage) -> None:
    ids = []
    for _ in range(2):
        with endpoint_over(store) as parts:
            ids.append({name: topic.topic_id for name, topic in parts.catalog.topics.items()})
    assert ids[0] == ids[1]


def test_a_new_topic_is_found_when_a_client_names_it(parts: Parts, store: FakeStorage) -> None:
    MadeArchive(store, tp=TopicPartition("later", 0)).segments(0, 20)
    asked = [{"name": "later", "topic_id": None}]
    rows = ask(parts.handlers, ApiKey.METADATA, 12, **METADATA, topics=asked).topics
    assert [row.error_code for row in rows] == [ErrorCode.none]


def test_topics_are_listed_again_by_time_also_after_a_failure(
    parts: Parts, store: FakeStorage
) -> None:
    store.fail("list", StoreUnavailableError("away"), times=20)
    MadeArchive(store, tp=TopicPartition("later", 0)).segments(0, 20)
    wait_until(lambda: "later" in parts.catalog.topics, 10, "the new topic")
    assert EAGER.discovery_interval < 1


@contextmanager
def two_stores(
    settings: CatalogSettings = EAGER,
) -> Iterator[tuple[FakeStorage, FakeStorage, Callable[[], AbstractContextManager[Parts]]]]:
    """Yield a store with `orders`, one with `slow`, and what starts an endpoint over both."""
    stores = {"memory://fast": FakeStorage(), "memory://slow": FakeStorage()}
    fast, slow = stores.values()
    provider = PatternEndpointProvider(
        StorageEndpoint("memory://fast"), [("slow.*", StorageEndpoint("memory://slow"))]
    )
    access = ArchiveAccess(provider, OpenStores(provider, lambda at: stores[at.url]), LAYOUT)
    MadeArchive(fast).segments(0, 20)
    MadeArchive(slow, tp=TopicPartition("slow", 0)).segments(0, 20)
    yield fast, slow, lambda: endpoint_over(fast, archive=access, settings=settings)


def test_a_store_that_hangs_hides_no_topics_of_another_one() -> None:
    settings = replace(EAGER, listing_timeout=1.0)
    with two_stores(settings) as (fast, slow, started), capture_logs() as logs:
        with slow.hold("list"), started() as parts:
            assert set(parts.catalog.topics) == {"orders"}
            MadeArchive(fast, tp=TopicPartition("later", 0)).segments(0, 20)
            began = monotonic()
            for _ in range(20):  # each of these names is unknown, and `slow` is listed already
                assert parts.catalog.topic("slow") is None
                assert parts.catalog.topic_of_id(UUID(int=1)) is None
            assert monotonic() - began < 10  # 20 s if each of them waited for it
            wait_until(lambda: parts.catalog.topic("later") is not None, 10, "the new topic")
        late = [row["store"] for row in logs if row["event"] == "endpoint.discovery_failed"]
        assert late.count("memory://slow") == 1
        with started() as parts:
            assert set(parts.catalog.topics) == {"later", "orders", "slow"}


def test_topics_of_a_store_that_is_slow_appear_when_it_is_listed() -> None:
    settings = replace(EAGER, listing_timeout=0.1)
    with two_stores(settings) as (_, slow, started), ExitStack() as held:
        with slow.hold("list"):
            parts = held.enter_context(started())
            assert set(parts.catalog.topics) == {"orders"}
        wait_until(lambda: "slow" in parts.catalog.topics, 10, "the topics of the slow store")


def test_a_store_that_fails_keeps_its_topics_and_hides_no_others() -> None:
    with two_stores() as (fast, slow, started), started() as parts:
        known = parts.catalog.topics["slow"]
        with slow.away():
            MadeArchive(fast, tp=TopicPartition("later", 0)).segments(0, 20)
            wait_until(lambda: "later" in parts.catalog.topics, 10, "the new topic")
            assert parts.catalog.topics["slow"] == known
            with started() as restarted:
                assert set(restarted.catalog.topics) == {"later", "orders"}
        with fast.away(), slow.away(), pytest.raises(StoreUnavailableError), started():
            pass


def test_ids_of_a_topic_whose_store_hangs_are_not_taken_for_current() -> None:
    """A client that has read a deleted topic must not continue in the new one."""
    settings = replace(EAGER, discovery_interval=3600.0, listing_timeout=1.0)
    with two_stores(settings) as (_, slow, started), started() as parts:
        topic = parts.catalog.topics["slow"]
        made = MadeArchive(slow, tp=TopicPartition("slow", 0))
        made.mark(0, 20, topic_id="AAAAAAAAAAAAAAAAAAAAAQ", leader_epoch=0)
        asked = [{**fetch_of("slow", 0)["topics"][0]["partitions"][0]}]
        wanted = {**fetch_of("slow", 0), "topics": [{"topic_id": topic.topic_id}]}
        wanted["topics"][0]["partitions"] = asked
        directories = LAYOUT.partition_prefix(made.tp).removesuffix(f"{made.tp}/")
        with slow.hold("list", directories):
            (row,) = parts.fetch(13, **wanted).responses[0].partitions
            assert (row.error_code, bytes(row.records)) == (ErrorCode.kafka_storage_error, b"")
        wait_until(lambda: parts.catalog.topics["slow"] != topic, 10, "the new id")
        (row,) = parts.fetch(13, **wanted).responses[0].partitions
        assert row.error_code is ErrorCode.unknown_topic_id


def test_the_id_of_a_recreated_topic_changes(parts: Parts, store: FakeStorage) -> None:
    before = parts.catalog.topics["orders"].topic_id
    MadeArchive(store, tp=TopicPartition("orders", 0)).mark(
        0, 20, topic_id="AAAAAAAAAAAAAAAAAAAAAQ", leader_epoch=0
    )
    wait_until(
        lambda: parts.catalog.topics["orders"].topic_id == UUID(int=1), 10, "the new topic id"
    )
    assert parts.catalog.topic_of_id(before) is None


def test_an_empty_partition_is_readable(parts: Parts) -> None:
    assert parts.offsets.list_offset("orders", 1, -1, 0).offset == 0
    assert parts.offsets.list_offset("orders", 1, -2, 0).offset == 0
    data = parts.fetch(
        11,
        max_wait=0,
        min_bytes=1,
        replica_id=-1,
        isolation_level=1,
        topics=[
            {
                "topic": "orders",
                "partitions": [
                    {"partition": 1, "fetch_offset": at, "partition_max_bytes": 9} for at in (0, 5)
                ],
            }
        ],
        forgotten_topics_data=(),
    )
    assert [int(row.error_code) for row in data.responses[0].partitions] == [0, 1]


@pytest.mark.parametrize("version", range(5))
def test_api_versions(version: int) -> None:
    answered, response = api_versions_response(OFFERED, version)
    assert answered == version
    body = memoryview(encode(response))
    decoded: Any = decode_response(ApiKey.API_VERSIONS, version, body, "endpoint")
    rows = {row.api_key: (row.min_version, row.max_version) for row in decoded.api_keys}
    assert rows == {int(api): versions for api, versions in OFFERED.items()}
    assert 0 in rows  # librdkafka reads nothing from a server without Produce
    assert 75 not in rows  # its null arrays would crash Java's Admin


def test_api_versions_above_ours_are_answered_in_version_0() -> None:
    answered, response = api_versions_response(OFFERED, 5)
    decoded: Any = decode_response(ApiKey.API_VERSIONS, 0, memoryview(encode(response)), "endpoint")
    assert (answered, decoded.error_code) == (0, ErrorCode.unsupported_version)
    assert offered_api(OFFERED, 18, 5) is None
    assert offered_api(OFFERED, 1, 18) is None
    assert offered_api(OFFERED, 11, 5) is None
    assert offered_api(OFFERED, -7, 0) is None


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster(parts: Parts, version: int) -> None:
    values = {"include_cluster_authorized_operations": False}
    if version >= 2:
        values["include_fenced_brokers"] = False
    response = ask(parts.handlers, ApiKey.DESCRIBE_CLUSTER, version, **values)
    assert (response.cluster_id, response.controller_id) == ("prod-a", 0)
    assert [(b.broker_id, b.port) for b in response.brokers] == [(0, 9092)]
    if version >= 1:
        response = ask(parts.handlers, ApiKey.DESCRIBE_CLUSTER, version, **values, endpoint_type=2)
        assert response.error_code is ErrorCode.mismatched_endpoint_type


@pytest.mark.parametrize("version", range(1, 5))
def test_describe_configs_is_empty(parts: Parts, version: int) -> None:
    asked = [
        {"resource_type": 2, "resource_name": name, "configuration_keys": None}
        for name in ("orders", "nothing")
    ]
    results = ask(parts.handlers, ApiKey.DESCRIBE_CONFIGS, version, resources=asked).results
    assert [(row.error_code, row.configs) for row in results] == [
        (ErrorCode.none, ()),
        (ErrorCode.unknown_topic_or_partition, ()),
    ]


@pytest.mark.parametrize("version", range(7))
def test_groups_are_refused(version: int) -> None:
    key = {"coordinator_keys": ["g"]} if version >= 4 else {"key": "g"}
    response = ask(NoGroups(), ApiKey.FIND_COORDINATOR, version, **key)
    row = response.coordinators[0] if version >= 4 else response
    assert row.error_code is ErrorCode.group_authorization_failed
    if version:
        assert "keeps no consumer groups" in row.error_message
        key["key_type"] = 1  # type: ignore[assignment]
        response = ask(NoGroups(), ApiKey.FIND_COORDINATOR, version, **key)
        row = response.coordinators[0] if version >= 4 else response
        assert row.error_code is ErrorCode.transactional_id_authorization_failed


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_is_refused(parts: Parts, version: int) -> None:
    topic = {"topic_id": UUID(int=4)} if version >= 13 else {"name": "orders"}
    values = {
        "acks": -1,
        "timeout": 1000,
        "topic_data": [{**topic, "partition_data": [{"index": 3, "records": None}]}],
    }
    response = ask(parts.handlers, ApiKey.PRODUCE, version, **values)
    row = response.responses[0].partition_responses[0]
    assert (row.index, row.error_code) == (3, ErrorCode.topic_authorization_failed)
    silent = request_of(ApiKey.PRODUCE, version, **{**values, "acks": 0})
    assert parts.handlers.answer(silent, Session("test:1")).body is None


@pytest.mark.parametrize("version", range(7))
def test_producer_ids_are_refused(parts: Parts, version: int) -> None:
    values: dict[str, Any] = {"transactional_id": None, "transaction_timeout": 1000}
    if version >= 6:
        values |= {"enable2_pc": False, "keep_prepared_txn": False}
    try:
        response = ask(parts.handlers, ApiKey.INIT_PRODUCER_ID, version, **values)
    except (TypeError, ValueError):
        pytest.fail(f"version {version}")
    assert response.error_code is ErrorCode.cluster_authorization_failed


@pytest.mark.parametrize("version", range(1, 11))
def test_list_offsets(parts: Parts, version: int) -> None:
    asked = [
        {"partition_index": 0, "timestamp": -1},
        {"partition_index": 9, "timestamp": -1},
    ]
    values: dict[str, Any] = {"replica_id": -1, "topics": [{"name": "orders", "partitions": asked}]}
    if version >= 2:
        values["isolation_level"] = 1
    if version >= 10:
        values["timeout"] = 100
    rows = ask(parts.handlers, ApiKey.LIST_OFFSETS, version, **values).topics[0].partitions
    assert [(row.partition_index, row.offset) for row in rows] == [(0, 20), (9, -1)]
    assert rows[1].error_code is ErrorCode.unknown_topic_or_partition
    if version >= 4:
        assert {row.leader_epoch for row in rows} == {-1}


@pytest.mark.parametrize("version", range(2, 5))
def test_offset_for_leader_epoch(parts: Parts, version: int) -> None:
    asked = [{"partition": 0, "leader_epoch": 5}]
    topics = [{"topic": "orders", "partitions": asked}]
    row = (
        ask(parts.handlers, ApiKey.OFFSET_FOR_LEADER_EPOCH, version, topics=topics)
        .topics[0]
        .partitions[0]
    )
    assert (row.error_code, row.leader_epoch, row.end_offset) == (ErrorCode.none, 5, 20)


def test_repeated_list_offsets_is_answered_from_memory_until_the_archive_grows(
    parts: Parts, store: FakeStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's Kafka source asks for start and end with each poll."""
    computed: list[tuple[object, ...]] = []
    list_offset = OffsetAnswers.list_offset

    def counted(self: OffsetAnswers, *asked: Any) -> ListedOffset:  # noqa: ANN401 - as the method
        computed.append(asked)
        return list_offset(self, *asked)

    monkeypatch.setattr(OffsetAnswers, "list_offset", counted)

    def end(number: int = 0, timestamp: int = -1) -> tuple[ErrorCode, int]:
        asked = [{"partition_index": number, "timestamp": timestamp}]
        topics = [{"name": "orders", "partitions": asked}]
        response = ask(
            parts.handlers, ApiKey.LIST_OFFSETS, 5, replica_id=-1, isolation_level=0, topics=topics
        )
        [row] = response.topics[0].partitions
        return row.error_code, row.offset

    assert [end() for _ in range(3)] == [(ErrorCode.none, 20)] * 3
    assert [end(timestamp=-2) for _ in range(3)] == [(ErrorCode.none, 0)] * 3
    assert len(computed) == 2
    archive = MadeArchive(store)
    archive.segment(20, batches(20, 40))
    archive.mark(20, 40, topic_id=TOPIC_ID)
    wait_until(lambda: end() == (ErrorCode.none, 40), 10, "the new end")
    # Errors and partitions without an archive are not remembered: they may get one.
    before = len(computed)
    assert {end(9) for _ in range(2)} == {(ErrorCode.unknown_topic_or_partition, -1)}
    assert {end(1) for _ in range(2)} == {(ErrorCode.none, 0)}
    assert len(computed) == before + 4

"""The endpoint's answers, byte for byte those of real brokers that have the same segments."""

import struct
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from sidetier.brokers.java import Java
from sidetier.brokers.kafka import KAFKA_3_9, KAFKA_4_3
from sidetier.endpoint.service import EndpointSettings, serving
from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.local import LocalStorage
from sidetier.wire.protocol import ApiKey
from tests.harness import broker_segments
from tests.harness.broker_comparison import Difference, Pair, pair_of
from tests.harness.made_archive import access_to
from tests.harness.segment_broker import HELD, HeldPartition, SegmentBroker, store_held

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

LAYOUT = ArchiveLayout("test", 5)
DIFFERENCES = (
    Difference(ApiKey.METADATA, "cluster_id", "test", "the name of the archived cluster"),
    Difference(ApiKey.METADATA, "controller_id", 0, "the only node is the endpoint"),
    Difference(ApiKey.METADATA, "brokers.node_id", 0, "the only node is the endpoint"),
    Difference(ApiKey.METADATA, "topics.partitions.leader_id", 0, "it leads every partition"),
    Difference(ApiKey.METADATA, "topics.partitions.replica_nodes", (0,), "the endpoint only"),
    Difference(ApiKey.METADATA, "topics.partitions.isr_nodes", (0,), "the endpoint only"),
    Difference(ApiKey.METADATA, "topics.partitions.leader_epoch", -1, "no client waits for it"),
    Difference(ApiKey.LIST_OFFSETS, "topics.partitions.leader_epoch", -1, "no client checks it"),
    Difference(ApiKey.DESCRIBE_CLUSTER, "cluster_id", "test", "the name of the archived cluster"),
    Difference(ApiKey.DESCRIBE_CLUSTER, "controller_id", 0, "the only node is the endpoint"),
    Difference(ApiKey.DESCRIBE_CLUSTER, "brokers.broker_id", 0, "the only node is the endpoint"),
    Difference(ApiKey.DESCRIBE_CONFIGS, "results.configs", (), "the archive has no settings"),
    Difference(ApiKey.API_VERSIONS, "supported_features", (), "features of a cluster's metadata"),
    Difference(ApiKey.API_VERSIONS, "finalized_features", (), "features of a cluster's metadata"),
    Difference(ApiKey.API_VERSIONS, "finalized_features_epoch", -1, "the endpoint has no features"),
)
"""All differences from a broker's answers, beside the port, the APIs in ApiVersions, and the epochs
above the newest archived one in OffsetForLeaderEpoch."""
UNKNOWN = UUID(int=99)
EMPTY = [("many", 1)]
MISSING = [("many", 3), ("nope", 0)]


@pytest.fixture(scope="module", params=[KAFKA_4_3, KAFKA_3_9])
def broker(
    request: pytest.FixtureRequest,
    java: Java,  # noqa: ARG001 - the broker needs it
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SegmentBroker]:
    with SegmentBroker(tmp_path_factory.mktemp("segments"), request.param) as running:
        yield running


@pytest.fixture(scope="module")
def pair(broker: SegmentBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    store = LocalStorage(tmp_path_factory.mktemp("store"))
    store_held(store, LAYOUT, broker.topic_ids)
    with serving(access_to(store, LAYOUT), EndpointSettings(("127.0.0.1", 0))) as endpoint:
        host, port = endpoint.address
        differences = (
            *DIFFERENCES,
            Difference(ApiKey.METADATA, "brokers.port", port, "another process"),
            Difference(ApiKey.DESCRIBE_CLUSTER, "brokers.port", port, "another process"),
        )
        with pair_of(f"{host}:{port}", broker.bootstrap, differences) as clients:
            yield clients


@pytest.fixture(scope="module")
def ids(broker: SegmentBroker) -> dict[str, UUID]:
    return {
        topic: UUID(bytes=urlsafe_b64decode(f"{text}=="))
        for topic, text in broker.topic_ids.items()
    }


def held_at_most(version: int, full: tuple[int, ...]) -> tuple[HeldPartition, ...]:
    """Return all partitions for the versions that clients use most, else one with transactions."""
    return HELD if version in full else tuple(held for held in HELD if held.fixture == "tx-0")


def test_api_versions(pair: Pair, broker: SegmentBroker) -> None:
    for version in pair.versions(ApiKey.API_VERSIONS):
        values = {}
        if version >= 3:
            values = {"client_software_name": "test", "client_software_version": "1"}
        offered: Any = pair.endpoint.request(ApiKey.API_VERSIONS, version, **values)
        apis = Difference(ApiKey.API_VERSIONS, "api_keys", offered.api_keys, "it is read-only")
        pair.compare(ApiKey.API_VERSIONS, version, apis, **values)
    for api, (lowest, highest) in pair.offered.items():
        first, last = pair.known[api]
        assert first <= highest, api
        assert lowest <= last, api
        if broker.version == KAFKA_4_3:
            assert first <= lowest <= highest <= last, api


def _metadata(version: int, topics: list[dict[str, Any]] | None) -> dict[str, Any]:
    values: dict[str, Any] = {"topics": topics}
    if version >= 4:
        values["allow_auto_topic_creation"] = False
    if version >= 8:
        values["include_topic_authorized_operations"] = False
    if 8 <= version <= 10:
        values["include_cluster_authorized_operations"] = False
    return values


def _named(version: int, *names: str) -> list[dict[str, Any]]:
    by_id = {"topic_id": None} if version >= 10 else {}
    return [{"name": name, **by_id} for name in names]


def test_metadata(pair: Pair, ids: dict[str, UUID]) -> None:
    """All topics, none, some, unknown and impossible ones, and topics by id."""
    for version in pair.versions(ApiKey.METADATA):
        for names in (["tx"], ["late", "many"], ["nope"], ["a b"]):
            values = _metadata(version, _named(version, *names))
            assert len(pair.compare(ApiKey.METADATA, version, **values).topics) == len(names)
        # Version 0 has no null: an empty list means all topics.
        every = _metadata(version, None if version else [])
        assert len(pair.compare(ApiKey.METADATA, version, **every).topics) == len(ids)
        if version >= 1:
            assert not pair.compare(ApiKey.METADATA, version, **_metadata(version, [])).topics
        for topic_id in (ids["many"], UNKNOWN) if version >= 12 else ():
            values = _metadata(version, [{"name": None, "topic_id": topic_id}])
            pair.compare(ApiKey.METADATA, version, **values)


def _list_offsets(version: int, topic: str, partition: int, timestamp: int) -> dict[str, Any]:
    asked = {"partition_index": partition, "timestamp": timestamp}
    values: dict[str, Any] = {
        "replica_id": -1,
        "topics": [{"name": topic, "partitions": [asked]}],
    }
    if version >= 2:
        values["isolation_level"] = 0
    if version >= 10:
        values["timeout"] = 1000
    return values


def _timestamps(held: HeldPartition) -> list[int]:
    rows = broker_segments.consumed(broker_segments.ROOT / held.fixture)
    times = sorted({row["timestamp"] for row in rows})
    step = max(1, len(times) // 12)
    return [0, times[0] - 1, times[0] + 1, *times[::step], times[-1], times[-1] + 1, 2**62]


def test_list_offsets(pair: Pair) -> None:
    """Special timestamps, those of records, and those around them, at both isolation levels."""
    for version in pair.versions(ApiKey.LIST_OFFSETS):
        for held in held_at_most(version, (7, 9)):
            topic, partition = held.tp.topic, held.tp.partition
            for timestamp in (*range(-7, 0), *_timestamps(held)):
                values = _list_offsets(version, topic, partition, timestamp)
                pair.compare(ApiKey.LIST_OFFSETS, version, **values)
                if version >= 2:
                    pair.compare(ApiKey.LIST_OFFSETS, version, **values | {"isolation_level": 1})
        for topic, partition in (*EMPTY, *MISSING):
            for timestamp in range(-5, 1):
                values = _list_offsets(version, topic, partition, timestamp)
                pair.compare(ApiKey.LIST_OFFSETS, version, **values)


def _fetch(
    version: int,
    topic: str | UUID,
    partition: int,
    offset: int,
    isolation: int = 0,
    limits: tuple[int, int] = (1 << 20, 1 << 20),
) -> dict[str, Any]:
    most, partition_most = limits
    asked = {
        "partition": partition,
        "fetch_offset": offset,
        "partition_max_bytes": partition_most,
    }
    values: dict[str, Any] = {
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": most,
        "isolation_level": isolation,
        "topics": [{"topic_id" if version >= 13 else "topic": topic, "partitions": [asked]}],
    }
    if version < 15:
        values["replica_id"] = -1
    if version >= 7:
        values["forgotten_topics_data"] = ()
    return values


def _offsets(held: HeldPartition, *, many: bool) -> list[int]:
    step = (3 if held.fixture == "tx-0" else 29) if many else 61
    between = range(held.start, held.end, step)
    return [held.start - 1, *between, held.end - 1, held.end, held.end + 1, 2**40]


@pytest.mark.parametrize("isolation", [0, 1], ids=["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("limits", [(1 << 20, 1 << 20), (1 << 20, 3000), (1, 1)], ids=str)
def test_fetch(pair: Pair, ids: dict[str, UUID], isolation: int, limits: tuple[int, int]) -> None:
    """From many offsets, at both isolation levels, with several limits.

    Also the bytes at which an answer ends, and the list of aborted transactions, are a broker's.
    """
    fetched = 0
    for version in pair.versions(ApiKey.FETCH):
        full = (11, 16)
        for held in held_at_most(version, full):
            topic = ids[held.tp.topic] if version >= 13 else held.tp.topic
            for offset in _offsets(held, many=version in full):
                values = _fetch(version, topic, held.tp.partition, offset, isolation, limits)
                answer = pair.compare(ApiKey.FETCH, version, **values)
                fetched += len(answer.responses[0].partitions[0].records)
        for name, partition in (*EMPTY, *MISSING):
            for offset in (0, 1):
                topic = ids.get(name, UNKNOWN) if version >= 13 else name
                values = _fetch(version, topic, partition, offset, isolation, limits)
                pair.compare(ApiKey.FETCH, version, **values)
    assert fetched > 100_000


def test_fetch_of_several_partitions(pair: Pair, ids: dict[str, UUID]) -> None:
    """The limit of the whole answer ends within the second partition, or before it."""
    for version in pair.versions(ApiKey.FETCH):
        topic = ids["many"] if version >= 13 else "many"
        for most in (1, 2000, 20_000, 1 << 20):
            values = _fetch(version, topic, 0, 100, 1, (most, 10_000))
            rows = values["topics"][0]["partitions"]
            rows += [{**rows[0], "partition": number, "fetch_offset": 0} for number in (1, 2)]
            pair.compare(ApiKey.FETCH, version, **values)


def test_epoch_ends(pair: Pair) -> None:
    for version in pair.versions(ApiKey.OFFSET_FOR_LEADER_EPOCH):
        replica = {"replica_id": -1} if version >= 3 else {}
        for topic, partition in (*((held.tp.topic, held.tp.partition) for held in HELD), *MISSING):
            for epoch in (-1, 0):
                asked = {"partition": partition, "leader_epoch": epoch}
                topics = [{"topic": topic, "partitions": [asked]}]
                pair.compare(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, topics=topics, **replica)
        # A broker's -1 would mean to a client that its records were discarded.
        epoch_above = [{"partition": 0, "leader_epoch": 1000}]
        values = {"topics": [{"topic": "late", "partitions": epoch_above}], **replica}
        answer: Any = pair.endpoint.request(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, **values)
        above = answer.topics[0].partitions[0]
        late = next(held for held in HELD if held.tp.topic == "late")
        assert above.error_code is ErrorCode.none
        assert (above.leader_epoch, above.end_offset) == (0, late.end)


def test_cluster(pair: Pair) -> None:
    for version in pair.versions(ApiKey.DESCRIBE_CLUSTER):
        values: dict[str, Any] = {"include_cluster_authorized_operations": False}
        if version >= 2:
            values["include_fenced_brokers"] = False
        for kind in (1, 2) if version >= 1 else (1,):
            more = {"endpoint_type": kind} if version >= 1 else {}
            pair.compare(ApiKey.DESCRIBE_CLUSTER, version, **values, **more)


def test_settings(pair: Pair) -> None:
    for version in pair.versions(ApiKey.DESCRIBE_CONFIGS):
        more = {"include_documentation": False} if version >= 3 else {}
        for kind, name in ((2, "tx"), (2, "nope"), (4, "")):
            asked = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
            pair.compare(
                ApiKey.DESCRIBE_CONFIGS, version, resources=[asked], include_synonyms=False, **more
            )


def test_an_unknown_version_of_api_versions(pair: Pair) -> None:
    """Both answer in version 0, with error 35 (KIP-511)."""
    frame = struct.pack(">hhihB", ApiKey.API_VERSIONS, 99, 7, -1, 0) + b"\2a\2b\0"
    for client in (pair.endpoint, pair.broker):
        client.socket.sendall(struct.pack(">i", len(frame)) + frame)
        answer = client.receive()
        assert answer[:6] == struct.pack(">ih", 7, ErrorCode.unsupported_version)

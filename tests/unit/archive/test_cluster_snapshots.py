"""Cluster snapshots have a format that later versions can read, and are found by time."""

import json

import pytest

from sidetier.archive.objects.cluster_snapshots import (
    CONTENT_TYPES,
    IndexEntry,
    SnapshotIndex,
    content_json,
    decode_index,
    decode_snapshot,
    encode_index,
    encode_snapshot,
    last_definitions,
    last_group_offsets,
    read_cluster_state,
)
from sidetier.segments.cluster_state import (
    ClusterState,
    CommittedOffset,
    GroupOffsets,
    SnapshotKind,
    TopicDefinition,
    TopicDefinitions,
)
from sidetier.segments.errors import MalformedObjectError
from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from tests.harness.cluster_states import STATE, offsets

LAYOUT = ArchiveLayout("prod-a", 5)
KEY = "_sidetier/prod-a/cluster/x.json"
GOLDEN = {
    SnapshotKind.TOPICS: '{"topics":{"old":{"configs":{},"partitions":1,"replication_factor":1},'
    '"orders":{"configs":{"retention.ms":"86400000"},"partitions":3,"replication_factor":2,'
    '"topic_id":"cym-TlqmRE2h0UHouOCTtg"}}}',
    SnapshotKind.BROKER_CONFIGS: '{"brokers":{"1":{"leader.replication.throttled.rate":"1000000"}},'
    '"default":{"log.cleaner.threads":"2"},'
    '"secret":{"1":["listener.name.tls.ssl.keystore.password"]}}',
    SnapshotKind.ACLS: '{"bindings":[{"host":"*","name":"orders","operation":"READ",'
    '"pattern_type":"LITERAL","permission":"ALLOW","principal":"User:alice",'
    '"resource_type":"TOPIC"}],"enabled":true}',
    SnapshotKind.QUOTAS: '{"quotas":[{"entity":[{"entity_type":"client-id","name":null},'
    '{"entity_type":"user","name":"alice"}],"limits":{"producer_byte_rate":1024.0}}]}',
    SnapshotKind.SCRAM_USERS: '{"users":{"bob":[{"iterations":8192,"mechanism":"SCRAM_SHA_256"}]}}',
    SnapshotKind.GROUP_OFFSETS: '{"groups":{"billing":{"orders":{"0":{"offset":7},'
    '"2":{"metadata":"note","offset":9}}}}}',
}


def stored(kind: SnapshotKind, taken_ms: int = 5) -> bytes:
    return encode_snapshot(kind, "prod-a", taken_ms, 1, content_json(STATE[kind]))


@pytest.mark.parametrize("kind", SnapshotKind)
def test_stored_format_does_not_change(kind: SnapshotKind) -> None:
    assert content_json(STATE[kind]) == GOLDEN[kind]
    head = f'{{"version": 1, "kind": "{kind}", "cluster": "prod-a", "taken_ms": 5, "broker_id": 1'
    assert stored(kind) == f'{head}, "content": {GOLDEN[kind]}}}\n'.encode()


@pytest.mark.parametrize("kind", SnapshotKind)
def test_snapshot_round_trips_through_the_encoding(kind: SnapshotKind) -> None:
    found = decode_snapshot(stored(kind), KEY)
    assert found.content == STATE[kind]
    assert isinstance(found.content, CONTENT_TYPES[kind])
    assert (found.kind, found.cluster, found.taken_ms, found.broker_id) == (kind, "prod-a", 5, 1)


@pytest.mark.parametrize("kind", SnapshotKind)
def test_fields_of_a_later_version_are_ignored(kind: SnapshotKind) -> None:
    fields = json.loads(stored(kind))
    fields["more"] = 1
    fields["content"]["more"] = {"a": 1}
    assert decode_snapshot(json.dumps(fields).encode(), KEY).content == STATE[kind]


def test_fields_of_a_later_version_inside_a_topic_are_ignored() -> None:
    fields = json.loads(stored(SnapshotKind.TOPICS))
    fields["content"]["topics"]["orders"]["more"] = 1
    found = decode_snapshot(json.dumps(fields).encode(), KEY)
    assert found.content == STATE[SnapshotKind.TOPICS]


HEAD = b'{"version": 1, "kind": "topics", "cluster": "c", "taken_ms": 2, "broker_id": 3'


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "EOF while parsing"),
        (b"[]", "Input should be an object"),
        (b"\xff", "Invalid JSON"),
        (b"{}", "version: Field required"),
        (b'{"version": 2}', "has version 2, and this Sidetier reads version 1: upgrade Sidetier"),
        (b'{"version": 1, "kind": "plans"}', "kind: Input should be"),
        (HEAD + b', "content": {}}', "content.topics: Field required"),
        (
            HEAD + b', "content": {"topics": {"t": {"partitions": "x"}}}}',
            "topics.t.partitions: Input should be",
        ),
        (HEAD.replace(b"2,", b'"2",') + b', "content": {"topics": {}}}', "taken_ms: Input should"),
    ],
)
def test_error_for_an_unreadable_snapshot_names_the_key(data: bytes, reason: str) -> None:
    with pytest.raises(MalformedObjectError, match=reason) as told:
        decode_snapshot(data, KEY)
    assert KEY in str(told.value)


def test_index_round_trips_and_ignores_kinds_of_a_later_version() -> None:
    entry = IndexEntry("_sidetier/prod-a/cluster/acls/1-1.json", "ab", 7)
    index = SnapshotIndex("n", 1, 6, {SnapshotKind.ACLS: entry}, {SnapshotKind.QUOTAS: "refused"})
    assert decode_index(encode_index(index), KEY) == index
    fields = json.loads(encode_index(index))
    fields["snapshots"]["plans"] = {"key": "k"}
    fields["problems"]["plans"] = "refused"
    fields["more"] = 1
    assert decode_index(json.dumps(fields).encode(), KEY) == index


@pytest.mark.parametrize("data", [b'{"version": 1}', b'{"version": 1, "snapshots": 5}', b"null"])
def test_error_for_an_unreadable_index_names_the_key(data: bytes) -> None:
    with pytest.raises(MalformedObjectError, match=KEY):
        decode_index(data, KEY)


def test_state_at_a_time_has_the_last_snapshot_of_each_kind() -> None:
    store = FakeStorage()
    kind = SnapshotKind.GROUP_OFFSETS
    for taken_ms in (1000, 2000, 3000):
        text = content_json(offsets(taken_ms))
        key = LAYOUT.cluster_snapshot_key(kind, taken_ms, 1)
        store.put_object(key, BytesBody(encode_snapshot(kind, "prod-a", taken_ms, 1, text)))
    acls = LAYOUT.cluster_snapshot_key(SnapshotKind.ACLS, 1500, 12)
    store.put_object(acls, BytesBody(stored(SnapshotKind.ACLS, 1500)))
    other = f"{LAYOUT.cluster_snapshots_prefix(kind)}notes.txt"
    store.put_object(other, BytesBody(b"not ours"))

    assert read_cluster_state(store, LAYOUT, 999) == ClusterState()
    early = read_cluster_state(store, LAYOUT, 1499)
    assert early.acls is None
    assert early.group_offsets == offsets(1000)
    later = read_cluster_state(store, LAYOUT, 2999)
    assert later.acls == STATE[SnapshotKind.ACLS]
    assert later.group_offsets == offsets(2000)
    assert later.taken_ms == {kind: 2000, SnapshotKind.ACLS: 1500}
    assert read_cluster_state(store, LAYOUT).group_offsets == offsets(3000)


def test_deleted_topic_has_its_last_definition_and_offsets() -> None:
    store = FakeStorage()
    one, two = ({0: CommittedOffset(offset)} for offset in (1, 2))
    groups = {
        1000: GroupOffsets({"a": {"orders": one, "other": one}, "b": {"orders": one}}),
        2000: GroupOffsets({"a": {"orders": two, "other": one}}),
        3000: GroupOffsets({"a": {"other": two}}),
    }
    topics = {
        1000: TopicDefinitions({"orders": TopicDefinition(3, 1, {})}),
        2500: TopicDefinitions({"orders": TopicDefinition(4, 2, {"retention.ms": "1"})}),
        3500: TopicDefinitions({}),
    }
    for kind, contents in (
        (SnapshotKind.GROUP_OFFSETS, groups),
        (SnapshotKind.TOPICS, topics),
    ):
        for taken_ms, content in contents.items():
            text = content_json(content)
            data = encode_snapshot(kind, "prod-a", taken_ms, 1, text)
            store.put_object(LAYOUT.cluster_snapshot_key(kind, taken_ms, 1), BytesBody(data))

    wanted = {"orders", "other", "unread"}
    assert last_group_offsets(store, LAYOUT, wanted).groups == {"a": {"orders": two, "other": two}}
    assert last_group_offsets(store, LAYOUT, {"orders"}, 1999).groups == {
        "a": {"orders": one},
        "b": {"orders": one},
    }
    assert last_definitions(store, LAYOUT, {"orders": None})["orders"].replication_factor == 2
    assert last_definitions(store, LAYOUT, {"orders": None}, 2499)["orders"].partitions == 3
    assert last_definitions(store, LAYOUT, {"orders": None}, 999) == {}


def test_damaged_snapshot_is_an_error_instead_of_an_empty_state() -> None:
    store = FakeStorage()
    key = LAYOUT.cluster_snapshot_key(SnapshotKind.ACLS, 1500, 1)
    store.put_object(key, BytesBody(b"{"))
    with pytest.raises(MalformedObjectError, match=key):
        read_cluster_state(store, LAYOUT)

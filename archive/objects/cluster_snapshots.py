"""Stored snapshots of a cluster's state, and the index that names the newest of each kind.

::

    _sidetier/<cluster>/cluster/latest.json                          the index
    _sidetier/<cluster>/cluster/<kind>/<taken ms, 20 digits>-<broker id>.json   one snapshot

Each object is JSON with a `version`. Readers ignore fields that they do not know, and refuse other
versions. docs/cluster-snapshots.md describes the fields.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Generic, TypeVar

from pydantic import TypeAdapter

from sidetier.archive.objects.codec import JsonCodec
from sidetier.segments.cluster_state import (
    AclBindings,
    BrokerConfigs,
    ClientQuotas,
    ClusterState,
    CommittedOffset,
    GroupOffsets,
    ScramUsers,
    SnapshotContent,
    SnapshotKind,
    TopicDefinition,
    TopicDefinitions,
)
from sidetier.segments.errors import ObjectNotFoundError
from sidetier.segments.keys import ArchiveLayout, parse_cluster_snapshot_key
from sidetier.storage.port import RemoteStorage

SNAPSHOT_VERSION: Final = 1

CONTENT_TYPES: Final[Mapping[SnapshotKind, type[SnapshotContent]]] = {
    SnapshotKind.TOPICS: TopicDefinitions,
    SnapshotKind.BROKER_CONFIGS: BrokerConfigs,
    SnapshotKind.ACLS: AclBindings,
    SnapshotKind.QUOTAS: ClientQuotas,
    SnapshotKind.SCRAM_USERS: ScramUsers,
    SnapshotKind.GROUP_OFFSETS: GroupOffsets,
}


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """One kind of state at one time. Times are milliseconds since 1970."""

    kind: SnapshotKind
    cluster: str
    taken_ms: int
    broker_id: int
    """The broker whose sidecar took the snapshot."""
    content: SnapshotContent


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """The newest snapshot of one kind, as the index names it."""

    key: str
    content_sha256: str
    """SHA-256 of the content's JSON. Equal content is not stored again."""
    confirmed_ms: int
    """When the cluster's state was last found equal to the snapshot."""


@dataclass(frozen=True, slots=True)
class SnapshotIndex:
    """The newest snapshots, and which sidecar takes them.

    The sidecar that takes snapshots replaces the index at each turn, with a conditional put. The
    nonce makes each write another object: without it, equal indexes of two writers would have the
    same etag, and the condition would accept both.
    """

    nonce: str
    broker_id: int
    """The broker whose sidecar wrote the index."""
    written_ms: int
    snapshots: Mapping[SnapshotKind, IndexEntry] = field(default_factory=dict)
    problems: Mapping[SnapshotKind, str] = field(default_factory=dict)
    """Why a kind could not be read from the cluster at the last turn, or only in part."""


@dataclass(frozen=True, slots=True)
class StoredIndex:
    """The index as it is stored, with the etag that the next conditional put needs."""

    index: SnapshotIndex
    etag: str


def content_json(content: SnapshotContent) -> str:
    """Return the content as JSON. Equal contents give equal text."""
    plain = TypeAdapter(type(content)).dump_python(content, mode="json", exclude_defaults=True)
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def checksum_of(content: str) -> str:
    """Return the SHA-256 of a content's JSON, in hexadecimal."""
    return hashlib.sha256(content.encode()).hexdigest()


def encode_snapshot(
    kind: SnapshotKind, cluster: str, taken_ms: int, broker_id: int, content: str
) -> bytes:
    """Encode the object. `content` is the text of `content_json`, and is placed last, unchanged."""
    head = json.dumps(
        {
            "version": SNAPSHOT_VERSION,
            "kind": kind,
            "cluster": cluster,
            "taken_ms": taken_ms,
            "broker_id": broker_id,
        }
    )
    # The text is inserted, not encoded again, so that the stored bytes have its checksum.
    return f'{head[:-1]}, "content": {content}}}\n'.encode()


def decode_snapshot(data: bytes, key: str) -> ClusterSnapshot:
    """Decode the snapshot in an object; `key` is for errors.

    Raises:
        MalformedObjectError: The bytes are not a snapshot, or of an unknown version or kind.
    """
    stored = _SNAPSHOTS[_KIND.decode(data, key).kind].decode(data, key)
    return ClusterSnapshot(
        stored.kind, stored.cluster, stored.taken_ms, stored.broker_id, stored.content
    )


def encode_index(index: SnapshotIndex) -> bytes:
    """Encode the object."""
    return _INDEX.encode(asdict(index)) + b"\n"


def decode_index(data: bytes, key: str) -> SnapshotIndex:
    """Decode the index in an object; `key` is for errors.

    Raises:
        MalformedObjectError: The bytes are not an index, or of an unknown version.
    """
    stored = _INDEX.decode(data, key)
    return SnapshotIndex(
        stored.nonce,
        stored.broker_id,
        stored.written_ms,
        _of_known_kinds(stored.snapshots),
        _of_known_kinds(stored.problems),
    )


def read_index(store: RemoteStorage, layout: ArchiveLayout) -> StoredIndex | None:
    """Read the index; None if no sidecar has taken snapshots yet.

    Raises:
        MalformedObjectError: It does not parse.
    """
    key = layout.cluster_index_key()
    try:
        stored = store.get_object(key)
    except ObjectNotFoundError:
        return None
    return StoredIndex(decode_index(stored.data, key), stored.head.etag)


def read_snapshot(store: RemoteStorage, key: str) -> ClusterSnapshot:
    """Read one snapshot.

    Raises:
        MalformedObjectError: It does not parse.
    """
    return decode_snapshot(store.get_object(key).data, key)


def snapshot_times(
    store: RemoteStorage, layout: ArchiveLayout, kind: SnapshotKind
) -> Mapping[str, int]:
    """Return the keys of the stored snapshots of one kind, oldest first, with their times."""
    prefix = layout.cluster_snapshots_prefix(kind)
    rows = (
        (row.key, parse_cluster_snapshot_key(row.key, prefix)) for row in store.list_objects(prefix)
    )
    # The listing is in the order of the keys, which begin with the time. Dicts keep that order.
    return {key: taken_ms for key, taken_ms in rows if taken_ms is not None}


def read_cluster_state(
    store: RemoteStorage, layout: ArchiveLayout, until_ms: int | None = None
) -> ClusterState:
    """Read the cluster's state at a time: for each kind, the last snapshot that was taken by then.

    A snapshot is valid until the next one of its kind, since equal content is not stored again. The
    index is not needed: the snapshots that it names are listed, too.

    Args:
        store: The default store of the archive.
        layout: How keys are made.
        until_ms: The time, in milliseconds since 1970; None for the newest snapshots.

    Raises:
        MalformedObjectError: A snapshot does not parse.
    """
    contents: dict[SnapshotKind, Any] = {}
    taken: dict[SnapshotKind, int] = {}
    for kind in SnapshotKind:
        times = snapshot_times(store, layout, kind)
        keys = [key for key, taken_ms in times.items() if until_ms is None or taken_ms <= until_ms]
        if keys:
            contents[kind] = read_snapshot(store, keys[-1]).content
            taken[kind] = times[keys[-1]]
    return ClusterState(
        topics=contents.get(SnapshotKind.TOPICS),
        broker_configs=contents.get(SnapshotKind.BROKER_CONFIGS),
        acls=contents.get(SnapshotKind.ACLS),
        quotas=contents.get(SnapshotKind.QUOTAS),
        scram_users=contents.get(SnapshotKind.SCRAM_USERS),
        group_offsets=contents.get(SnapshotKind.GROUP_OFFSETS),
        taken_ms=taken,
    )


def newest_first(
    store: RemoteStorage, layout: ArchiveLayout, kind: SnapshotKind, until_ms: int | None = None
) -> Iterator[ClusterSnapshot]:
    """Yield the stored snapshots of one kind, newest first. Each is read when it is yielded.

    Args:
        store: The default store of the archive.
        layout: How keys are made.
        kind: The kind.
        until_ms: Only snapshots that were taken by then, in milliseconds since 1970; None for all.

    Raises:
        MalformedObjectError: A snapshot does not parse.
    """
    times = snapshot_times(store, layout, kind)
    for key, taken_ms in reversed(list(times.items())):
        if until_ms is None or taken_ms <= until_ms:
            yield read_snapshot(store, key)


def last_definitions(
    store: RemoteStorage,
    layout: ArchiveLayout,
    topics: Mapping[str, str | None],
    until_ms: int | None = None,
) -> dict[str, TopicDefinition]:
    """Return the newest definition of each topic, also of topics that were deleted since.

    Snapshots are read newest first, until each topic was found.

    Args:
        store: The default store of the archive.
        layout: How keys are made.
        topics: The topics, each with the topic id that its definition must have; None for any.
        until_ms: Only definitions of this time or before, in milliseconds since 1970; None for all.

    Raises:
        MalformedObjectError: A snapshot does not parse.
    """
    definitions: dict[str, TopicDefinition] = {}
    for snapshot in newest_first(store, layout, SnapshotKind.TOPICS, until_ms):
        content = snapshot.content
        known = content.topics if isinstance(content, TopicDefinitions) else {}
        for name, topic_id in topics.items():
            definition = known.get(name)
            if definition is not None and topic_id in {None, definition.topic_id}:
                definitions.setdefault(name, definition)
        if definitions.keys() >= topics.keys():
            break
    return definitions


def last_group_offsets(
    store: RemoteStorage,
    layout: ArchiveLayout,
    topics: Collection[str],
    until_ms: int | None = None,
) -> GroupOffsets:
    """Return the committed offsets of groups for these topics, also for topics that were deleted
    since.

    For each topic, the newest snapshot that has any offset for it counts: when a topic is deleted,
    Kafka deletes its committed offsets. Snapshots are read newest first, until each topic was
    found; all of them are read if no group has ever committed an offset for one of the topics.

    Args:
        store: The default store of the archive.
        layout: How keys are made.
        topics: The topics.
        until_ms: Only offsets of this time or before, in milliseconds since 1970; None for all.

    Raises:
        MalformedObjectError: A snapshot does not parse.
    """
    offsets_by_group: dict[str, dict[str, Mapping[int, CommittedOffset]]] = {}
    missing = set(topics)
    for snapshot in newest_first(store, layout, SnapshotKind.GROUP_OFFSETS, until_ms):
        content = snapshot.content
        groups = content.groups if isinstance(content, GroupOffsets) else {}
        newly_found = {topic for known in groups.values() for topic in known} & missing
        for group, known in groups.items():
            wanted = {topic: known[topic] for topic in newly_found & known.keys()}
            if wanted:
                offsets_by_group.setdefault(group, {}).update(wanted)
        missing -= newly_found
        if not missing:
            break
    return GroupOffsets(offsets_by_group)


C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class _StoredSnapshot(Generic[C]):
    kind: SnapshotKind
    cluster: str
    taken_ms: int
    broker_id: int
    content: C


@dataclass(frozen=True, slots=True)
class _Kind:
    kind: SnapshotKind


@dataclass(frozen=True, slots=True)
class _StoredIndex:
    nonce: str
    broker_id: int
    written_ms: int
    snapshots: Mapping[str, IndexEntry | Any]
    problems: Mapping[str, str | Any]

    def __post_init__(self) -> None:
        """Refuse entries of a wrong type. A newer sidecar may take kinds of other types."""
        for kind, entry in _of_known_kinds(self.snapshots).items():
            if not isinstance(entry, IndexEntry):
                raise ValueError(f"snapshots.{kind} is {entry!r}")  # noqa: TRY004 - the data is wrong
        for kind, problem in _of_known_kinds(self.problems).items():
            if not isinstance(problem, str):
                raise ValueError(f"problems.{kind} is {problem!r}")  # noqa: TRY004 - as above


def _of_known_kinds(by_kind: Mapping[str, Any]) -> dict[SnapshotKind, Any]:
    return {SnapshotKind(kind): by_kind[kind] for kind in by_kind if kind in set(SnapshotKind)}


_WHAT: Final = "a cluster snapshot"
_KIND: Final = JsonCodec(_Kind, _WHAT, SNAPSHOT_VERSION)
_SNAPSHOTS: Final[Mapping[SnapshotKind, JsonCodec[_StoredSnapshot[Any]]]] = {
    kind: JsonCodec(_StoredSnapshot[content], _WHAT, SNAPSHOT_VERSION)  # type: ignore[valid-type]
    for kind, content in CONTENT_TYPES.items()
}
_INDEX: Final = JsonCodec(_StoredIndex, "an index of cluster snapshots", SNAPSHOT_VERSION)

"""Stored objects of a later version: each reader refuses them, names key and version, and says what
to do. The objects that stop nothing are read by their keys.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest

from sidetier.archive.objects.acknowledgements import (
    Acknowledgement,
    acknowledge_gap,
    acknowledged_gaps,
    read_acknowledgement,
)
from sidetier.archive.objects.chapters import StoredChapter, encode_chapter, read_chapter
from sidetier.archive.objects.cluster_snapshots import (
    SnapshotIndex,
    content_json,
    encode_index,
    encode_snapshot,
    read_index,
    read_snapshot,
)
from sidetier.archive.objects.drill_record import (
    DrillRecord,
    decode_drill,
    read_drill,
    record_drill,
)
from sidetier.archive.objects.gaps import recorded_gaps, shorten_gap, write_gap
from sidetier.archive.objects.key_fingerprints import (
    check_stored_fingerprints,
    write_or_check_fingerprint,
)
from sidetier.archive.objects.layout import read_note, write_or_check_note
from sidetier.archive.objects.quarantine import MoveKind, MovePlan, read_plan, write_plan
from sidetier.archive.objects.starts import read_earliest_start, settle_start
from sidetier.archive.objects.tail_index import (
    StoredTailIndex,
    read_tail_index,
    write_tail_index,
)
from sidetier.archive.objects.watermark import Watermark, read_watermark, write_watermark
from sidetier.endpoint.groups.stored_offsets import StoredGroup, encode_group, parse_group
from sidetier.mirror.copy.offset_map import OffsetMap, decode_map_record
from sidetier.mirror.offsets.stored_map import MapStore, StoredMap
from sidetier.pipeline.export.sinks.files.manifest import decode_manifest
from sidetier.pipeline.export.sinks.tables.lease import Lease
from sidetier.segments.cluster_state import ScramUsers, SnapshotKind
from sidetier.segments.errors import MalformedObjectError
from sidetier.segments.offsets import (
    BaseOffset,
    BrokerId,
    LeaderEpoch,
    Offset,
    OffsetRange,
    TopicPartition,
)
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.settings import EncryptionSettings, LocalKeySettings
from tests.harness.daemons import LAYOUT

TP = TopicPartition("t", 0)
GAP = OffsetRange(Offset(0), Offset(10))
GAP_KEY = LAYOUT.gap_key(TP, *GAP)
PLAN = MovePlan(MoveKind.RETIRE, TP, "retired/t-0/id/", Offset(10))
KEYS = EncryptionSettings((("main", LocalKeySettings(b"k" * 32)),), key="main")
CHAPTER = StoredChapter("chapters/0.json", Offset(0), Offset(10))
COPY = TopicPartition("copy", 0)


@dataclass(frozen=True)
class Kind:
    """A kind of object: how the present version writes and reads it."""

    key: str
    write: Callable[[FakeStorage], object]
    read: Callable[[FakeStorage], object]


def _put(key: str, data: bytes) -> Callable[[FakeStorage], object]:
    return lambda store: store.put_object(key, BytesBody(data))


def _decoded(key: str, decode: Callable[[bytes, str], object]) -> Callable[[FakeStorage], object]:
    return lambda store: decode(store.get_object(key).data, key)


def _take_lease(store: FakeStorage) -> None:
    with Lease(store, "lease"):
        pass


def _maps(store: FakeStorage) -> MapStore:
    return MapStore(store, LAYOUT, "m")


KINDS: Mapping[str, Kind] = {
    "layout": Kind(
        LAYOUT.layout_key(),
        lambda store: write_or_check_note(store, LAYOUT, "id"),
        lambda store: read_note(store, LAYOUT),
    ),
    "offset.wm": Kind(
        LAYOUT.watermark_key(TP),
        lambda store: write_watermark(
            store, LAYOUT.watermark_key(TP), Watermark(BaseOffset(0), Offset(10)), None
        ),
        lambda store: read_watermark(store, LAYOUT.watermark_key(TP)),
    ),
    "start": Kind(
        LAYOUT.start_key(TP),
        lambda store: settle_start(store, LAYOUT, TP, Offset(5), None),
        lambda store: read_earliest_start(store, LAYOUT, TP, None),
    ),
    "fingerprint": Kind(
        LAYOUT.key_fingerprint_key("main"),
        lambda store: write_or_check_fingerprint(store, LAYOUT, KEYS),
        lambda store: check_stored_fingerprints(store, LAYOUT, KEYS),
    ),
    "plan": Kind(
        "retired/t-0/id/plan.json",
        lambda store: write_plan(store, PLAN),
        lambda store: read_plan(store, PLAN.target),
    ),
    "chapter": Kind(
        CHAPTER.key,
        _put(CHAPTER.key, encode_chapter([])),
        lambda store: read_chapter(store, CHAPTER),
    ),
    "drill": Kind(
        LAYOUT.drill_key(),
        lambda store: record_drill(
            store, LAYOUT, DrillRecord(1, succeeded=True, seed=2, partitions=3, records=4, bytes=5)
        ),
        lambda store: read_drill(store, LAYOUT),
    ),
    "cluster snapshot": Kind(
        "snapshot",
        _put(
            "snapshot",
            encode_snapshot(SnapshotKind.SCRAM_USERS, "c", 1, 1, content_json(ScramUsers({}))),
        ),
        lambda store: read_snapshot(store, "snapshot"),
    ),
    "index of cluster snapshots": Kind(
        LAYOUT.cluster_index_key(),
        _put(LAYOUT.cluster_index_key(), encode_index(SnapshotIndex("nonce", 1, 1))),
        lambda store: read_index(store, LAYOUT),
    ),
    "map of a mirror": Kind(
        LAYOUT.mirror_map_key("m", COPY),
        lambda store: _maps(store).write(StoredMap(TP, COPY, "id", Offset(10), OffsetMap([], 0))),
        lambda store: _maps(store).read(COPY),
    ),
    "map record of a mirror": Kind(
        "record",
        _put("record", b'{"version": 1, "runs": []}'),
        lambda store: decode_map_record(
            b'{"topic": "record", "partition": 0}', store.get_object("record").data
        ),
    ),
    "group of serve": Kind(
        "group",
        _put("group", encode_group(StoredGroup("g", "o", "h"))),
        _decoded("group", parse_group),
    ),
    "index of tail packs": Kind(
        LAYOUT.tail_index_key(1),
        lambda store: write_tail_index(store, LAYOUT, 1, (1, 3), (2,), StoredTailIndex()),
        lambda store: read_tail_index(store, LAYOUT, 1),
    ),
    "lease": Kind("lease", _put("lease", b'{"version": 1}'), _take_lease),
    "manifest": Kind(
        "manifest", _put("manifest", b'{"version": 1}'), _decoded("manifest", decode_manifest)
    ),
}


def _make_newer(store: FakeStorage, key: str) -> None:
    data = store.get_object(key).data
    newer = data.replace(b'"version": 1', b'"version": 2').replace(b'"version":1', b'"version":2')
    assert newer != data, "the object has no version"
    store.put_object(key, BytesBody(newer))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_object_of_a_later_version_is_refused(kind: Kind) -> None:
    store = FakeStorage()
    kind.write(store)
    if kind.key not in {"lease", "manifest"}:  # written here with the version alone
        kind.read(store)
    _make_newer(store, kind.key)

    with pytest.raises(MalformedObjectError, match=r"(?i)upgrade Sidetier") as caught:
        kind.read(store)
    assert kind.key in str(caught.value)
    assert "version 2" in str(caught.value)


def test_acknowledgement_of_a_later_version_acknowledges_by_its_key() -> None:
    store = FakeStorage()
    write_gap(store, LAYOUT, TP, GAP, BrokerId(1), LeaderEpoch(0))
    assert acknowledge_gap(store, LAYOUT, TP, GAP, Acknowledgement("why", "me", 1))
    key = LAYOUT.acknowledgement_key(GAP_KEY)
    _make_newer(store, key)

    assert acknowledged_gaps(store, LAYOUT, TP) == {GAP: key}
    assert read_acknowledgement(store, key) == Acknowledgement()


def test_gap_of_a_later_version_is_shortened_by_its_key() -> None:
    store = FakeStorage()
    write_gap(store, LAYOUT, TP, GAP, BrokerId(1), LeaderEpoch(0))
    _make_newer(store, GAP_KEY)

    shorten_gap(store, LAYOUT, TP, Offset(5))

    shorter = OffsetRange(Offset(0), Offset(5))
    assert set(recorded_gaps(store, LAYOUT, [TP])[TP]) == {GAP, shorter}
    fields = json.loads(store.contents()[LAYOUT.gap_key(TP, *shorter)])
    assert fields == {"version": 1, "start_offset": 0, "end_offset": 5}


@pytest.mark.parametrize("version", ["true", "1.0", '"1"', "null", "1e999", "[1]"])
def test_only_a_number_is_a_version(version: str) -> None:
    with pytest.raises(MalformedObjectError, match=r"key.* version .* upgrade Sidetier"):
        decode_drill(f'{{"version": {version}}}'.encode(), "key")

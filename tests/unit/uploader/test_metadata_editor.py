"""`_metadata` of long archives: entries that are added and entries that are removed."""

import json
from itertools import islice

import pytest

from sidetier.archive.objects.pinterest_metadata import (
    PartitionMetadata,
    decode_metadata,
    encode_metadata,
)
from sidetier.segments.errors import ArchiveConflictError
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import ObjectSummary
from sidetier.uploader.archive.metadata_cache import MetadataCache, MetadataEditor
from tests.harness.daemons import LAYOUT

TP = TopicPartition("t", 0)
KEY = LAYOUT.metadata_key(TP)


class Archive:
    """A partition's `.log` files, all empty, and the editor of its `_metadata`."""

    def __init__(self, store: FakeStorage) -> None:
        self.store = store
        self.editor = MetadataEditor(store, LAYOUT, MetadataCache(1 << 20))
        self.listings = 0
        self.bases: dict[int, None] = {}

    def add(self, *bases: int) -> None:
        """Store the segments and add them to `_metadata`."""
        self.bases |= dict.fromkeys(bases)
        segments = [(BaseOffset(base), base + 1) for base in bases]
        self.editor.add(TP, segments, self.stored, self.expect_ours)

    def expect_ours(self) -> None:
        """Another sidecar has not written `offset.wm`."""

    def stored(self) -> list[ObjectSummary]:
        self.listings += 1
        key = LAYOUT.object_key
        return [
            ObjectSummary(key(TP, BaseOffset(base), FileKind.LOG), 1, "e", base + 1)
            for base in self.bases
        ]

    def entries(self) -> list[int]:
        data = self.store.contents()[KEY]
        assert json.loads(data)["metadata"]["timeindex"]["size"] == len(
            decode_metadata(data, KEY).entries
        )
        return [entry.base_offset for entry in decode_metadata(data, KEY).entries]


@pytest.fixture
def archive(store: FakeStorage) -> Archive:
    return Archive(store)


def test_segments_deleted_by_a_lifecycle_rule_lose_their_entries(archive: Archive) -> None:
    for base in range(0, 9990, 10):
        archive.add(base)
    assert len(archive.entries()) == 999
    for base in range(0, 5000, 10):
        del archive.bases[base]
    archive.add(9990)
    assert archive.entries() == list(range(5000, 10_000, 10))


def test_archive_is_not_listed_at_each_commit(archive: Archive) -> None:
    """The archive keeps its length, because segments are deleted as fast as they are added."""
    archive.add(*range(999))
    listed = archive.listings
    for base in range(1000, 1200):
        del archive.bases[min(archive.bases)]
        archive.add(base)
    assert archive.listings - listed <= 2
    assert len(archive.entries()) <= 1250


@pytest.mark.parametrize(("live", "most_entries"), [(1_000, 2_000), (10_000, 13_000)])
def test_size_of_metadata_depends_on_live_segments_not_on_the_archives_age(
    archive: Archive, live: int, most_entries: int
) -> None:
    """A lifecycle rule keeps `live` segments. Offsets and times are as large as after years."""
    first, each, step = 1_000_000_000_000, 1_000_000, 100
    archive.add(*range(first, first + live * each, each))
    largest = 0
    for at in range(live, live + 3_500, step):
        for base in list(islice(archive.bases, step)):
            del archive.bases[base]
        archive.add(*range(first + at * each, first + (at + step) * each, each))
        assert len(archive.bases) == live
        largest = max(largest, len(archive.store.contents()[KEY]))
    assert live * 74 < largest < most_entries * 75


def test_entries_above_the_watermark_are_kept(archive: Archive) -> None:
    """A killed commit added entries of segments above the watermark."""
    archive.add(*range(998))
    above = PartitionMetadata(TP).with_segments(
        [(BaseOffset(base), base + 1) for base in (*range(998), 5000)]
    )
    archive.store.put_object(KEY, BytesBody(encode_metadata(above)))
    del archive.bases[0]
    archive.add(998)
    assert archive.entries() == [*range(1, 999), 5000]


def test_metadata_of_pinterest_is_read_and_rewritten(archive: Archive) -> None:
    entries = [{"baseOffset": 0, "relativeOffset": 0, "timestamp": 5}]
    document = {
        "metadata": {"timeindex": {"entries": entries, "size": 1}},
        "topicPartition": {"topic": "t", "partition": 0, "loadHash": 7},
    }
    archive.store.put_object(KEY, BytesBody(json.dumps(document).encode()))
    archive.add(10)
    archive.add(20)
    assert archive.entries() == [0, 10, 20]


@pytest.mark.parametrize("is_cached", [True, False])
def test_segments_that_a_quarantine_may_have_moved_are_not_named_again(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, *, is_cached: bool
) -> None:
    """Another sidecar has written `offset.wm` and `_metadata` since this one has read them."""
    archive.add(0)
    others = Archive(archive.store)
    others.bases = dict(archive.bases)
    others.add(10)
    if not is_cached:
        archive.editor = MetadataEditor(archive.store, LAYOUT, MetadataCache(1 << 20))

    def conflict() -> None:
        raise ArchiveConflictError("offset.wm")

    monkeypatch.setattr(archive, "expect_ours", conflict)
    with pytest.raises(ArchiveConflictError, match=r"offset\.wm"):
        archive.add(5)
    assert archive.entries() == [0, 10]

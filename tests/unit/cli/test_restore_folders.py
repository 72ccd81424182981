"""Quarantined and retired archives are read from the folders where the sidecar moved them."""

import json
from collections.abc import Sequence

import pytest

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.objects.quarantine import Cut, MoveKind, MovePlan, quarantine_name, write_plan
from sidetier.archive.objects.watermark import (
    Watermark,
    decode_watermark,
    encode_watermark,
    read_watermark,
)
from sidetier.archive.reader import ArchiveReader, ReachedEnd, ReaderSettings
from sidetier.mirror.copy.archive_source import ArchivedBatches, ArchiveGap, ArchiveSource
from sidetier.mirror.restore.folders import FolderChoice, FolderKind, folder_archive
from sidetier.segments.batches import split_batches
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import BaseOffset, LeaderEpoch, Offset, TopicPartition
from sidetier.storage.fake import FakeStorage
from sidetier.uploader.archive.quarantine.mover import MoveContext, carry_out
from sidetier.uploader.archive.quarantine.retirement import retire
from tests.harness.made_archive import (
    LAYOUT,
    TP,
    MadeArchive,
    access_to,
    batches,
    encoded,
    offsets,
    take_to_end,
)

QUARANTINE = FolderChoice(FolderKind.QUARANTINE)
RETIRED = FolderChoice(FolderKind.RETIRED)


def archive(store: FakeStorage, *, topic_id: str, tp: TopicPartition = TP) -> MadeArchive:
    made = MadeArchive(store, tp=tp)
    made.segment(0, batches(0, 20))
    made.segment(20, batches(20, 40))
    made.gap(40, 45)
    made.segment(45, batches(45, 60))
    made.mark(45, 60, topic_id=topic_id)
    return made


def put_into_quarantine(store: FakeStorage, divergence_offset: int, epoch: int = 7) -> str:
    """Quarantine segments as a sidecar does after an unclean election; return the folder's name."""
    key = LAYOUT.watermark_key(TP)
    found = store.get_object(key)
    name = quarantine_name(Offset(divergence_offset), LeaderEpoch(epoch))
    kept = encoded(batches(20, divergence_offset))
    plan = MovePlan(
        MoveKind.QUARANTINE,
        TP,
        f"{LAYOUT.quarantine_prefix(TP)}{name}/",
        Offset(divergence_offset),
        kept=BaseOffset(0),
        cut=Cut(BaseOffset(20), len(kept)),
        leader_epoch=LeaderEpoch(epoch),
        watermark=found.data.decode(),
    )
    shop = MoveContext(store, LAYOUT)
    carry_out(shop, write_plan(store, plan), decode_watermark(found.data, key), found.head.etag)
    return name


def retire_now(store: FakeStorage, tp: TopicPartition) -> None:
    """Retire the archive as `sidetier retire` does."""
    stored = read_watermark(store, LAYOUT.watermark_key(tp))
    retire(MoveContext(store, LAYOUT), tp, stored, "a test")


def opened(store: FakeStorage, choice: FolderChoice) -> ArchiveAccess:
    return folder_archive(access_to(store), choice, lambda _tp: True)[0]


def read_offsets(access: ArchiveAccess, start: int, tp: TopicPartition = TP) -> Sequence[int]:
    """Base offsets of the batches a restore reads, and the starts of gaps as negative numbers."""
    source, at = ArchiveSource(access), Offset(start)
    found: list[int] = []
    while True:
        read = source.read(tp, at)
        if isinstance(read, ArchiveGap):
            found.append(-read.start)
            at = read.end
        elif isinstance(read, ArchivedBatches):
            for _, header in split_batches(read.data):
                if header.next_offset > at:
                    found.append(int(header.base_offset))
                    at = header.next_offset
        else:
            return found


def test_retired_archive_is_read_with_its_gap() -> None:
    store = FakeStorage()
    archive(store, topic_id="first")
    retire_now(store, TP)
    access = opened(store, RETIRED)
    view = ArchiveSource(access).view(TP)
    assert view is not None
    assert (view.start, view.end) == (0, 60)
    assert read_offsets(access, 0) == [0, 5, 10, 15, 20, 25, 30, 35, -40, 45, 50, 55]
    read = ArchiveSource(access).read(TP, Offset(40))
    assert isinstance(read, ArchiveGap)
    assert "the broker had deleted them before they were stored" in read.detail


def test_quarantined_archive_begins_at_the_divergence() -> None:
    store = FakeStorage()
    archive(store, topic_id="first")
    name = put_into_quarantine(store, 30)
    access = opened(store, QUARANTINE)
    view = ArchiveSource(access).view(TP)
    assert view is not None
    assert (view.start, view.end) == (30, 60)
    assert f"quarantine/orders-0/{name}/" in view.where
    assert read_offsets(access, 30) == [30, 35, -40, 45, 50, 55]
    live = ArchiveSource(access_to(store)).view(TP)
    assert live is not None
    assert live.end == 30


def test_records_and_times_in_a_folder_are_found() -> None:
    store = FakeStorage()
    archive(store, topic_id="first")
    retire_now(store, TP)
    reader = ArchiveReader(opened(store, RETIRED), ReaderSettings())
    try:
        assert reader.offset_for_time(TP, 47) == 47
        reader.assign(TP, 47)
        taken = take_to_end(reader)
    finally:
        reader.close()
    assert isinstance(taken[-1], ReachedEnd)
    assert offsets(taken) == list(range(47, 60))


def test_folders_are_listed_if_none_is_named() -> None:
    store = FakeStorage()
    for topic_id in ("first", "second"):
        archive(store, topic_id=topic_id)
        retire_now(store, TP)
    with pytest.raises(ConfigurationError) as refused:
        opened(store, RETIRED)
    assert str(refused.value).splitlines() == [
        "--from-retired: name one of these folders, --from-retired NAME",
        "  orders-0  first",
        "  orders-0  second",
    ]
    access = opened(store, FolderChoice(FolderKind.RETIRED, "second"))
    assert access.watermarks[TP].topic_id == "second"
    with pytest.raises(ConfigurationError, match="--from-retired third: there is no such folder"):
        opened(store, FolderChoice(FolderKind.RETIRED, "third"))


def test_partitions_without_a_folder_are_left_out() -> None:
    store = FakeStorage()
    other = TopicPartition("orders", 1)
    archive(store, topic_id="first")
    archive(store, topic_id="first", tp=other)
    retire_now(store, other)
    access, folders = folder_archive(access_to(store), RETIRED, lambda _tp: True)
    assert list(folders) == [other]
    assert read_offsets(access, 45, other) == [45, 50, 55]


def test_empty_quarantine_is_an_error() -> None:
    store = FakeStorage()
    archive(store, topic_id="first")
    with pytest.raises(ConfigurationError, match="no segment of these topics"):
        opened(store, QUARANTINE)


def test_folder_that_is_still_being_filled_is_refused() -> None:
    store = FakeStorage()
    archive(store, topic_id="first")
    name = put_into_quarantine(store, 30)
    target = f"{LAYOUT.quarantine_prefix(TP)}{name}/"
    mark = Watermark(BaseOffset(0), Offset(30), pending=target, nonce="n")
    MadeArchive(store).put(LAYOUT.watermark_key(TP), encode_watermark(mark))
    with pytest.raises(ConfigurationError, match="still being moved there"):
        opened(store, QUARANTINE)


def test_segments_quarantined_by_a_takeover_can_be_named() -> None:
    """They have no plan, and their folder names have two parts."""
    store = FakeStorage()
    made = archive(store, topic_id="first")
    prefix = LAYOUT.partition_prefix(TP)
    target = f"{LAYOUT.quarantine_prefix(TP)}peer/0123/"
    for key in [row.key for row in store.list_objects(f"{prefix}{45:020d}")]:
        found = store.get_object(key)
        made.put(target + key.removeprefix(prefix), found.data, dict(found.head.metadata))
    access = opened(store, FolderChoice(FolderKind.QUARANTINE, "peer/0123"))
    assert read_offsets(access, 45) == [45, 50, 55]


def test_retired_pinterest_archive_is_read_to_its_last_segment() -> None:
    store = FakeStorage()
    made = MadeArchive(store, is_pinterest=True)
    made.segments(0, 20, 40)
    retire_now(store, TP)
    plan = next(
        row.key for row in store.list_objects("_sidetier/") if row.key.endswith("plan.json")
    )
    assert json.loads(store.get_object(plan).data)["watermark"] == f"{20:020d}"
    assert read_offsets(opened(store, RETIRED), 0) == [0, 5, 10, 15, 20, 25, 30, 35]

"""What is stored of a partition: readers, gc, verify and repair get the same segments."""

import pytest

from sidetier.archive.inventory.contents import Inventory, NotedSegment
from sidetier.archive.inventory.overview import list_archive
from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.archive.objects.segment import SegmentFiles
from sidetier.archive.objects.watermark import StoredWatermark, Watermark
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, Offset, OffsetRange
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import ObjectSummary
from tests.harness.made_archive import LAYOUT, TP, MadeArchive, access_to
from tests.unit.archive.test_orphan_segments import name, strange, values


def test_orphan_below_the_start_does_not_replace_the_segment_that_has_it() -> None:
    """The start is in `30.log`. The orphan `31.log` begins nearer to it."""
    archive = MadeArchive()
    archive.segments(0, 10, 20, 30, 40, 50)
    archive.segment(25, strange(25, 35))
    archive.segment(31, strange(31, 35))
    name(archive, 0, 10, 20, 30, 40)
    archive.mark(40, 50, start_offset=32)
    stored = StoredPartition(archive.store, LAYOUT, TP)
    mark = stored.watermark()
    assert mark is not None

    for inventory in (stored.committed(mark), stored.consistent()):
        assert [log.base_offset for log in inventory.logs] == [30, 40]
        assert [log.base_offset for log in inventory.orphans] == [0, 10, 20, 25, 31]
        assert not list(inventory.missing_offsets())
        assert inventory.view("here").start == 32
    assert values(archive, 32) == [f"value-{at}".encode() for at in range(32, 50)]


def files(base: int, *kinds: FileKind) -> SegmentFiles:
    rows = {kind: ObjectSummary(f"{base}{kind}", 1, "e", 0) for kind in kinds or (FileKind.LOG,)}
    return SegmentFiles(BaseOffset(base), rows)


def inventory(*segments: SegmentFiles, start: int | None = None, **noted: int) -> Inventory:
    mark = Watermark(
        BaseOffset(30), Offset(40), start_offset=None if start is None else Offset(start)
    )
    ends = [NotedSegment(BaseOffset(int(base[1:])), Offset(end)) for base, end in noted.items()]
    gaps = (OffsetRange(Offset(5), Offset(8)),)
    return Inventory(TP, StoredWatermark(mark, "e", "", 0), segments, gaps=gaps).with_noted(ends)


@pytest.mark.parametrize(
    ("known", "missing"),
    [
        (inventory(files(0), files(30)), []),
        (inventory(files(0), files(30), _30=40), []),
        (inventory(files(0), files(30), _0=3, _30=40), [(3, 5), (8, 30)]),
        (inventory(files(0), files(30), _0=30, _30=38), [(38, 40)]),
        (inventory(files(0), files(10), files(30), _0=30, _10=12, _30=40), []),
        (inventory(files(0), files(10, FileKind.INDEX), files(30), _0=10, _30=40), [(10, 30)]),
    ],
)
def test_missing_offsets(known: Inventory, missing: list[tuple[int, int]]) -> None:
    """An unknown end proves nothing, and a recorded gap is no missing offset."""
    assert list(known.missing_offsets()) == missing


def test_segments_above_the_end_and_below_the_start_are_no_members() -> None:
    known = inventory(files(0), files(10), files(30), files(40), start=12)
    assert [segment.base_offset for segment in known.members] == [10, 30]
    assert [segment.base_offset for segment in known.above_end] == [40]
    assert list(known.deleted_start()) == []
    assert list(inventory(files(20), files(30), start=2).deleted_start()) == [(2, 5), (8, 20)]


def test_a_foreign_object_between_segments_does_not_end_a_listing() -> None:
    store = FakeStorage()
    stored = StoredPartition(store, LAYOUT, TP)
    for name_ in (f"{0:020d}.log", f"{10:020d}.log.tmp", f"{20:020d}.log", f"{30:020d}.log"):
        store.put_object(stored.prefix + name_, BytesBody(b"x"))
    assert [log.base_offset for log in stored.logs(5, 30)] == [20]
    found, etag = stored.segments_then_etag(BaseOffset(0), BaseOffset(20))
    assert (sorted(found), etag) == ([0, 20], None)


def test_an_overview_lists_a_partition_again_whose_end_moves_meanwhile() -> None:
    """A sidecar commits `20.log` between the listing and the reading of `offset.wm`."""
    store = FakeStorage()
    archive = MadeArchive(store)
    archive.segments(0, 10, 20)
    store.race("get", lambda: archive.segments(20, 30), key=LAYOUT.watermark_key(TP))
    [row] = list_archive(access_to(store))
    assert (row.segments, row.watermark, row.next_offset) == (3, 20, 30)
    assert (row.segments_above_watermark, row.problem) == (0, None)

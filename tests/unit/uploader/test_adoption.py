"""Selection of the stored segments above the watermark that continue the archive without a gap."""

import pytest

from sidetier.segments.offsets import BaseOffset, Offset
from sidetier.storage.bodies import BytesBody
from sidetier.storage.encrypted_format import marker_key
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import PutOptions
from sidetier.uploader.archive.adoption import contiguous
from sidetier.uploader.state.segment import StoredSegment
from tests.harness.cut_logs import cut_log
from tests.harness.daemons import LAYOUT, RunningDaemon, Site, key_of, stored_next
from tests.harness.encryption import encrypting, without_keys
from tests.harness.log_dir import LogDir, PartitionLog


def stored(base: int, end: int) -> StoredSegment:
    return StoredSegment(BaseOffset(base), Offset(end), 0, 100, 0)


@pytest.mark.parametrize(
    ("ranges", "chosen"),
    [
        ([], []),
        ([(0, 10), (10, 20)], [(0, 10), (10, 20)]),
        ([(0, 10), (5, 20)], [(0, 10), (5, 20)]),
        ([(0, 20), (10, 20), (20, 30)], [(0, 20), (20, 30)]),
        ([(0, 20), (5, 8), (8, 30)], [(0, 20), (8, 30)]),
        ([(0, 20), (5, 8)], [(0, 20)]),
        ([(0, 10), (11, 20)], [(0, 10)]),
        ([(5, 20)], []),
    ],
    ids=str,
)
def test_a_contained_segment_does_not_lower_the_archive_end_offset(
    ranges: list[tuple[int, int]], chosen: list[tuple[int, int]]
) -> None:
    found = contiguous([stored(*limits) for limits in ranges], Offset(0))
    assert found == [stored(*limits) for limits in chosen]


def test_segments_that_end_at_or_below_the_archive_end_offset_are_left_out() -> None:
    found = contiguous([stored(0, 5), stored(0, 10), stored(10, 20)], Offset(10))
    assert found == [stored(10, 20)]


def test_a_marker_that_a_kill_has_lost_is_stored_again_before_the_segment_is_committed(
    log_dir: LogDir, log: PartitionLog
) -> None:
    """The kill came after the put of the `.log`, and another process had just deleted this key."""
    inner = FakeStorage()
    site = Site([log_dir], encrypting(inner))
    log.closed_segments(1)
    log_dir.checkpoint_high_watermarks()
    site.settle()
    mark = inner.get_object(LAYOUT.watermark_key(log.tp))
    log.closed_segments(1)
    log_dir.checkpoint_high_watermarks()
    site.settle()
    assert stored_next(inner, log.tp) == 20
    inner.put_object(mark.head.key, BytesBody(mark.data), PutOptions(metadata=mark.head.metadata))
    last = key_of(log.tp, 10)
    marker = marker_key(last, len(inner.contents()[last]))
    inner.delete_object(marker)
    puts = inner.count("put", last)

    site.settle()
    assert stored_next(inner, log.tp) == 20
    assert inner.count("put", last) == puts, "the stored segment is adopted"
    assert marker in inner.contents()
    listed = {row.key: row.size for row in without_keys(inner).list_objects("")}
    assert listed[last] == len(log.written[10])


def test_a_segment_that_was_cut_before_it_was_committed_is_not_adopted(
    log_dir: LogDir, log: PartitionLog
) -> None:
    """A sidecar was killed before it wrote `offset.wm`, and the `.log` has lost a batch since."""
    store = FakeStorage()
    site = Site([log_dir], store)
    log.closed_segments(1)
    log_dir.checkpoint_high_watermarks()
    site.settle()
    mark = store.get_object(LAYOUT.watermark_key(log.tp))
    log.closed_segments(1)
    log_dir.checkpoint_high_watermarks()
    site.settle()
    store.put_object(mark.head.key, BytesBody(mark.data), PutOptions(metadata=mark.head.metadata))
    last = key_of(log.tp, 10)
    cut_log(store, last)

    with site.running() as daemon:
        daemon.wait(lambda: said(daemon, log, f"{last} has"), "an error that names the segment")
        assert said(daemon, log, "bytes were archived")
        assert stored_next(store, log.tp) == 10
        store.delete_object(last)  # as the error says
        daemon.wait(lambda: stored_next(store, log.tp) == 20, "the segment to be stored again")
    assert store.get_object(last).data == log.written[10]


def said(daemon: RunningDaemon, log: PartitionLog, text: str) -> bool:
    status = daemon.status(log.tp)
    return status is not None and status.last_error is not None and text in status.last_error

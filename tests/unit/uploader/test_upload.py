"""The upload of one segment: what its last checks refuse."""

import pytest

from sidetier.archive.objects.acknowledgements import Acknowledgement, accept_loss
from sidetier.segments.errors import SegmentChangedError
from sidetier.segments.listing import ClosedSegment
from sidetier.segments.offsets import BaseOffset, BrokerId, LeaderEpoch, Offset, OffsetRange
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import ChecksumAlgorithm, StorageCapabilities
from sidetier.uploader.errors import StoredOtherwiseError, UnarchivableError
from sidetier.uploader.pinning.pins import pin
from sidetier.uploader.sending.upload import Destination, ReadingRules, Uploader
from sidetier.uploader.state.plan import PlannedSegment
from sidetier.uploader.state.segment import StoredSegment
from tests.harness.batches import make_batch
from tests.harness.daemons import LAYOUT, stored_logs
from tests.harness.log_dir import PartitionLog


def destination(store: FakeStorage, log: PartitionLog, *, begins: bool = False) -> Destination:
    return Destination(
        store,
        LAYOUT,
        log.tp,
        LeaderEpoch(0),
        BrokerId(1),
        directory=str(log.path),
        begins=begins,
    )


def test_segment_that_changes_during_its_upload_is_not_stored(log: PartitionLog) -> None:
    """The store verifies another checksum than ours, so it accepts any bytes. The broker truncates
    the segment after the verification and writes other records in its place.
    """
    store = FakeStorage(
        capabilities=StorageCapabilities(conditional_writes=True, checksum=ChecksumAlgorithm.CRC32C)
    )
    log.closed_segment(10)
    log.set_age(0, 5)
    pinned = pin(
        str(log.path), ClosedSegment(BaseOffset(0), BaseOffset(10), marked_for_deletion=False)
    )
    rewritten = log.written[0][::-1]

    def rewrite(_: int) -> None:
        log.file(0).write_bytes(rewritten)

    planned = PlannedSegment(pinned.segment, Offset(0))
    uploader = Uploader(ReadingRules(rewrite, give_back_cold=False))
    try:
        with pytest.raises(SegmentChangedError, match="changed while it was pinned"):
            uploader.upload(destination(store, log), pinned, planned, frozenset())
    finally:
        pinned.close()
    assert stored_logs(store, log.tp) == {0: rewritten}, "the store could not tell"


@pytest.mark.parametrize("accepts", [False, True])
def test_old_message_format_is_refused_until_its_loss_is_accepted(
    store: FakeStorage, log: PartitionLog, *, accepts: bool
) -> None:
    log.closed_segments(2)
    log.file(10).write_bytes(make_batch(10, 10, magic=1))
    if accepts:
        lost = OffsetRange(Offset(10), Offset(30))
        assert accept_loss(store, LAYOUT, log.tp, lost, Acknowledgement("copied to t-v2"))
    pinned = pin(
        str(log.path), ClosedSegment(BaseOffset(10), BaseOffset(20), marked_for_deletion=False)
    )
    planned = PlannedSegment(pinned.segment, Offset(10))
    uploader = Uploader(ReadingRules(lambda _: None, give_back_cold=False))
    try:
        with pytest.raises(UnarchivableError, match="message format v1") as refused:
            uploader.upload(destination(store, log), pinned, planned, frozenset())
    finally:
        pinned.close()
    assert refused.value.accepted is accepts
    assert stored_logs(store, log.tp) == {}


def upload_from_within_a_batch(
    store: FakeStorage, log: PartitionLog, *, begins: bool
) -> StoredSegment:
    """Upload from offset 7, where the archive ends or is to begin; the batch [5, 10) has left the
    log.
    """
    log.closed_segment(10, batch=5)
    log.stage(0)
    pinned = pin(
        str(log.path), ClosedSegment(BaseOffset(0), BaseOffset(10), marked_for_deletion=True)
    )
    planned = PlannedSegment(pinned.segment, Offset(7))
    uploader = Uploader(ReadingRules(lambda _: None, give_back_cold=False))
    try:
        to = destination(store, log, begins=begins)
        return uploader.upload(to, pinned, planned, frozenset())
    finally:
        pinned.close()


def test_archive_that_ends_within_a_batch_is_of_another_history(
    store: FakeStorage, log: PartitionLog
) -> None:
    with pytest.raises(StoredOtherwiseError, match="ends at 7, within the record batch from 5"):
        upload_from_within_a_batch(store, log, begins=False)
    assert not store.contents()


def test_archive_may_begin_within_a_batch(store: FakeStorage, log: PartitionLog) -> None:
    """`offset_reset: latest` set the start at a segment that was truncated since, or at one of a
    replica with other boundaries: nothing of another history is stored yet.
    """
    stored = upload_from_within_a_batch(store, log, begins=True)
    assert (stored.base_offset, stored.next_offset) == (5, 10)
    assert stored_logs(store, log.tp).keys() == {5}

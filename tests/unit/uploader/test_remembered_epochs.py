"""What the broker's checkpoint has dropped from its front is remembered, and still decides."""

import json
from contextlib import closing

import pytest

from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.errors import DamagedSegmentError
from sidetier.segments.listing import ClosedSegment
from sidetier.segments.offsets import BaseOffset, LeaderEpoch, Offset
from sidetier.storage.fake import FakeStorage
from sidetier.uploader.gates.remembered_epochs import RememberedEpochs
from sidetier.uploader.pinning.pins import pin
from sidetier.uploader.sending.reading import ColdPages
from sidetier.uploader.sending.verify import Reading, verify
from sidetier.uploader.state.plan import PlannedSegment
from tests.harness.archive_sound import check_archive, recorded_gaps
from tests.harness.daemons import (
    LAYOUT,
    LeadershipByHand,
    RunningDaemon,
    Site,
    stored_logs,
    stored_next,
)
from tests.harness.log_dir import LogDir, PartitionLog
from tests.unit.uploader.test_quarantine import archive, check_history, elect, quarantined

pytestmark = pytest.mark.usefixtures("quick_gaps", "quick_divergences")


def test_epochs_that_the_checkpoint_drops_are_remembered(log: PartitionLog) -> None:
    history = RememberedEpochs()
    log.append(10)
    log.lead(1)
    log.append(10)
    log.lead(3)
    log.append(10)
    assert history.read(str(log.path)) == _epoch_history((0, 0), (1, 10), (3, 20))
    log.start_at(15)
    assert history.read(str(log.path)) == _epoch_history((0, 0), (1, 10), (3, 20))
    log.truncate(25)
    log.lead(4)
    log.append(5)
    log.start_at(25)
    assert history.read(str(log.path)) == _epoch_history((4, 25)), (
        "where epoch 4 began nobody has seen"
    )


def test_epochs_that_truncation_drops_are_forgotten(log: PartitionLog) -> None:
    history = RememberedEpochs()
    log.append(10)
    log.lead(1)
    log.append(10)
    history.read(str(log.path))
    log.truncate(5)
    log.lead(2)
    log.append(20)
    history.read(str(log.path))
    log.start_at(20)
    assert history.read(str(log.path)) == _epoch_history((0, 0), (2, 5))


def test_an_empty_log_that_goes_on_in_a_known_epoch_has_the_same_history(
    log: PartitionLog,
) -> None:
    """Kafka's `truncateFullyAndStartAt`: the leader's log start has passed all that was there."""
    history = RememberedEpochs()
    log.append(10)
    log.lead(1)
    log.append(10)
    history.read(str(log.path))
    log.begin_at(30)
    assert history.read(str(log.path)) == _epoch_history()
    log.lead(1)
    assert history.read(str(log.path)) == _epoch_history((0, 0), (1, 10))


def _epoch_history(*entries: tuple[int, int]) -> EpochHistory:
    return EpochHistory(tuple((LeaderEpoch(epoch), Offset(start)) for epoch, start in entries))


# -- what truncation leaves, once the log start has passed it --------------------------------------


def truncate(log: PartitionLog) -> None:
    """What begins at 10 was never committed. Truncation leaves the segment from 40 on as
    `.deleted`, and the log goes on in epoch 1.
    """
    log.truncate(10)
    log.unlink(60)
    for base in (40, 60):
        log.written.pop(base, None)
    log.lead(1)
    log.closed_segment(35)
    log.closed_segment(25)


def pass_log_start(log: PartitionLog, start: int) -> None:
    """The log starts there, and nothing is left of retention's own `.deleted` files."""
    for base in [base for base in log.bases() if base < start]:
        log.unlink(base)
    log.start_at(start)


def says(running: RunningDaemon, log: PartitionLog, text: str) -> bool:
    status = running.status(log.tp)
    return status is not None and text in (status.last_error or "")


def unstored(running: RunningDaemon, log: PartitionLog) -> int | None:
    status = running.status(log.tp)
    return None if status is None else status.unstored_segments


def test_what_truncation_left_is_not_stored_once_the_log_start_has_passed_it(
    log: PartitionLog,
) -> None:
    """Its epoch was seen to end before."""
    history = RememberedEpochs()
    log.closed_segment(10)
    log.closed_segment(30)
    log.closed_segment(20)
    truncate(log)
    history.read(str(log.path))
    pass_log_start(log, 70)
    left = pin(
        str(log.path), ClosedSegment(BaseOffset(40), BaseOffset(60), marked_for_deletion=True)
    )
    pages, buffer = ColdPages(left.log, watch=False), memoryview(bytearray(4096))
    reading = Reading(pages, buffer, lambda _: None, read_epochs=history.read, committed=True)
    with closing(left), pytest.raises(DamagedSegmentError, match="but that epoch ends at 10"):
        verify(left, PlannedSegment(left.segment, Offset(40)), reading)


def test_nor_where_nobody_has_seen_its_epoch_end(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    log.closed_segment()
    archive(log, store)
    log.closed_segment(30)
    log.closed_segment(20)
    truncate(log)
    pass_log_start(log, 70)
    log_dir.checkpoint_high_watermarks()
    with Site([log_dir], store).running() as running:
        running.wait(lambda: says(running, log, "whether retention or truncation"), "the refusal")
        log.unlink(40)
        running.wait(lambda: stored_next(store, log.tp) == 70, "the gap")
    assert recorded_gaps(store, log.tp) == [(10, 40), (40, 70)]
    check_history(log, store)


def test_what_was_seen_in_the_log_behind_the_high_watermark_needs_no_epoch(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """The sidecar stood still over an election, and until the log start had passed the new epoch's
    beginning. Of the last segment it does not know that it was committed.
    """
    log.closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    with Site([log_dir], store).running() as running:
        with store.away():
            running.wait(lambda: unstored(running, log) == 2, "the first look")
            log.closed_segment()
            running.wait(lambda: unstored(running, log) == 3, "the second look at both")
            log._epochs = [(1, 30)]
            log._write_epochs()
            for base in (0, 10, 20):
                log.unlink(base)
            log_dir.checkpoint_high_watermarks()
        running.wait(lambda: stored_next(store, log.tp) == 30, "all of it")
    assert stored_logs(store, log.tp) == {base: log.written[base] for base in (0, 10)}
    assert recorded_gaps(store, log.tp) == [(20, 30)]
    check_archive(store, log.tp)


# -- an unclean election, once the log start has passed the beginning of its epoch -----------------


def test_a_divergence_that_was_seen_is_set_aside_though_the_checkpoint_has_dropped_it(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """The archive reaches 40; the log left it at 15, in epoch 1, and begins at 45 by the time that
    the sidecar hears of its lead.
    """
    log.closed_segments(4)
    log_dir.checkpoint_high_watermarks()
    leadership = LeadershipByHand({log.tp: 0})
    with Site([log_dir], store, leadership).running() as running:
        running.wait(lambda: stored_next(store, log.tp) == 40, "what was there")
        elect(log, 15, more=30)
        log_dir.checkpoint_high_watermarks()
        running.wait(lambda: says(running, log, "ends with 1"), "the refusal")
        log.append(15)
        pass_log_start(log, 45)
        leadership.lead(log.tp, 1)
        running.wait(lambda: stored_next(store, log.tp) == 45, "the segment that is held open")
    assert recorded_gaps(store, log.tp) == []
    assert {name.split("/")[0] for name in quarantined(store, log.tp)} == {f"{15:020d}-epoch-1"}
    check_history(log, store)


@pytest.mark.parametrize(
    ("elected", "said"), [(False, "verified"), (True, "unverified")], ids=["no election", "one"]
)
def test_a_gap_tells_whether_the_archive_below_it_is_known_to_be_the_logs(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage, *, elected: bool, said: str
) -> None:
    """The sidecar was away, and the log begins above the archive when it comes back. The first
    epoch of the log may have begun anywhere below.
    """
    log.closed_segment()
    archive(log, store)
    if elected:
        elect(log, 5, more=0)
        log.unlink(10)
    log.closed_segments(2)
    pass_log_start(log, log.active)
    log.closed_segment()
    log_dir.checkpoint_high_watermarks()
    Site([log_dir], store).settle()
    [gap] = recorded_gaps(store, log.tp)
    assert gap == (10, log.bases()[0])
    record = json.loads(store.contents()[LAYOUT.gap_key(log.tp, *map(Offset, gap))])
    assert record["archive_below"] == said
    assert stored_next(store, log.tp) == log.active


def test_the_first_segment_tells_where_an_epoch_began_that_the_log_start_has_passed(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """The sidecar was away while records were deleted up to 30, in the middle of a segment: the
    checkpoint has dropped that epoch 1 began at 15.
    """
    log.closed_segment(25)
    archive(log, store)
    elect(log, 15)
    log.start_at(30)
    log_dir.checkpoint_high_watermarks()
    Site([log_dir], store).settle()
    assert {name.split("/")[0] for name in quarantined(store, log.tp)} == {f"{15:020d}-epoch-1"}
    assert recorded_gaps(store, log.tp) == []
    assert stored_next(store, log.tp) == log.active
    check_history(log, store)

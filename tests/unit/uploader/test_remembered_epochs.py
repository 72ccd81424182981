"""Epochs that the broker's checkpoint dropped from its front are remembered and still decide."""

import json
from contextlib import closing

import pytest

from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.errors import DamagedSegmentError
from sidetier.segments.listing import ClosedSegment
from sidetier.segments.offsets import BaseOffset, LeaderEpoch, Offset
from sidetier.storage.fake import FakeStorage
from sidetier.uploader.gates import remembered_epochs
from sidetier.uploader.gates.divergence import read_history
from sidetier.uploader.gates.remembered_epochs import (
    RememberedEpochs,
    from_first_batch,
    read_local_epochs,
)
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


def test_emptied_log_that_continues_in_a_known_epoch_keeps_its_history(
    log: PartitionLog,
) -> None:
    """Kafka's `truncateFullyAndStartAt`: the leader's log start has passed all local records."""
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


def test_batches_show_the_epochs_that_the_checkpoint_has_dropped(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all segments: the broker deletes those below the log start some minutes later."""
    for epoch in (0, 1, 3):
        log.lead(epoch)
        log.append(10)
        log.roll()
    log.append(10)
    log.start_at(35)

    def found() -> EpochHistory:
        return from_first_batch(str(log.path), read_local_epochs(str(log.path)))

    assert found() == _epoch_history((0, 0), (1, 10), (3, 20))
    log.start_at(log.log_end)
    with log.file(30).open("ab") as file:
        file.write(b"a batch that the broker is writing")
    assert found() == _epoch_history((0, 0), (1, 10), (3, 20))
    # Without all of them, an epoch would be taken for an earlier one.
    path = log.file(10)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert found() == _epoch_history((3, 40))
    path.write_bytes(log.file(0).read_bytes())
    log.file(0).write_bytes(whole)
    with pytest.raises(DamagedSegmentError, match="is of leader epoch 0, after 1"):
        found()
    # A divergence is looked for with the checkpoint alone then.
    epochs = RememberedEpochs()
    history = read_history(str(log.path), None, Offset(50), epochs, LeaderEpoch(1)).epoch_history
    assert history == _epoch_history((3, 40))
    # The broker deletes a segment behind the listing of the directory.
    monkeypatch.setattr(
        remembered_epochs, "segment_bases", lambda _: [BaseOffset(5), BaseOffset(30)]
    )
    assert found() == _epoch_history((3, 40))


# -- truncated segments after the log start has passed them ----------------------------------------


def truncate(log: PartitionLog) -> None:
    """Truncate uncommitted records from offset 10 on. The segment at 40 stays as `.deleted`, and
    the log continues in epoch 1.
    """
    log.truncate(10)
    log.unlink(60)
    for base in (40, 60):
        log.written.pop(base, None)
    log.lead(1)
    log.closed_segment(35)
    log.closed_segment(25)


def pass_log_start(log: PartitionLog, start: int) -> None:
    """Move the log start and remove the `.deleted` files of retention."""
    for base in [base for base in log.bases() if base < start]:
        log.unlink(base)
    log.start_at(start)


def says(running: RunningDaemon, log: PartitionLog, text: str) -> bool:
    status = running.status(log.tp)
    return status is not None and text in (status.last_error or "")


def unstored(running: RunningDaemon, log: PartitionLog) -> int | None:
    status = running.status(log.tp)
    return None if status is None else status.unstored_segments


def test_truncated_segment_above_its_epochs_end_is_not_stored(
    log: PartitionLog,
) -> None:
    """The end of its epoch was seen before."""
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


def test_segment_whose_epoch_end_is_unknown_is_not_stored(
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


def test_segment_seen_in_the_log_below_the_high_watermark_needs_no_epoch(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """The sidecar stalls during an election and until the log start has passed the start of the new
    epoch. It does not know whether the last segment was committed.
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


# -- unclean elections after the log start has passed the start of their epoch ---------------------


def test_divergence_seen_before_the_checkpoint_dropped_it_is_quarantined(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """The archive ends at 40; the log diverged at 15, in epoch 1, and begins at 45 when the sidecar
    hears of its lead.
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
def test_gap_record_says_whether_the_archive_below_matches_the_log(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage, *, elected: bool, said: str
) -> None:
    """The sidecar was down, and the log begins above the archive end when it returns. The first
    epoch of the log may have begun at any offset below.
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


@pytest.mark.parametrize("first", [0, 10])
def test_segments_show_an_epoch_start_below_the_log_start(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage, first: int
) -> None:
    """While the sidecar was down, records up to 30 (the middle of a segment) were deleted: the
    checkpoint no longer shows that epoch 1 began at 15. `first` is the size of another segment.
    """
    if first:
        log.closed_segment(first)
    log.closed_segment(25 - first)
    archive(log, store)
    elect(log, 15)
    log.start_at(30)
    log_dir.checkpoint_high_watermarks()
    Site([log_dir], store).settle()
    assert {name.split("/")[0] for name in quarantined(store, log.tp)} == {f"{15:020d}-epoch-1"}
    assert recorded_gaps(store, log.tp) == []
    assert stored_next(store, log.tp) == log.active
    check_history(log, store)

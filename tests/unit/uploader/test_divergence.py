"""An archive and a log with different epoch histories are not mixed."""

import pytest

from sidetier.archive.objects.watermark import Watermark, encode_watermark
from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.offsets import UNKNOWN_EPOCH, BaseOffset, BrokerId, LeaderEpoch, Offset
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.uploader.gates.divergence import (
    divergence_offset,
    latest_divergence,
    log_end_offset,
    read_history,
)
from sidetier.uploader.gates.remembered_epochs import RememberedEpochs
from sidetier.uploader.watching.disk import BatchPosition, log_file
from tests.harness.daemons import LAYOUT, Site, stored_next
from tests.harness.log_dir import LogDir, PartitionLog


def watermark(next_offset: int, epoch: int, base: int = 0) -> Watermark:
    return Watermark(
        base_offset=BaseOffset(base),
        next_offset=Offset(next_offset),
        leader_epoch=LeaderEpoch(epoch),
        broker_id=BrokerId(1),
        topic_id=None,
        nonce="n",
    )


def epoch_history(*rows: tuple[int, int]) -> EpochHistory:
    return EpochHistory(tuple((LeaderEpoch(epoch), Offset(start)) for epoch, start in rows))


@pytest.mark.parametrize(
    ("rows", "divergence"),
    [
        ([(0, 0)], None),
        ([(0, 0), (3, 100)], None),
        ([(0, 0), (3, 100), (4, 150)], None),
        ([(0, 0), (4, 90)], 90),
        ([(0, 0), (3, 50), (5, 99)], 99),
        ([(5, 400)], None),
    ],
    ids=["same", "own epoch", "later leader", "replaced", "replaced after ours", "retention"],
)
def test_later_epoch_below_the_stored_next_offset_is_a_divergence(
    rows: list[tuple[int, int]], divergence: int | None
) -> None:
    assert divergence_offset(watermark(100, 3), Offset(100), epoch_history(*rows)) == divergence


def test_pinterest_watermark_has_no_epoch_to_compare() -> None:
    assert (
        divergence_offset(watermark(100, -1), Offset(100), epoch_history((0, 0), (4, 50))) is None
    )


def test_log_end_is_after_the_last_whole_batch(log: PartitionLog) -> None:
    log.append(10)
    assert log_end_offset(str(log.path), log.active) == 10
    with log.file(log.active).open("ab") as file:
        file.write(log.written[0][:70])
    assert log_end_offset(str(log.path), log.active) == 10


def test_archive_beyond_the_end_of_the_log_is_refused(log: PartitionLog) -> None:
    log.append(10)
    whole = read_history(str(log.path), log.active, Offset(10), RememberedEpochs())
    assert latest_divergence(watermark(10, 0), Offset(10), whole) is None
    short = read_history(str(log.path), log.active, Offset(11), RememberedEpochs())
    assert latest_divergence(watermark(11, 0), Offset(11), short) == 10


@pytest.mark.parametrize(("epoch", "certain"), [(3, True), (4, False), (UNKNOWN_EPOCH, False)])
def test_position_of_the_archive_end_is_certain_once_the_broker_leads(
    log: PartitionLog, epoch: int, *, certain: bool
) -> None:
    """Before, the broker may follow another one, and truncate its log."""
    log.append(10)
    log.lead(3)
    log.append(10)
    path, end = str(log.path), Offset(12)
    found = read_history(
        path, log.active, end, RememberedEpochs(), leader_epoch=LeaderEpoch(epoch)
    ).archive_end
    file = log_file(path, log.active)
    assert file is not None
    leads = LeaderEpoch(3) if certain else UNKNOWN_EPOCH
    assert found == BatchPosition(log.active, file, leads, Offset(10), len(log.written[0]) // 2)


def test_daemon_writes_nothing_to_an_archive_of_another_history(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    log.closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    key = LAYOUT.watermark_key(log.tp)
    store.put_object(key, BytesBody(encode_watermark(watermark(500, 0, base=400))))
    with site.running() as running:
        running.wait(lambda: (status := running.status(log.tp)) and status.last_error, "the error")
        status = running.status(log.tp)
    assert status is not None
    assert "the archive reaches 500" in str(status.last_error)
    assert stored_next(store, log.tp) == 500
    assert store.count("put") == 1

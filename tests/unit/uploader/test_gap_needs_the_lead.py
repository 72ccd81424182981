"""Only a sidecar whose broker is confirmed as leader records a gap."""

from pathlib import Path

import pytest

from sidetier.leadership.port import HighWatermark
from sidetier.segments.offsets import LeaderEpoch, Offset
from sidetier.storage.fake import FakeStorage
from tests.harness.archive_sound import recorded_gaps
from tests.harness.daemons import HighWatermarksByHand, LeadershipByHand, Site, stored_next
from tests.harness.log_dir import LogDir, PartitionLog


def _with_a_gap(log_dir: LogDir, store: FakeStorage) -> PartitionLog:
    """Prepare a partition: segment 0 is stored, 10 is deleted, 20 is closed, all records
    committed.
    """
    log = log_dir.create(epoch=1)
    log.closed_segment()
    log_dir.checkpoint_high_watermarks()
    Site([log_dir], store).settle()
    lost, _ = log.closed_segments(2)
    log.unlink(0)
    log.unlink(lost)
    log_dir.checkpoint_high_watermarks()
    return log


@pytest.mark.usefixtures("quick_gaps")
@pytest.mark.parametrize(("epoch", "gaps"), [(2, []), (1, [(10, 20)])])
def test_gap_is_recorded_only_after_a_broker_names_this_leader_epoch(
    tmp_path: Path, epoch: int, gaps: list[tuple[int, int]]
) -> None:
    log_dir, store = LogDir(tmp_path), FakeStorage()
    log = _with_a_gap(log_dir, store)
    told = HighWatermark(Offset(30), LeaderEpoch(epoch))
    brokers = HighWatermarksByHand({log.tp: told})
    site = Site([log_dir], store, LeadershipByHand({log.tp: 1}), high_watermarks=brokers)
    with site.running() as running:
        if gaps:
            running.wait(lambda: stored_next(store, log.tp) == 30, "what lies behind the gap")
        else:
            running.wait(lambda: len(brokers.asked) > 5, "brokers were asked, again and again")
    assert recorded_gaps(store, log.tp) == gaps
    assert stored_next(store, log.tp) == (30 if gaps else 10)

"""False divergences: one history that looks like two, and two histories that look like one."""

from dataclasses import replace
from pathlib import Path

import pytest

from sidetier.archive.objects.pinterest_metadata import PartitionMetadata, encode_metadata
from sidetier.archive.objects.watermark import encode_watermark
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from tests.harness.archive_sound import recorded_gaps
from tests.harness.daemons import (
    LAYOUT,
    LeadershipByHand,
    RunningDaemon,
    Site,
    key_of,
    stored_logs,
    stored_next,
    watermark_of,
)
from tests.harness.log_dir import LogDir


def test_segments_stored_in_an_outdated_epoch_are_no_divergence(
    tmp_path: Path,
) -> None:
    """The broker follows the new leader and has its records; the sidecar still names its old
    epoch.
    """
    log_dir, store = LogDir(tmp_path), FakeStorage()
    log = log_dir.create()
    log.closed_segments(2)
    log.lead(1)
    log.closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    Site([log_dir], store, LeadershipByHand({log.tp: 0})).settle()
    assert watermark_of(store, log.tp) is not None
    before = stored_logs(store, log.tp)
    log.closed_segments(1)
    log_dir.checkpoint_high_watermarks()
    Site([log_dir], store, LeadershipByHand({log.tp: 1})).settle()
    assert stored_next(store, log.tp) == 50
    assert stored_logs(store, log.tp).items() >= before.items()
    aside = LAYOUT.quarantine_prefix(log.tp)
    assert not [key for key in store.contents() if key.startswith(aside)]


@pytest.mark.usefixtures("quick_gaps")
def test_truncated_segments_are_not_adopted_within_a_gap(tmp_path: Path) -> None:
    """They were never committed, do not continue the archive and begin where records are
    missing.
    """
    elsewhere, store = LogDir(tmp_path / "elsewhere"), FakeStorage()
    theirs = elsewhere.create()
    theirs.append(10)
    common = theirs.written[0]
    theirs.roll()
    theirs.closed_segments(2)
    elsewhere.checkpoint_high_watermarks()
    Site([elsewhere], store).settle()
    _take_back(store, theirs.tp, Offset(10), forget=10)

    log_dir = LogDir(tmp_path / "ours")
    log = log_dir.create()
    log.append_bytes(common, 10)
    log.roll()
    log.lead(1)
    lost = log.closed_segments(2)
    log.closed_segment()
    for base in (0, *lost):
        log.unlink(base)
    log_dir.checkpoint_high_watermarks()
    with Site([log_dir], store, settings={"on_divergence": "halt"}).running() as running:
        running.wait(lambda: "unclean election" in _error(running, log.tp), "the reason")
    assert recorded_gaps(store, log.tp) == []
    assert stored_next(store, log.tp) == 10


def _take_back(store: FakeStorage, tp: TopicPartition, end: Offset, forget: int) -> None:
    """Restore the state of a sidecar that was killed before it moved the watermark, without one
    file.
    """
    watermark = watermark_of(store, tp)
    assert watermark is not None
    earlier = replace(watermark, base_offset=BaseOffset(0), next_offset=end)
    store.put_object(LAYOUT.watermark_key(tp), BytesBody(encode_watermark(earlier)))
    for kind in (FileKind.LOG, FileKind.INDEX, FileKind.TIMEINDEX):
        store.delete_object(key_of(tp, forget, kind))
    entries = PartitionMetadata(tp).with_segments([(BaseOffset(0), 0)])
    store.put_object(LAYOUT.metadata_key(tp), BytesBody(encode_metadata(entries)))


def _error(running: RunningDaemon, tp: TopicPartition) -> str:
    status = running.status(tp)
    return "" if status is None else str(status.last_error)

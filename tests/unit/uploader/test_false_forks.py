"""What looks like a fork, and is one history."""

from pathlib import Path

from sidetier.storage.fake import FakeStorage
from tests.harness.daemons import (
    LAYOUT,
    LeadershipByHand,
    Site,
    stored_logs,
    stored_next,
    watermark_of,
)
from tests.harness.log_dir import LogDir


def test_what_a_sidecar_stored_that_had_not_heard_of_the_new_leader_is_no_fork(
    tmp_path: Path,
) -> None:
    """Its broker follows already, and has the new leader's records; it names its own old epoch."""
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

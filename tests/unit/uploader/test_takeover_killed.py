"""Kill the daemon at every request of a takeover and of the uploads that follow it.

The uploads include all files that can accompany a segment. After a restart the archive equals
the archive that an undisturbed run leaves.
"""

from itertools import count
from pathlib import Path

import pytest

from sidetier.segments.names import FileKind
from sidetier.segments.notes import NOTE_KEYS
from sidetier.segments.offsets import Offset
from sidetier.segments.producer_snapshot import encode_snapshot
from sidetier.segments.txn_index import AbortedTxn, encode_txn_index
from sidetier.storage.fake import FakeStorage
from sidetier.uploader.daemon import DaemonDiedError
from tests.harness.archive_sound import check_archive, recorded_gaps
from tests.harness.daemons import LAYOUT, Site, key_of, stored_next
from tests.harness.intercepted_store import MortalStore
from tests.harness.log_dir import LogDir, PartitionLog
from tests.harness.pinterest_archive import PinterestArchive, read_as_pinterest

PREFIX_END = 30
"""Up to here Pinterest's archive has no gap."""


def _log(path: Path) -> tuple[LogDir, PartitionLog]:
    """Closed segments of ten records, the last three with optional files; the first four are
    deleted.
    """
    log_dir = LogDir(path)
    log = log_dir.create()
    for base in log.closed_segments(10)[7:]:
        entry = AbortedTxn(7, Offset(base), Offset(base + 9), Offset(base + 10))
        log.file(base, FileKind.TXNINDEX).write_bytes(encode_txn_index([entry]))
        log.file(base, FileKind.SNAPSHOT).write_bytes(encode_snapshot([b"p" * 46]))
    return log_dir, log


def _fill(log: PartitionLog, store: FakeStorage) -> None:
    """Write an archive with two gaps, one of them below the log start; a missing index and missing
    entries; a segment of lost records; and a watermark that names no stored segment.
    """
    peer = PinterestArchive(store, LAYOUT, log.tp)
    peer.upload(log, *range(0, 80, 10))
    peer.lose(10, FileKind.INDEX)
    peer.lose(30)
    peer.lose(50)
    peer.segment(60, log.written[60][:-1] + b"x", b"", b"")
    peer.forget(20)
    peer.lose(70, FileKind.LOG)
    peer.mark(70)
    for base in (0, 10, 20, 30):
        log.unlink(base)


def _outcome(store: FakeStorage, log: PartitionLog) -> dict[str, bytes]:
    """All stored objects, without nonces."""
    check_archive(store, log.tp)
    assert stored_next(store, log.tp) == log.active
    assert recorded_gaps(store, log.tp) == [(30, 40)]
    prefix = LAYOUT.partition_prefix(log.tp)
    read = [offset for offset, _ in read_as_pinterest(store.contents().get, prefix)]
    assert read == [*range(30), *range(40, 100)]
    for base in (80, 90):
        notes = store.head_object(key_of(log.tp, base)).metadata
        for kind, name in NOTE_KEYS.items():
            assert len(notes[name]) == 16
            assert store.contents()[key_of(log.tp, base, kind)] == log.file(base, kind).read_bytes()
    return {key: data for key, data in store.contents().items() if not key.endswith("offset.wm")}


def _scene(path: Path, *, marked: bool) -> tuple[Site, PartitionLog, FakeStorage]:
    store = FakeStorage()
    log_dir, log = _log(path)
    _fill(log, store)
    if not marked:
        store.delete_object(LAYOUT.watermark_key(log.tp))
    log_dir.checkpoint_high_watermarks()
    return Site([log_dir], store), log, store


@pytest.mark.usefixtures("quick_gaps")
@pytest.mark.parametrize("marked", [True, False], ids=["marked", "without a watermark"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_kill_at_any_request_of_a_takeover_is_repaired_by_the_next_start(
    tmp_path: Path, *, after: bool, marked: bool
) -> None:
    site, log, store = _scene(tmp_path / "undisturbed", marked=marked)
    before = {key: data for key, data in store.contents().items() if _is_below(key, log)}
    site.settle(threads=1, request_threads=1)
    expected = _outcome(store, log)
    assert before.items() <= expected.items(), "nothing below the first gap is touched"
    kills = 0
    for lives in count():
        site, log, store = _scene(tmp_path / f"{lives}", marked=marked)
        site.store = MortalStore(store, lives, after=after)
        try:
            site.settle(threads=1, request_threads=1)
        except DaemonDiedError:
            kills += 1
        else:
            break
        assert {k: d for k, d in store.contents().items() if k in before} == before
        site.store = store
        site.settle()
        assert _outcome(store, log).keys() == expected.keys(), f"after request {lives + 1}"
    assert kills >= 40


def _is_below(key: str, log: PartitionLog) -> bool:
    name = key.removeprefix(LAYOUT.partition_prefix(log.tp))
    return name[:20].isdigit() and int(name[:20]) < PREFIX_END

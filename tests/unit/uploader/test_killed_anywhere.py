"""Kill the daemon at every request, before and after the request has taken effect, and restart it.

Whichever request was in flight, the archive is consistent at every moment, and at the end it
equals the archive that an undisturbed run leaves (invariants 3, 5, 7).
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from sidetier.archive.objects.watermark import read_watermark, write_watermark
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, Offset
from sidetier.storage.fake import FakeStorage
from sidetier.uploader.daemon import DaemonDiedError
from tests.harness.archive_sound import check_archive, recorded_gaps
from tests.harness.daemons import LAYOUT, Site, key_of, stored_logs, stored_next
from tests.harness.intercepted_store import MortalStore
from tests.harness.log_dir import LogDir, PartitionLog

Prepare = Callable[[PartitionLog, FakeStorage], None]
ONE_AT_A_TIME = {"threads": 1, "request_threads": 1}


def _fresh(log: PartitionLog, _: FakeStorage) -> None:
    log.closed_segments(3)


def _goes_on(log: PartitionLog, store: FakeStorage) -> None:
    """Store two segments and close three more."""
    log.closed_segments(2)
    _archive(log, store)
    log.closed_segments(3)


def _gap_behind_what_is_stored(log: PartitionLog, store: FakeStorage) -> None:
    log.closed_segments(2)
    _archive(log, store)
    lost, *_ = log.closed_segments(3)
    for base in (0, 10, lost):
        log.unlink(base)


def _slice(log: PartitionLog, store: FakeStorage) -> None:
    """Let another leader store [0, 15); this replica's segments have other base offsets."""
    log.append(15)
    data = log.written[0]
    log.append(5)
    log.roll()
    log.closed_segments(1)
    other = LogDir(log.path.parents[1] / f"other-{log.path.parent.name}")
    theirs = other.create()
    theirs.append_bytes(data, 15)
    theirs.roll()
    _archive(theirs, store)


def _stored_without_indexes(log: PartitionLog, store: FakeStorage) -> None:
    """A late delete of `sidetier gc` has removed the indexes of a segment before its commit."""
    log.closed_segments(2)
    _archive(log, store)
    key = LAYOUT.watermark_key(log.tp)
    mark = read_watermark(store, key)
    assert mark is not None
    before = replace(mark.watermark, base_offset=BaseOffset(0), next_offset=Offset(10))
    write_watermark(store, key, before, mark.etag)
    store.delete_objects(
        [key_of(log.tp, 10, kind) for kind in (FileKind.INDEX, FileKind.TIMEINDEX)]
    )


def _archive(log: PartitionLog, store: FakeStorage) -> None:
    directory = LogDir(log.path.parent)
    directory.partitions[log.tp] = log
    directory.checkpoint_high_watermarks()
    Site([directory], store).settle()


SCENARIOS: list[tuple[str, Prepare, dict[str, object]]] = [
    ("fresh", _fresh, {}),
    ("goes on", _goes_on, {}),
    ("gap", _gap_behind_what_is_stored, {}),
    ("slice", _slice, {}),
    ("without indexes", _stored_without_indexes, {}),
]


@pytest.mark.usefixtures("quick_gaps")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("prepare", "settings"), [row[1:] for row in SCENARIOS], ids=[row[0] for row in SCENARIOS]
)
def test_a_kill_at_any_request_leaves_a_sound_archive(
    tmp_path: Path, prepare: Prepare, settings: dict[str, object], *, after: bool
) -> None:
    expected = _undisturbed(tmp_path / "undisturbed", prepare, settings)
    kills = 0
    for lives in count():
        store = FakeStorage()
        site = _site(tmp_path / f"killed-{lives}", prepare, store, settings)
        log = site.log_dirs[0].partitions
        tp = next(iter(log))
        site.store = MortalStore(store, lives, after=after)
        try:
            site.settle(**ONE_AT_A_TIME)
        except DaemonDiedError:
            kills += 1
        else:
            break
        if prepare is not _stored_without_indexes:  # there, the kill may leave them missing
            check_archive(store, tp)
        site.store = store
        site.settle()
        check_archive(store, tp)
        found = (stored_logs(store, tp), stored_next(store, tp), recorded_gaps(store, tp))
        assert found == expected, f"after a kill at request {lives + 1}"
    assert kills >= 8


def _undisturbed(
    path: Path, prepare: Prepare, settings: dict[str, object]
) -> tuple[dict[int, bytes], int | None, list[tuple[int, int]]]:
    store = FakeStorage()
    site = _site(path, prepare, store, settings)
    tp = next(iter(site.log_dirs[0].partitions))
    site.settle(**ONE_AT_A_TIME)
    check_archive(store, tp)
    assert stored_next(store, tp) == site.log_dirs[0].partitions[tp].active
    return stored_logs(store, tp), stored_next(store, tp), recorded_gaps(store, tp)


def _site(path: Path, prepare: Prepare, store: FakeStorage, settings: dict[str, object]) -> Site:
    log_dir = LogDir(path)
    log = log_dir.create()
    prepare(log, store)
    log_dir.checkpoint_high_watermarks()
    return Site([log_dir], store, settings=settings)

"""File system events are hints that may be lost or unavailable: the listing decides."""

from pathlib import Path
from typing import Any

import pytest

from tests.harness.archive_check import compare, wait_until_stored
from tests.harness.archive_objects import ArchiveStore, file_store
from tests.harness.copied_log_dir import CopiedLogDir, Original, static_settings
from tests.harness.inotify import few_watches, overflow
from tests.harness.sidecar import Sidecar
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def store(tmp_path: Path) -> ArchiveStore:
    return file_store(tmp_path / "store")


@pytest.fixture
def log_dir(tmp_path: Path, original: Original) -> CopiedLogDir:
    return CopiedLogDir(tmp_path / "data", original)


def watching(mode: str) -> dict[str, Any]:
    return {"uploader": {"watch": mode, "poll_interval": "500ms"}}


def test_rolls_with_lost_events_are_found(
    log_dir: CopiedLogDir, store: ArchiveStore, tmp_path: Path
) -> None:
    """A stopped sidecar does not empty its queue, and the kernel drops further events."""
    directory = log_dir.add("t", segments=2)
    bases = log_dir.original.bases
    settings = static_settings([log_dir], store, {"uploader": {"rescan_interval": "1h"}})
    with Sidecar(tmp_path, settings) as sidecar:
        wait_until_stored(store.objects, "t", 0, bases[2])
        sidecar.pause()
        overflow(directory)
        log_dir.grow(directory, 12)
        sidecar.resume()
        wait_until_stored(store.objects, "t", 0, bases[12])
        assert "max_queued_events" in sidecar.wait_for_event("watch.overflowed")["hint"]
        assert sidecar.metric("sidetier_watcher_overflows_total") >= 1
        assert sidecar.stop() == 0
    compare(store.objects, log_dir.sent())


def test_rolls_are_noticed_at_once_with_events(
    log_dir: CopiedLogDir, store: ArchiveStore, tmp_path: Path
) -> None:
    directory = log_dir.add("t", segments=2)
    changes = {"uploader": {"watch": "inotify", "rescan_interval": "1h"}}
    with Sidecar(tmp_path, static_settings([log_dir], store, changes)) as sidecar:
        for segments in (2, 5, 12):
            log_dir.grow(directory, segments)
            wait_until_stored(store.objects, "t", 0, log_dir.original.bases[segments], 30)
        counted = "sidetier_roll_to_stored_seconds_count"
        wait_until(lambda: sidecar.metric(counted) >= 9, 30, "the last rolls to be counted")
        assert sidecar.stop() == 0


def test_inotify_mode_is_refused_with_more_partitions_than_watches(
    log_dir: CopiedLogDir, store: ArchiveStore, tmp_path: Path
) -> None:
    for number in range(10):
        log_dir.add("t", number, segments=2)
    settings = static_settings([log_dir], store, watching("inotify"))
    with few_watches(5) as launcher:
        sidecar = Sidecar(tmp_path, settings, launcher=launcher)
        sidecar.start_unchecked()
        assert sidecar.exit_code() == 2
    assert "uploader.watch" in sidecar.text
    assert "fs.inotify.max_user_watches" in sidecar.text
    assert not any(key.endswith("offset.wm") for key in store.objects.listing())


def test_auto_mode_polls_with_more_partitions_than_watches_and_logs_it(
    log_dir: CopiedLogDir, store: ArchiveStore, tmp_path: Path
) -> None:
    directories = [log_dir.add("t", number, segments=2) for number in range(10)]
    settings = static_settings([log_dir], store, watching("auto"))
    with few_watches(5) as launcher, Sidecar(tmp_path, settings, launcher=launcher) as sidecar:
        said = sidecar.wait_for_event("watch.polling")
        assert "max_user_watches" in said["hint"]
        for number, directory in enumerate(directories):
            wait_until_stored(store.objects, "t", number, log_dir.original.bases[2])
            log_dir.grow(directory, 4)
        for number in range(10):
            wait_until_stored(store.objects, "t", number, log_dir.original.bases[4])
        assert sidecar.stop() == 0
    compare(store.objects, log_dir.sent())

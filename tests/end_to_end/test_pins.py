"""The broker deletes segments before the sidecar uploads them: open files keep the bytes."""

import os
from pathlib import Path

import pytest

from devtools.sandbox.kafka import KraftCluster
from tests.harness.archive_check import ArchiveReader, ArchiveWatch, compare, wait_until_stored
from tests.harness.archive_objects import file_store, s3_store
from tests.harness.ledger import Ledger
from tests.harness.local_segments import (
    SEGMENT_BYTES,
    bases_marked_for_deletion,
    closed_end,
    log_bases,
    small_segments,
    wait_until_gone,
)
from tests.harness.s3 import S3ServerFactory, new_bucket
from tests.harness.sidecar import Sidecar, beside, merged
from tests.harness.topics import create_topic
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.integration

HOUR_MS = 3_600_000
LONG_AGO_MS = 1_700_000_000_000


def partition_of(cluster: KraftCluster, topic: str) -> Path:
    return cluster.log_dirs(1)[0] / f"{topic}-0"


def test_segments_deleted_while_the_store_is_silent_are_stored_from_open_files(
    kraft43: KraftCluster, topic: str, own_s3_server: S3ServerFactory, tmp_path: Path
) -> None:
    server = own_s3_server()
    store = s3_store(new_bucket(server))
    directory = partition_of(kraft43, topic)
    configs = small_segments(retention_bytes=SEGMENT_BYTES, file_delete_delay_ms=200)
    create_topic(kraft43.bootstrap_servers, topic, configs=configs)
    ledger = Ledger()
    with Sidecar(tmp_path, beside(kraft43, store, topics=[topic]), store) as sidecar:
        sidecar.wait_until_ready()
        server.pause()
        ledger.produce(kraft43.bootstrap_servers, topic, 400)
        end = closed_end(directory)
        wait_until_gone(directory, below=end - 100)
        assert _unlinked_but_open(sidecar.pid, directory) >= 10
        assert _descriptors(sidecar.pid, directory) == {os.O_RDONLY}
        server.resume()
        wait_until_stored(store.objects, topic, 0, end)
        wait_until(lambda: _unlinked_but_open(sidecar.pid, directory) == 0, 30, "files let go")
        assert sidecar.stop() == 0
    assert compare(store.objects, ledger.records) >= end


def _open_files(pid: int, directory: Path) -> dict[int, str]:
    """Descriptors of a process for files in a directory, with their targets."""
    found = {}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(link.readlink())
        except FileNotFoundError:
            continue
        if target.startswith(f"{directory}/"):
            found[int(link.name)] = target
    return found


def _unlinked_but_open(pid: int, directory: Path) -> int:
    files = _open_files(pid, directory).values()
    return sum(".log" in name and name.endswith("(deleted)") for name in files)


def _descriptors(pid: int, directory: Path) -> set[int]:
    """Access modes of a process's open files in a directory."""
    modes = set()
    for number in _open_files(pid, directory):
        info = Path(f"/proc/{pid}/fdinfo/{number}").read_text().split()
        modes.add(int(info[info.index("flags:") + 1], 8) & os.O_ACCMODE)
    return modes


def test_segments_marked_for_deletion_before_the_start_are_stored(
    kraft43: KraftCluster, topic: str, tmp_path: Path
) -> None:
    store = file_store(tmp_path / "store")
    directory = partition_of(kraft43, topic)
    configs = small_segments(retention_bytes=SEGMENT_BYTES, file_delete_delay_ms=HOUR_MS)
    create_topic(kraft43.bootstrap_servers, topic, configs=configs)
    ledger = Ledger()
    ledger.produce(kraft43.bootstrap_servers, topic, 200)
    wait_until(lambda: len(bases_marked_for_deletion(directory)) >= 5, 30, "staged segments")
    assert log_bases(directory)[0] > 0
    with Sidecar(tmp_path, beside(kraft43, store, topics=[topic])) as sidecar:
        wait_until_stored(store.objects, topic, 0, closed_end(directory))
        assert sidecar.stop() == 0
    assert ArchiveReader(store.objects).views()[topic, 0].logs()[0] == 0
    compare(store.objects, ledger.records)


def test_segment_rolled_and_marked_for_deletion_at_once_is_stored(
    kraft43: KraftCluster, topic: str, tmp_path: Path
) -> None:
    """Its records are older than the retention: the broker rolls the segment to delete it."""
    store = file_store(tmp_path / "store")
    directory = partition_of(kraft43, topic)
    configs = small_segments(
        retention_ms=1000, file_delete_delay_ms=200, message_timestamp_before_max_ms=2**62
    )
    create_topic(kraft43.bootstrap_servers, topic, configs=configs)
    ledger = Ledger()
    with (
        Sidecar(tmp_path, beside(kraft43, store, topics=[topic])) as sidecar,
        ArchiveWatch(store.objects),
    ):
        sidecar.wait_until_ready()
        for round_number in range(3):
            ledger.produce(kraft43.bootstrap_servers, topic, 10, timestamp=LONG_AGO_MS)
            end = (round_number + 1) * 10
            wait_until_gone(directory, below=end)
            wait_until_stored(store.objects, topic, 0, end)
        assert sidecar.seen("gap.recorded") == []
        assert sidecar.stop() == 0
    assert compare(store.objects, ledger.records) == 30


def test_sidecar_that_missed_many_rolls_finds_the_segments(
    kraft43: KraftCluster, topic: str, tmp_path: Path
) -> None:
    """The sidecar is stopped while the broker rolls and deletes; afterwards only the listing shows
    it.
    """
    store = file_store(tmp_path / "store")
    directory = partition_of(kraft43, topic)
    configs = small_segments(retention_bytes=2 * SEGMENT_BYTES, file_delete_delay_ms=HOUR_MS)
    create_topic(kraft43.bootstrap_servers, topic, configs=configs)
    ledger = Ledger()
    settings = merged(
        beside(kraft43, store, topics=[topic]), {"uploader": {"rescan_interval": "2s"}}
    )
    with Sidecar(tmp_path, settings) as sidecar, ArchiveWatch(store.objects):
        sidecar.wait_until_ready()
        sidecar.pause()
        ledger.produce(kraft43.bootstrap_servers, topic, 600)
        wait_until(lambda: len(bases_marked_for_deletion(directory)) >= 20, 30, "staged segments")
        sidecar.resume()
        wait_until_stored(store.objects, topic, 0, closed_end(directory))
        assert sidecar.stop() == 0
    assert compare(store.objects, ledger.records) >= 500

"""Several log dirs, foreign entries in them, and proof that nothing in them is changed."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from kafka import KafkaAdminClient

from devtools.sandbox.kafka import KraftCluster
from tests.harness.archive_check import ArchiveWatch, compare, wait_until_stored
from tests.harness.archive_objects import file_store
from tests.harness.clusters import KraftFactory
from tests.harness.copied_log_dir import CopiedLogDir, Original, static_settings
from tests.harness.ledger import Ledger, Load
from tests.harness.local_segments import closed_end, small_segments
from tests.harness.sidecar import PROGRAM, Sidecar, beside
from tests.harness.topics import create_topic, delete_topic
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.integration

HEX = "0123456789abcdef0123456789abcdef"
NO_PARTITIONS = (f"t-1.{HEX}-delete", f"t-2.{HEX}-future", f"t-3.{HEX}-stray", "no partition", "x")


def fingerprint(directory: Path) -> dict[str, tuple[object, ...]]:
    """Everything below a directory, with all attributes that a write would change."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(directory.rglob("*")):
        status = path.stat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        state = (status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, digest)
        found[str(path.relative_to(directory))] = state
    return found


def test_only_partitions_are_archived_and_no_log_dir_is_changed(
    original: Original, tmp_path: Path
) -> None:
    copied = CopiedLogDir(tmp_path / "data", original)
    live = copied.add("t")
    for name in NO_PARTITIONS:
        shutil.copytree(live, copied.path / name)
    shutil.copytree(live, copied.path / "__cluster_metadata-0")
    (copied.path / "t-9").write_text("a file")
    (live / "00000000000000000000.log.swap").write_bytes(b"half a compaction")
    (live / "00000000000000000001.log.cleaned").write_bytes(b"half a compaction")
    before = fingerprint(copied.path)
    store = file_store(tmp_path / "store")
    with (
        Sidecar(tmp_path, static_settings([copied], store)) as sidecar,
        ArchiveWatch(store.objects),
    ):
        wait_until_stored(store.objects, "t", 0, original.bases[-1])
        sidecar.wait_until_ready()
        assert [(row["topic"], row["partition"]) for row in sidecar.partitions()] == [("t", 0)]
        assert sidecar.stop() == 0
    compare(store.objects, copied.sent())
    archived = {key.split("/")[-2] for key in store.objects.listing() if key.endswith(".log")}
    assert archived == {"t-0"}
    assert fingerprint(copied.path) == before


def test_unreadable_partition_does_not_block_the_others(original: Original, tmp_path: Path) -> None:
    copied = CopiedLogDir(tmp_path / "data", original)
    hidden = copied.add("hidden")
    secret = copied.add("secret")
    copied.add("t")
    hidden.chmod(0)
    for path in secret.glob("*.log"):
        path.chmod(0)
    launcher = (
        [] if os.geteuid() else ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    )
    store = file_store(tmp_path / "store")
    settings = static_settings([copied], store, {"uploader": {"rescan_interval": "1s"}})
    with Sidecar(tmp_path, settings, launcher=launcher) as sidecar:
        wait_until_stored(store.objects, "t", 0, original.bases[-1])
        for name in ("hidden", "secret"):
            wait_for_error(sidecar, name, "Permission denied")
        # A directory that cannot be listed is a problem of the whole sidecar, which stays ready.
        sidecar.wait_until_ready()
        why = f"{hidden} cannot be read, and nothing in it is archived"
        assert why in sidecar.seen("partition.unreadable", topic="hidden")[0]["reason"]
        assert sidecar.metric("sidetier_log_dir_problems") == 1
        check = [*launcher, str(PROGRAM), "--config", str(sidecar.config), "config", "check"]
        checked = subprocess.run(check, capture_output=True, text=True, check=False)
        assert (checked.returncode, why in " ".join(checked.stdout.split())) == (2, True)
        hidden.chmod(0o755)
        for path in secret.glob("*.log"):
            path.chmod(0o644)
        for name in ("hidden", "secret"):
            wait_until_stored(store.objects, name, 0, original.bases[-1], 60)
        wait_until(lambda: sidecar.metric("sidetier_log_dir_problems") == 0, 30, "no problem")
        assert sidecar.stop() == 0
    compare(store.objects, copied.sent())


def wait_for_error(sidecar: Sidecar, topic: str, text: str) -> None:
    """Wait until the status page shows this error for the topic."""

    def shown() -> bool:
        row = sidecar.partition(topic)
        return row is not None and text in (row["last_error"] or "")

    wait_until(shown, 30, f"{text!r} of {topic}")


def test_replica_can_move_between_log_dirs_while_it_is_archived(
    kraft_cluster: KraftFactory, topic: str, tmp_path: Path
) -> None:
    cluster = kraft_cluster(log_dirs=2)
    bootstrap, partitions = cluster.bootstrap_servers, range(4)
    create_topic(bootstrap, topic, partitions=4, configs=small_segments())
    create_topic(bootstrap, "doomed", configs=small_segments())
    assert {directory_of(cluster, topic, number).parent for number in partitions} == set(
        cluster.log_dirs(1)
    )
    store, ledger = file_store(tmp_path / "store"), Ledger()
    with (
        Sidecar(tmp_path / "sidecar", beside(cluster, store)) as sidecar,
        ArchiveWatch(store.objects),
    ):
        ledger.produce(bootstrap, "doomed", 100)
        wait_until_stored(store.objects, "doomed", 0, 60)
        with Load(ledger, bootstrap, topic, partitions, rate=200):
            for number in partitions:
                wait_until_stored(store.objects, topic, number, 1)
            move(cluster, topic, 0)
            move(cluster, topic, 1)
            delete_topic(bootstrap, "doomed")
            reached = ledger.next_offset(topic, 0)
            wait_until_stored(store.objects, topic, 0, reached)
        for number in partitions:
            end = closed_end(directory_of(cluster, topic, number))
            wait_until_stored(store.objects, topic, number, end)
        assert sidecar.seen("gap.recorded") == []
        wait_until(lambda: sidecar.partition("doomed") is None, 30, "the deleted topic to go")
        assert sidecar.stop() == 0
    compare(store.objects, ledger.records)


def directory_of(cluster: KraftCluster, topic: str, partition: int) -> Path:
    """The replica's present directory."""
    for log_dir in cluster.log_dirs(1):
        if (log_dir / f"{topic}-{partition}").is_dir():
            return log_dir / f"{topic}-{partition}"
    raise AssertionError(f"{topic}-{partition} lies in no log dir")


def move(cluster: KraftCluster, topic: str, partition: int) -> None:
    """Move a replica to the other log dir, and wait until it is there."""
    here = directory_of(cluster, topic, partition).parent
    there = next(log_dir for log_dir in cluster.log_dirs(1) if log_dir != here)
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    try:
        admin.alter_replica_log_dirs({(topic, partition, 1): str(there)})
    finally:
        admin.close()
    moved = there / f"{topic}-{partition}"
    wait_until(moved.is_dir, 30, f"{topic}-{partition} to move")

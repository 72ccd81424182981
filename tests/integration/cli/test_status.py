"""`sidetier status` and `ls` beside a running sidecar."""

import json
from pathlib import Path

import pytest

from devtools.sandbox.kafka import KraftCluster
from sidetier.archive.objects.cluster_snapshots import decode_snapshot
from sidetier.cli.main import run
from sidetier.segments.cluster_state import SnapshotKind, TopicDefinitions
from sidetier.segments.keys import ArchiveLayout
from tests.harness.archive_check import wait_until_stored
from tests.harness.archive_objects import file_store
from tests.harness.ledger import Ledger
from tests.harness.local_segments import closed_end, small_segments
from tests.harness.sidecar import Sidecar, beside, merged
from tests.harness.topics import create_topic
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.integration


def test_stored_segments_are_shown(
    kraft43: KraftCluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bootstrap = kraft43.bootstrap_servers
    create_topic(bootstrap, topic, configs=small_segments())
    Ledger().produce(bootstrap, topic, 200)
    end = closed_end(kraft43.log_dirs(1)[0] / f"{topic}-0")
    store = file_store(tmp_path / "store")
    settings = merged(
        beside(kraft43, store, topics=[topic]),
        {"uploader": {"cluster_snapshots": {"interval": "1s"}}},
    )

    def snapshots() -> dict[str, dict[str, object]]:
        capsys.readouterr()
        assert run(["status", "--url", sidecar.url, "--output", "json"]) == 0
        found = json.loads(capsys.readouterr().out)["cluster_snapshots"]
        return {one["kind"]: one for one in found}

    with Sidecar(tmp_path / "sidecar", settings, store) as sidecar:
        wait_until_stored(store.objects, topic, 0, end)
        wait_until(lambda: run(["status", "--url", sidecar.url]) == 0, 60, "the sidecar to settle")
        capsys.readouterr()
        assert run(["status", "--url", sidecar.url, "--output", "json"]) == 0
        [row] = json.loads(capsys.readouterr().out)["partitions"]
        assert (row["topic"], row["next_offset"], row["state"]) == (topic, end, "archived")
        assert run(["--config", str(sidecar.config), "ls", topic, "0", "--output", "json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["next_offset"], found["segments"][-1]["next_offset"]) == (end, end)
        wait_until(lambda: all(one["stored"] for one in snapshots().values()), 60, "snapshots")
        assert snapshots().keys() == set(SnapshotKind)
        assert not any(one["problem"] for one in snapshots().values())
        sidecar.stop()
    prefix = ArchiveLayout("test", 5).cluster_snapshots_prefix(SnapshotKind.TOPICS)
    key = max(key for key in store.objects.listing() if key.startswith(prefix))
    topics = decode_snapshot(store.objects.read(key) or b"", key).content
    assert isinstance(topics, TopicDefinitions)
    assert set(small_segments()) <= set(topics.topics[topic].configs)
    assert run(["status", "--url", "http://127.0.0.1:1"]) == 1

"""`sidetier backfill` over the log dirs of a real broker, running and stopped."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from devtools.sandbox.kafka import KraftCluster
from tests.harness.archive_check import compare
from tests.harness.archive_objects import ArchiveStore, file_store, s3_store
from tests.harness.clusters import KraftFactory
from tests.harness.ledger import Ledger
from tests.harness.local_segments import closed_end, small_segments
from tests.harness.s3 import S3Bucket
from tests.harness.sidecar import beside
from tests.harness.topics import create_topic

pytestmark = pytest.mark.integration


def sidetier(directory: Path, settings: dict[str, Any], store: ArchiveStore, *line: str) -> Any:  # noqa: ANN401 -- JSON
    """Run a command in a separate process; return its JSON and exit code."""
    file = directory / "backfill.yaml"
    file.write_text(yaml.safe_dump(settings))
    done = subprocess.run(
        [sys.executable, "-m", "sidetier.cli", "--config", file, *line, "--output", "json"],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env={
            "PATH": "",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),  # of another working tree
            **store.environment,
        },
    )
    assert done.returncode in {0, 3}, done.stderr
    return {"code": done.returncode, **json.loads(done.stdout)}


def test_backfill_works_beside_a_running_broker(
    kraft43: KraftCluster, topic: str, tmp_path: Path, s3_bucket: S3Bucket
) -> None:
    bootstrap = kraft43.bootstrap_servers
    create_topic(bootstrap, topic, partitions=2, configs=small_segments())
    ledger, store = Ledger(), s3_store(s3_bucket)
    ledger.produce(bootstrap, topic, 200, partitions=(0, 1))
    ends = [closed_end(kraft43.log_dirs(1)[0] / f"{topic}-{number}") for number in (0, 1)]
    settings = beside(kraft43, store)

    plan = sidetier(tmp_path, settings, store, "backfill", "--dry-run", "--topic", topic)
    assert plan["code"] == 0
    assert [row["closed_end"] for row in plan["partitions"]] == ends
    assert store.objects.listing() == frozenset()

    done = sidetier(tmp_path, settings, store, "backfill", "--topic", topic)
    assert (done["code"], done["left"], done["segments"]) == (0, 0, plan["segments"])
    assert [row["next_offset"] for row in done["partitions"]] == ends
    assert compare(store.objects, ledger.records) == sum(ends) > 200

    again = sidetier(tmp_path, settings, store, "backfill", "--topic", topic)
    assert (again["code"], again["segments"]) == (0, 0)

    rows = sidetier(tmp_path, settings, store, "ls", topic)["partitions"]
    assert [row["next_offset"] for row in rows] == ends


def test_compacted_topic_is_refused(kraft43: KraftCluster, topic: str, tmp_path: Path) -> None:
    bootstrap = kraft43.bootstrap_servers
    configs = small_segments(cleanup_policy="compact", min_cleanable_dirty_ratio="1.0")
    create_topic(bootstrap, topic, configs=configs)
    Ledger().produce(bootstrap, topic, 100)
    store = file_store(tmp_path / "store")
    settings = beside(kraft43, store)
    for line in (["backfill", "--dry-run", "--topic", topic], ["backfill", "--topic", topic]):
        found = sidetier(tmp_path, settings, store, *line)
        assert found["code"] == 3
        row = found["partitions"][0]
        assert "is compacted" in (row.get("refused") or row.get("why"))
    assert store.objects.listing() == frozenset()


@pytest.mark.timeout(240)
def test_backfill_works_over_the_log_dirs_of_a_stopped_broker(
    kraft_cluster: KraftFactory, topic: str, tmp_path: Path
) -> None:
    cluster = kraft_cluster(log_dirs=2)
    bootstrap = cluster.bootstrap_servers
    create_topic(bootstrap, topic, partitions=4, configs=small_segments())
    ledger, store = Ledger(), file_store(tmp_path / "store")
    ledger.produce(bootstrap, topic, 150, partitions=range(4))
    settings = beside(cluster, store)
    cluster.stop()
    done = sidetier(tmp_path, settings, store, "backfill", "--offline")
    assert (done["code"], done["left"]) == (0, 0)
    rows = [row for row in done["partitions"] if row["topic"] == topic]
    assert len(rows) == 4
    assert compare(store.objects, ledger.records) == sum(r["next_offset"] for r in rows) > 400

"""`sidetier hydrate` from the first step to the last, on a real broker."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.factory import open_plain
from sidetier.storage.settings import StorageEndpoint
from tests.harness.broker_archive import store_broker_segments
from tests.harness.clusters import KraftFactory
from tests.harness.made_archive import MadeArchive

pytestmark = pytest.mark.integration


def hydrate(config: Path, *line: str, code: int = 0) -> Any:  # noqa: ANN401 -- JSON
    """A step as a process of its own; its JSON. Its exit code must be this one."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "sidetier.cli", "--config", str(config), "hydrate"),
            *line,
            *("--output", "json"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, (done.returncode, done.stderr, done.stdout)
    return json.loads(done.stdout) if done.stdout else None


@pytest.mark.timeout(360)
def test_topics_come_back_with_aborted_and_open_transactions(
    kraft_cluster: KraftFactory, tmp_path: Path
) -> None:
    """The archive is that of a broker: old timestamps, and two transactions open at its end."""
    store = open_plain(StorageEndpoint(f"file://{tmp_path}/store"))
    layout = ArchiveLayout("prod-a", 3)
    MadeArchive(store, layout).segments(0, 20, 40)
    store_broker_segments(store, layout, "tx-0")
    store.close()
    config = tmp_path / "old.yaml"
    (tmp_path / "logs").mkdir()
    settings = {
        "cluster": {"name": "prod-a"},
        "log_dirs": [str(tmp_path / "logs")],
        "storage": {"url": f"file://{tmp_path}/store", "prefix_entropy_bits": 3},
    }
    config.write_text(yaml.safe_dump(settings))
    plan = str(tmp_path / "plan.json")
    hydrate(config, "plan", plan)

    new = kraft_cluster()
    servers = ("--bootstrap-server", new.bootstrap_servers)
    place = ("place", plan, "--log-dir", str(new.log_dirs(1)[0]))
    hydrate(config, "prepare", plan, *servers)
    hydrate(config, *place, code=2)  # the broker runs
    new.stop_broker(1)
    placed = hydrate(config, *place)["partitions"]
    assert [one["problem"] for one in placed] == [None, None]
    new.start_broker(1)

    finished = hydrate(config, "finish", plan, *servers)
    assert [
        (one["partition"], one["producer_id"], one["first_offset"])
        for one in finished["aborted_transactions"]
    ] == [("tx-0", 0, 261), ("tx-0", 1, 269)]
    # With an idempotent producer, whose producer id is one that the archive has, too.
    verified = hydrate(config, "verify", plan, *servers, "--produce", "tx")
    assert [(one["records"], one["committed_records"]) for one in verified["partitions"]] == [
        (40, 40),
        (243, 151),
    ]

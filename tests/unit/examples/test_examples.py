"""Examples that need no broker, over an archive in a directory."""

import base64
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.factory import open_plain
from sidetier.storage.settings import StorageEndpoint
from tests.harness.broker_archive import store_broker_segments
from tests.harness.broker_segments import ROOT
from tests.harness.examples import every_example, run_example

WITHOUT_BROKER = ("asyncio_reader.py", "without_broker.py")
DOCUMENTED = {"group.py", "since.py", "spark_by_minute.py", *WITHOUT_BROKER}
DECIDED_END = 200
"""The closed segments of the fixture decide every transaction below this offset."""


@dataclass(frozen=True, slots=True)
class Row:
    """A record as the broker's own consumer read it; the timestamp is in ms."""

    offset: int
    timestamp: int
    value: bytes


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A sidecar's configuration over an archive with a broker's segments."""
    url = f"file://{tmp_path}/store"
    store = open_plain(StorageEndpoint(url))
    for directory in ("tx-0", "segms-0"):
        store_broker_segments(store, ArchiveLayout("prod-a", 5), directory)
    store.close()
    (tmp_path / "logs").mkdir()
    path = tmp_path / "sidetier.yaml"
    settings = {
        "cluster": {"name": "prod-a"},
        "log_dirs": [str(tmp_path / "logs")],
        "storage": {"url": url},
    }
    path.write_text(yaml.safe_dump(settings))
    return path


def read_by_a_consumer(directory: str) -> list[Row]:
    """Output of the broker's own consumer with read_committed."""
    text = (ROOT / directory / "expected.read_committed.jsonl").read_text()
    rows = map(json.loads, text.splitlines())
    return [Row(row["offset"], row["timestamp"], base64.b64decode(row["value"])) for row in rows]


def test_every_example_has_a_test() -> None:
    assert set(every_example()) == DOCUMENTED


@pytest.mark.parametrize("example", WITHOUT_BROKER)
def test_example_reads_a_partition_without_a_broker(config: Path, example: str) -> None:
    committed = read_by_a_consumer("tx-0")
    lines = run_example(example, config, "tx", 0)
    assert lines == [f"{row.offset} {row.value!r}" for row in committed[: len(lines)]]
    assert committed[len(lines)].offset > DECIDED_END


def test_example_reads_from_a_time_on(config: Path) -> None:
    lines = run_example("without_broker.py", config, "segms", 0)
    stored = read_by_a_consumer("segms-0")[: len(lines)]
    stamp = stored[len(stored) // 2].timestamp
    first = next(at for at, row in enumerate(stored) if row.timestamp >= stamp)
    moment = datetime.fromtimestamp(stamp / 1000, UTC).isoformat()
    [line] = run_example("since.py", config, "segms", 0, moment)
    size = sum(len(row.value) for row in stored[first:])
    assert line == f"{len(stored) - first} records with {size} bytes since {moment}"
    assert 0 < first < len(stored)

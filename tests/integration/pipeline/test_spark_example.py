"""The example for data scientists, run as by its reader."""

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.factory import open_plain
from sidetier.storage.settings import StorageEndpoint
from tests.harness.broker_archive import store_broker_segments
from tests.harness.examples import run_example
from tests.harness.spark import quiet_spark
from tests.integration.pipeline.test_spark_read import stored

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


@pytest.mark.usefixtures("java")
def test_example_counts_records_per_minute(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    store = open_plain(StorageEndpoint(url))
    store_broker_segments(store, ArchiveLayout("prod-a", 5), "comp-none-0")
    store.close()
    (tmp_path / "logs").mkdir()
    config = tmp_path / "sidetier.yaml"
    settings = {
        "cluster": {"name": "prod-a"},
        "log_dirs": [str(tmp_path / "logs")],
        "storage": {"url": url},
    }
    config.write_text(yaml.safe_dump(settings))
    times = [row["timestamp"] for row in stored("comp-none-0", IsolationLevel.READ_COMMITTED)]
    first, until = times[10] + 500, times[-10]
    wanted = Counter(time // 60_000 for time in times if first <= time < until)

    moments = [datetime.fromtimestamp(at / 1000, UTC).isoformat() for at in (first, until)]
    words = (config, "comp-none", *moments)
    lines = run_example(
        "spark_by_minute.py", *words, environment=quiet_spark(tmp_path), seconds=180
    )
    minutes = [
        f"{datetime.fromtimestamp(minute * 60, UTC).replace(tzinfo=None).isoformat()} {count}"
        for minute, count in sorted(wanted.items())
    ]
    assert len(minutes) > 2
    assert lines == minutes

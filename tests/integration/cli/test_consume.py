"""`sidetier consume` with a real S3 server, and with a real broker where needed."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from devtools.sandbox.kafka import KraftCluster
from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.factory import open_plain
from sidetier.storage.settings import Credentials, S3Settings, StorageEndpoint
from tests.harness.archive_check import wait_until_stored
from tests.harness.archive_objects import ArchiveStore, s3_store
from tests.harness.broker_archive import store_broker_segments
from tests.harness.ledger import Ledger
from tests.harness.local_segments import closed_end, small_segments
from tests.harness.s3 import S3Bucket
from tests.harness.sidecar import PROGRAM, Sidecar, beside
from tests.harness.topics import create_topic, delete_records

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

_SECONDS = 180


def consume(
    config: Path, environment: Mapping[str, str], *line: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, "--config", config, "consume", *line],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )


def rows(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def archive(s3_bucket: S3Bucket, tmp_path: Path) -> tuple[Path, ArchiveStore]:
    """Transactional segments of a real broker on S3, and a configuration without a broker."""
    server, store = s3_bucket.server, s3_store(s3_bucket)
    endpoint = StorageEndpoint(
        f"s3://{s3_bucket.name}",
        s3=S3Settings(
            endpoint_url=server.endpoint_url,
            region=server.region,
            path_style=True,
            credentials=Credentials(server.access_key, server.secret_key),
        ),
    )
    opened = open_plain(endpoint)
    store_broker_segments(opened, ArchiveLayout("test", 5), "tx-0")
    opened.close()
    (tmp_path / "logs").mkdir()
    config = tmp_path / "sidetier.yaml"
    settings = {
        "cluster": {"name": "test"},
        "log_dirs": [str(tmp_path / "logs")],
        "storage": dict(store.settings),
    }
    config.write_text(yaml.safe_dump(settings))
    return config, store


def test_records_are_read_from_s3_without_a_broker(
    archive: tuple[Path, ArchiveStore], segment_fixtures: Path
) -> None:
    config, store = archive
    text = (segment_fixtures / "tx-0" / "expected.read_uncommitted.jsonl").read_text()
    wanted = {row["offset"]: row["value"] for row in map(json.loads, text.splitlines())}
    line = ("tx", "0", "--isolation", "read_uncommitted", "--encoding", "base64")
    found = {row["offset"]: row["value"] for row in rows(consume(config, store.environment, *line))}
    assert found == {offset: value for offset, value in wanted.items() if offset < 274}
    some = rows(consume(config, store.environment, *line, "--from", "100", "--limit", "5"))
    assert [row["offset"] for row in some] == sorted(o for o in wanted if o >= 100)[:5]
    counted = consume(config, store.environment, *line, "--count", "--output", "json")
    assert json.loads(counted.stdout)["records"] == len(found)
    refused = consume(config, {**store.environment, "TEST_S3_SECRET_KEY": "wrong"}, "tx")
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) <= 2


def test_closed_output_pipe_ends_the_command_quietly(archive: tuple[Path, ArchiveStore]) -> None:
    config, store = archive
    line = f"{PROGRAM} --config {config} consume tx --follow | head -n 3"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        env={**os.environ, **store.environment},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert len(done.stdout.splitlines()) == 3
    assert done.stderr == ""


def test_kafka_and_the_store_are_read_as_one_log(
    kraft43: KraftCluster, topic: str, s3_bucket: S3Bucket, tmp_path: Path
) -> None:
    bootstrap = kraft43.bootstrap_servers
    create_topic(bootstrap, topic, configs=small_segments())
    Ledger().produce(bootstrap, topic, 300)
    end = closed_end(kraft43.log_dirs(1)[0] / f"{topic}-0")
    store = s3_store(s3_bucket)
    with Sidecar(tmp_path / "sidecar", beside(kraft43, store, topics=[topic]), store) as sidecar:
        wait_until_stored(store.objects, topic, 0, end)
        config = sidecar.config
        sidecar.stop()
    delete_records(bootstrap, topic, 0, end - 10)
    found: dict[str, list[int]] = {}
    for mode in (
        "TIERED_STORAGE_ONLY",
        "KAFKA_PREFERRED",
        "tiered_storage_preferred",
        "KAFKA_ONLY",
    ):
        done = consume(config, store.environment, topic, "--mode", mode)
        found[mode] = [row["offset"] for row in rows(done)]
    assert found == {
        "TIERED_STORAGE_ONLY": list(range(end)),
        "KAFKA_PREFERRED": list(range(300)),
        "tiered_storage_preferred": list(range(300)),
        "KAFKA_ONLY": list(range(end - 10, 300)),
    }
    line = (topic, "--mode", "KAFKA_PREFERRED", "--from", "-250", "--limit", "249")
    some = [row["offset"] for row in rows(consume(config, store.environment, *line))]
    assert some == list(range(50, 299))
    away = consume(config, store.environment, *line, "--bootstrap", "127.0.0.1:1")
    assert away.returncode == 1
    assert "127.0.0.1:1 returns no metadata" in away.stderr

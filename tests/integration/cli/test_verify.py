"""`sidetier verify` and `repair` over a real broker's archive on a real S3 server."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.archive_check import compare, wait_until_stored
from tests.harness.archive_objects import ArchiveStore, s3_store
from tests.harness.clusters import KraftFactory
from tests.harness.ledger import Ledger, Load
from tests.harness.local_segments import small_segments
from tests.harness.s3 import S3Bucket
from tests.harness.sidecar import Settings, Sidecar, beside
from tests.harness.topics import create_topic
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

WAIT = 150.0
Result = dict[str, Any]


class Commands:
    """Runs commands in processes of their own, with one configuration."""

    def __init__(self, directory: Path, settings: Settings, store: ArchiveStore) -> None:
        self._file = directory / "verify.yaml"
        self._file.write_text(yaml.safe_dump(settings), encoding="utf-8")
        self._environment = {"PATH": "", "USER": "ann", **store.environment}

    def start(self, *line: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "sidetier.cli", "--config", str(self._file), *line],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environment,
        )

    def json(self, *line: str, code: int = 0) -> Result:
        process = self.start(*line, "--output", "json")
        out, err = process.communicate(timeout=WAIT)
        assert process.returncode == code, f"{out}\n{err}"
        result: Result = json.loads(out)
        return result

    def text(self, *line: str) -> str:
        process = self.start(*line)
        out, err = process.communicate(timeout=WAIT)
        assert process.returncode == 0, err
        return out


def kinds(result: Result) -> set[str]:
    return {finding["kind"] for finding in result["findings"]}


def replaced(bucket: S3Bucket, ending: str, change: bytes | None) -> str:
    """Remove an object behind the sidecar's back, or give it other bytes and its own metadata."""
    listed = bucket.client.list_objects_v2(Bucket=bucket.name)["Contents"]
    [key] = [row["Key"] for row in listed if row["Key"].endswith(ending)]
    if change is None:
        bucket.client.delete_object(Bucket=bucket.name, Key=key)
    else:
        head = bucket.client.head_object(Bucket=bucket.name, Key=key)
        bucket.client.put_object(
            Bucket=bucket.name, Key=key, Body=change, Metadata=head["Metadata"]
        )
    return str(key)


def test_verify_while_uploads_run_then_killed_resumed_damaged_and_repaired(
    kraft_cluster: KraftFactory, topic: str, tmp_path: Path, s3_bucket: S3Bucket
) -> None:
    cluster = kraft_cluster()
    bootstrap = cluster.bootstrap_servers
    create_topic(bootstrap, topic, partitions=2, configs=small_segments())
    ledger, store = Ledger(), s3_store(s3_bucket)
    settings = beside(cluster, store, topics=[topic])
    commands = Commands(tmp_path, settings, store)
    with Sidecar(tmp_path / "sidecar", settings, store) as sidecar:
        with Load(ledger, bootstrap, topic, (0, 1), 100):
            sidecar.wait_until_ready()
            for partition in (0, 1):
                wait_until_stored(store.objects, topic, partition, 50, WAIT)
            ends = set()
            for _ in range(2):  # with uploads before, during and after each run
                result = commands.json("verify", "--deep", "--local", "--heads")
                assert kinds(result) <= {"not_committed"}
                assert result["unread"] == []
                assert result["read_segments"] == result["segments"] > 2
                ends.add(result["segments"])
            assert len(ends) == 2, "no segment was uploaded meanwhile"
        wait_until(lambda: not kinds(commands.json("verify")), WAIT, "the last commits")
    stored = compare(store.objects, ledger.records)

    check_kill_and_resume(commands, tmp_path)
    check_damage_and_repair(commands, s3_bucket, topic)
    assert compare(store.objects, ledger.records) == stored > 100
    check_damaged_record(commands, s3_bucket, topic)


def check_kill_and_resume(commands: Commands, tmp_path: Path) -> None:
    whole = commands.json("verify", "--deep")
    state = tmp_path / "verify.state"
    line = ("verify", "--deep", "--threads", "1", "--resume", str(state))
    rate = str(max(1, whole["read_bytes"] // 20))  # the whole run would take 20 s

    def finished() -> int:
        return state.read_text().count('"key"') if state.exists() else 0

    process = commands.start(*line, "--rate", rate)
    wait_until(lambda: finished() >= 2, WAIT, "two finished segments")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    before = finished()
    assert before < whole["segments"]

    result = commands.json(*line)
    assert result["read_segments"] == whole["segments"]
    assert result["findings"] == whole["findings"] == []
    assert not state.exists()


def check_damage_and_repair(commands: Commands, bucket: S3Bucket, topic: str) -> None:
    records = commands.text("consume", topic, "--mode", "TIERED_STORAGE_ONLY", "--output", "json")
    first = f"/{topic}-0/{0:020d}"
    index = replaced(bucket, f"{first}.index", None)
    replaced(bucket, f"{first}.timeindex", b"no entries")
    replaced(bucket, f"/{topic}-0/_metadata", b"{}")
    replaced(bucket, f"/{topic}-1/leader-epoch-checkpoint", None)
    result = commands.json("verify", code=3)
    assert kinds(result) == {
        "missing_index",
        "damaged_timeindex",
        "damaged_metadata",
        "missing_epochs",
    }
    planned = commands.json("repair", "--dry-run", code=3)
    assert {row["key"] for row in planned["repairs"]} >= {index}
    done = commands.json("repair")
    assert len(done["repairs"]) == 4
    assert kinds(commands.json("verify", "--deep", "--heads")) == set()
    again = commands.text("consume", topic, "--mode", "TIERED_STORAGE_ONLY", "--output", "json")
    # The order of records of different partitions is not determined.
    assert sorted(again.splitlines()) == sorted(records.splitlines())


def check_damaged_record(commands: Commands, bucket: S3Bucket, topic: str) -> None:
    key = f"/{topic}-0/{0:020d}.log"
    [stored] = [
        row["Key"]
        for row in bucket.client.list_objects_v2(Bucket=bucket.name)["Contents"]
        if row["Key"].endswith(key)
    ]
    data = bytearray(bucket.client.get_object(Bucket=bucket.name, Key=stored)["Body"].read())
    data[len(data) // 2] ^= 1
    replaced(bucket, key, bytes(data))
    assert {"checksum_mismatch", "damaged_log"} <= kinds(commands.json("verify", "--deep", code=3))

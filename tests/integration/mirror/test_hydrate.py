"""`sidetier hydrate` from the first step to the last, on real brokers."""

import json
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer

from sidetier.sandbox.kafka import KafkaCluster
from tests.harness.archive_objects import file_store
from tests.harness.clusters import KraftFactory
from tests.harness.local_segments import small_segments
from tests.harness.sidecar import beside, merged
from tests.harness.topics import create_topic
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.integration

LONG_AGO_MS = 1_500_000_000_000


@dataclass
class Commands:
    """The command line as processes of their own, with the configuration of the lost cluster."""

    file: Path
    environment: Mapping[str, str]

    def line(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "sidetier.cli", "--config", str(self.file), *arguments]

    def run(self, *arguments: str, code: int = 0) -> Any:  # noqa: ANN401 -- JSON
        """A command's JSON; its exit code must be this one."""
        done = subprocess.run(
            [*self.line(*arguments), "--output", "json"],
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
            env=dict(self.environment),
        )
        assert done.returncode == code, (done.returncode, done.stderr, done.stdout)
        return json.loads(done.stdout) if done.stdout else None

    def refused(self, *arguments: str) -> str:
        """A command that must end with exit code 2; its error."""
        done = subprocess.run(
            self.line(*arguments),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=dict(self.environment),
        )
        assert done.returncode == 2, (done.returncode, done.stderr, done.stdout)
        return done.stderr


def producer_of(bootstrap: str, **more: object) -> Producer:
    return Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0, **more})


def write_plain(bootstrap: str, topic: str, first: int, end: int) -> None:
    """Records with old timestamps, headers, nulls; idempotent, in both partitions."""
    codec = {"compression.type": "lz4", "enable.idempotence": True}
    producer = producer_of(bootstrap, **codec)
    noise = random.Random(first)
    for number in range(first, end):
        producer.produce(
            topic,
            None if number % 50 == 0 else f"value {number} {noise.randbytes(150).hex()}".encode(),
            f"key-{number % 7}".encode(),
            partition=number % 2,
            timestamp=LONG_AGO_MS + number,
            headers=[("n", str(number).encode()), ("nothing", None)],
        )
        producer.poll(0)
        if number % 30 == 0:
            producer.flush(30)  # many small batches
    assert producer.flush(30) == 0


def write_transactions(bootstrap: str, topic: str, name: str, commits: list[bool]) -> Producer:
    producer = producer_of(bootstrap, **{"transactional.id": name})
    producer.init_transactions(60)
    for commit in commits:
        producer.begin_transaction()
        for number in range(40):
            producer.produce(topic, f"{name} {commit} {number} ".encode() * 25)
        producer.flush(30)
        if commit:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
    return producer


def fill(old: KafkaCluster, plain: str, tx: str, compacted: str) -> None:
    bootstrap = old.bootstrap_servers
    create_topic(bootstrap, plain, partitions=2, configs=small_segments(retention_ms=-1))
    create_topic(bootstrap, tx, configs=small_segments(retention_ms=-1))
    lazy = small_segments(cleanup_policy="compact", min_compaction_lag_ms=10**12)
    create_topic(bootstrap, compacted, configs=lazy)
    write_plain(bootstrap, plain, 0, 500)
    write_transactions(bootstrap, tx, "one", [True, False] * 2)
    old.stop_broker(1)
    old.start_broker(1)  # a higher leader epoch
    write_plain(bootstrap, plain, 500, 1000)
    producer = producer_of(bootstrap)
    for number in range(600):
        producer.produce(compacted, f"{number} ".encode() * 60, f"k{number % 20}".encode())
        if number % 20 == 0:
            producer.flush(30)
    producer.flush(30)
    left_open = producer_of(bootstrap, **{"transactional.id": "left open"})
    left_open.init_transactions(60)
    left_open.begin_transaction()
    for _ in range(5):
        left_open.produce(tx, b"never decided " * 20)
    left_open.flush(30)
    write_transactions(bootstrap, tx, "two", [True, False, True, True] * 2)


@pytest.mark.timeout(480)
def test_a_lost_cluster_comes_back(kraft_cluster: KraftFactory, tmp_path: Path) -> None:
    plain, tx, compacted = "plain", "tx", "compacted"
    old = kraft_cluster()
    fill(old, plain, tx, compacted)
    store = file_store(tmp_path / "store")
    settings = merged(beside(old, store), {"topics": {"compacted": "as_closed"}})
    file = tmp_path / "old.yaml"
    file.write_text(yaml.safe_dump(settings))
    commands = Commands(file, {"PATH": "", **store.environment})
    commands.run("backfill")
    old.kill()

    new = kraft_cluster()
    servers = ("--bootstrap-server", new.bootstrap_servers)
    plan = str(tmp_path / "plan.json")
    planned = commands.run("hydrate", "plan", plan)["partitions"]
    assert [(one["topic"], one["partition"]) for one in planned] == [
        (compacted, 0),
        (plain, 0),
        (plain, 1),
        (tx, 0),
    ]
    assert all(one["segments"] > 2 for one in planned), planned
    commands.run("hydrate", "prepare", plan, *servers)
    commands.run("hydrate", "prepare", plan, *servers)  # safe to repeat
    log_dir = new.log_dirs(1)[0]
    place = ("hydrate", "place", plan, "--log-dir", str(log_dir))
    assert "stop it first" in commands.refused(*place)
    new.stop_broker(1)

    slow = subprocess.Popen(
        commands.line(*place, "--max-rate", "20KiB"),
        env=dict(commands.environment),
        stderr=subprocess.PIPE,
    )
    wait_until(
        lambda: any(log_dir.glob("*-delete/*.log")) or slow.poll() is not None,
        120,
        "a staged segment",
    )
    slow.kill()
    _, said = slow.communicate()
    assert slow.returncode == -signal.SIGKILL, said
    placed = commands.run(*place)["partitions"]
    assert [one["problem"] for one in placed] == [None] * 4
    assert all(one["already"] for one in commands.run(*place)["partitions"])

    new.start_broker(1)
    finished = commands.run("hydrate", "finish", plan, *servers)
    assert [one["partition"] for one in finished["aborted_transactions"]] == [f"{tx}-0"]
    assert commands.run("hydrate", "finish", plan, *servers)["aborted_transactions"] == []
    verified = commands.run("hydrate", "verify", plan, *servers, "--produce", plain)
    by_name = {one["partition"]: one for one in verified["partitions"]}
    assert 0 < by_name["tx-0"]["committed_records"] < by_name["tx-0"]["records"]
    assert by_name["plain-0"]["records"] == planned[1]["end"]
    assert {one["compared"] for one in verified["partitions"]} == {"bytes"}

    new.kill_broker(1)
    new.start_broker(1)
    commands.run("hydrate", "verify", plan, *servers)

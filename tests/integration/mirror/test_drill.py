"""`sidetier drill` on real brokers: a sound archive, and one with a damaged segment."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer

from sidetier.archive.drill_record import decode_drill
from sidetier.cli.main import run
from sidetier.sandbox.kafka import KraftCluster
from tests.harness.archive_objects import file_store
from tests.harness.local_segments import small_segments
from tests.harness.sidecar import beside
from tests.harness.topics import create_topic

pytestmark = [pytest.mark.integration, pytest.mark.timeout(480)]


def transactional(bootstrap: str, topic: str, name: str, ends: list[str]) -> None:
    """Transactions of 40 records each that are committed, aborted, or left open."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": f"{topic} {name}", "log_level": 0}
    )
    producer.init_transactions(60)
    for end in ends:
        producer.begin_transaction()
        for number in range(40):
            value = f"{name} {end} {number} ".encode() * 25
            producer.produce(topic, value, b"key", partition=0, headers=[("n", b"1")])
        assert producer.flush(30) == 0
        if end == "commit":
            producer.commit_transaction(60)
        elif end == "abort":
            producer.abort_transaction(60)


def fill(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, partitions=2, configs=small_segments(retention_ms=-1))
    transactional(bootstrap, topic, "one", ["commit", "abort"] * 2)
    transactional(bootstrap, topic, "left", ["open"])
    transactional(bootstrap, topic, "two", ["abort", "commit", "commit"])
    plain = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0})
    for number in range(300):
        plain.produce(topic, f"{number} ".encode() * 80, partition=1, timestamp=10**12 - number)
        if number % 20 == 0:
            assert plain.flush(30) == 0  # many small batches
    assert plain.flush(30) == 0


def test_a_sample_comes_back_and_a_damaged_segment_is_named(
    kraft43: KraftCluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(kraft43.bootstrap_servers, topic)
    root = tmp_path / "store"
    store = file_store(root)
    config = tmp_path / "sidetier.yaml"
    config.write_text(yaml.safe_dump(beside(kraft43, store, topics=[topic])))

    def sidetier(*words: str) -> tuple[int, Any]:
        code = run(["--config", str(config), *words, "--output", "json"])
        out, err = capsys.readouterr()
        assert out, err
        return code, json.loads(out)

    def recorded() -> tuple[bool, int | None, int]:
        file = root / "_sidetier" / "test" / "drill.json"
        found = decode_drill(file.read_bytes(), str(file))
        return found.succeeded, found.last_successful_ms, found.finished_ms

    assert sidetier("backfill")[0] == 0
    everything = ("drill", "--topic", topic, "--segments", "100", "--directory", str(tmp_path))
    code, told = sidetier(*everything)
    assert code == 0, told
    zero, one = told["partitions"]
    assert [zero["partition"], one["partition"]] == [0, 1]
    assert min(len(zero["segments"]), len(one["segments"])) > 2
    assert zero["live"] == f"0-{zero['end']} equal"
    assert one["records"] == one["end"]
    succeeded, last_success, finished = recorded()
    assert (succeeded, last_success) == (True, finished)

    damaged = one["segments"][1]
    file = root / damaged
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(data)
    code, told = sidetier(*everything, "--partition", "1")
    assert code == 3, told
    (broken,) = told["partitions"]
    (problem,) = broken["problems"]
    assert damaged in problem
    assert recorded()[:2] == (False, last_success)
    assert not list(tmp_path.glob("sidetier-drill-*"))

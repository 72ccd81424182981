"""Early archiving on a real broker: active segments are in the archive within seconds, once."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from devtools.sandbox.kafka import KafkaCluster
from sidetier import TieredConsumer
from sidetier.cli.exits import FINDINGS
from sidetier.cli.main import run
from tests.harness.archive_check import ArchiveReader, compare, wait_until_stored
from tests.harness.archive_objects import ArchiveStore, s3_store
from tests.harness.ledger import Ledger
from tests.harness.local_segments import log_bases, small_segments, wait_until_gone
from tests.harness.s3 import S3Bucket
from tests.harness.sidecar import Sidecar, beside, merged
from tests.harness.topics import create_topic
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

# `make test-long` sets the variable.
CLUSTERS = ("kraft43", "zk39") if os.environ.get("EARLY_RELEASES") else ("kraft43",)
SECONDS = 90.0
SEGMENT_BYTES = 256 * 1024
PART_BYTES = 64 * 1024


def transactional(bootstrap: str, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(SECONDS)
    return producer


def send(ledger: Ledger, producer: Producer, topic: str, count: int) -> None:
    for _ in range(count):
        ledger.send(producer, topic, 0)
    assert producer.flush(SECONDS) == 0
    assert not ledger.failures


def read_archive(
    bootstrap: str, topic: str, config: Path, store: ArchiveStore, count: int
) -> list[int]:
    """Return the offsets of the committed records that a reader of the archive alone gets."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": f"archive-{topic}",
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "tiered.storage.mode": "TIERED_STORAGE_ONLY",
        "tiered.storage.config": str(config),
    }
    read: list[int] = []
    with pytest.MonkeyPatch.context() as environment:
        for name, value in store.environment.items():
            environment.setenv(name, value)
        with TieredConsumer(settings) as consumer:
            consumer.assign([TopicPartition(topic, 0, 0)])
            while len(read) < count:
                message = consumer.poll(SECONDS)
                assert message is not None, f"nothing behind {read[-1:]}"
                assert message.error() is None, message.error()
                offset = message.offset()
                assert offset is not None
                read.append(offset)
            assert consumer.poll(1.0) is None
    return read


@pytest.fixture(params=CLUSTERS)
def cluster(request: pytest.FixtureRequest) -> KafkaCluster:
    found: KafkaCluster = request.getfixturevalue(request.param)
    return found


def test_active_segments_are_archived_within_seconds(  # noqa: PLR0915 - an archive takes long to set up
    cluster: KafkaCluster,
    topic: str,
    tmp_path: Path,
    s3_bucket: S3Bucket,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bootstrap, store = cluster.bootstrap_servers, s3_store(s3_bucket)
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    segments = small_segments(cluster.version, SEGMENT_BYTES, file_delete_delay_ms=100)
    by_size = f"{topic}-by-size"  # the other one reaches its age before its bytes
    for name in (topic, by_size):
        create_topic(bootstrap, name, configs=segments)
    directory = cluster.log_dirs(1)[0] / f"{topic}-0"
    override = {"topics": ".*-by-size", "bytes": PART_BYTES // 2, "age": "1d"}
    early = {"topics": [f"{topic}.*"], "bytes": PART_BYTES, "age": "1s", "overrides": [override]}
    settings = merged(beside(cluster, store, topics=[f"{topic}.*"]), {"uploader": {"early": early}})
    ledger, waiting, log = Ledger(), Ledger(seed=1), ArchiveReader(store.objects)
    config = tmp_path / "trim.yaml"
    local = {"retention": {"local": {"topics": [topic], "bytes": 0}}}
    config.write_text(json.dumps(merged(settings, local)))

    def command(name: str, *arguments: str, code: int = 0) -> dict[str, Any]:
        capsys.readouterr()
        found = run([name, *arguments, "--config", str(config), "--output", "json"])
        answer = capsys.readouterr()
        assert found == code, answer
        result: dict[str, Any] = json.loads(answer.out)
        return result

    with Sidecar(tmp_path / "sidecar", settings, store) as sidecar:
        waiting.produce(bootstrap, by_size, 5)
        ledger.produce(bootstrap, topic, 20)
        wait_until_stored(store.objects, topic, 0, 20, SECONDS)

        # A transaction is open across the border of a part, and another one is aborted in it.
        across, aborted = (transactional(bootstrap, f"{topic}-{n}") for n in range(2))
        across.begin_transaction()
        send(ledger, across, topic, 10)
        aborted.begin_transaction()
        send(ledger, aborted, topic, 5)
        aborted.abort_transaction()
        wait_until_stored(store.objects, topic, 0, 35, SECONDS)
        sidecar.process.kill()
        # The broker may not have noted the transaction at offset 35 yet, so that marker waits.
        mark = log.mark(topic)
        assert mark is not None
        assert mark.next == 35
        send(ledger, across, topic, 4)
        explained = command("explain", topic, "0", "36", code=FINDINGS)
        assert explained["gate"] == "active_segment"
        assert "uploader.early" in explained["text"]
        sidecar.start()
        across.commit_transaction()
        wait_until_stored(store.objects, topic, 0, 41, SECONDS)

        ledger.produce(bootstrap, topic, 2 * PART_BYTES // 1000)
        wait_until_stored(store.objects, topic, 0, ledger.next_offset(topic), SECONDS)
        assert log_bases(directory) == [0], "no segment has closed yet"
        assert log.mark(by_size) is None
        at = ("--sidecar", sidecar.url)
        explained = command("explain", by_size, "0", "2", *at, code=FINDINGS)
        assert "archived early, at 32.8 kB (" in explained["text"]
        assert "or an age of 1 d 0 h (in 23 h" in explained["text"]
        waiting.produce(bootstrap, by_size, PART_BYTES // 2000)
        wait_until_stored(store.objects, by_size, 0, PART_BYTES // 2000, SECONDS)
        assert compare(store.objects, waiting.records) >= PART_BYTES // 2000
        ledger.produce(bootstrap, topic, SEGMENT_BYTES // 1000)
        wait_until(lambda: len(log_bases(directory)) == 2, SECONDS, "the segment to close")
        end = ledger.next_offset(topic)
        wait_until_stored(store.objects, topic, 0, end, SECONDS)
        active = log_bases(directory)[-1]
        assert {0, 20, 35} < set(log.views()[topic, 0].logs())
        sent = ledger.records[topic, 0]
        assert compare(store.objects, ledger.records) == len(sent)

        committed = [offset for offset in sorted(sent) if not 30 <= offset < 35]
        read = read_archive(bootstrap, topic, sidecar.config, store, len(committed))
        assert read == committed
        report = command("verify", "--topic", topic, "--deep", "--local")
        assert not [one for one in report["findings"] if one["severity"] != "info"], report
        command("trim")
        wait_until_gone(directory, active, SECONDS)
        assert log_bases(directory) == [active]

        # After all that, the next part begins at the same offset.
        ledger.produce(bootstrap, topic, 3)
        wait_until_stored(store.objects, topic, 0, end + 3, SECONDS)
        assert sidecar.metric("sidetier_early_segments_total") >= 3
        assert not sidecar.seen("segment.upload_failed")
        assert sidecar.stop() == 0
    assert compare(store.objects, ledger.records) == len(sent)
    committed += range(end, end + 3)
    read = read_archive(bootstrap, topic, sidecar.config, store, len(committed))
    assert read == committed, "also what the broker has deleted"

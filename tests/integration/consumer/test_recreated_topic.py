"""A topic of a real broker that is deleted and created again while its archive is stored."""

import logging
import os
import subprocess
import sys
import uuid
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from devtools.sandbox.kafka import KraftCluster
from devtools.sandbox.s3server import S3Server
from sidetier import TieredConsumer
from sidetier.consumer import subscription_state
from tests.harness.archive_check import wait_until_stored
from tests.harness.archive_objects import s3_store
from tests.harness.clusters import KraftFactory
from tests.harness.ledger import Ledger
from tests.harness.local_segments import closed_end, small_segments
from tests.harness.s3 import new_bucket
from tests.harness.sidecar import Sidecar, beside
from tests.harness.topics import create_topic, delete_records, delete_topic

pytestmark = pytest.mark.integration
MODES = ("KAFKA_PREFERRED", "TIERED_STORAGE_PREFERRED", "TIERED_STORAGE_ONLY")
NEW = 40


def read(consumer: TieredConsumer, count: int) -> list[tuple[int, bytes]]:
    """Return at least this number of records, or those that came within 30 seconds."""
    found: list[tuple[int, bytes]] = []
    deadline = monotonic() + 30
    while len(found) < count and monotonic() < deadline:
        for message in consumer.consume(100, 0.3):
            assert message.error() is None, str(message.error())
            found.append((int(message.offset() or 0), bytes(message.value() or b"")))
    return found


def test_recreated_topic_is_read_from_kafka_until_its_old_archive_is_retired(
    kraft43: KraftCluster,
    s3_server: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic, bootstrap = f"again-{uuid.uuid4().hex[:6]}", kraft43.bootstrap_servers
    store = s3_store(new_bucket(s3_server))
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    where = TopicPartition(topic, 0)

    def settings(mode: str, **more: object) -> dict[str, Any]:
        return {
            "bootstrap.servers": bootstrap,
            "group.id": f"g-{uuid.uuid4().hex[:8]}",
            "auto.offset.reset": "earliest",
            "log_level": 0,
            "tiered.storage.mode": mode,
            "tiered.storage.config": str(sidecar.config),
            "tiered.storage.look.interval": "1s",
            **more,
        }

    create_topic(bootstrap, topic, configs=small_segments())
    config = beside(kraft43, store, topics=[topic])
    with Sidecar(tmp_path, config, store) as sidecar:
        old, new = Ledger(), Ledger(seed=7)
        old.produce(bootstrap, topic, 200)
        end = closed_end(kraft43.log_dirs(1)[0] / f"{topic}-0")
        wait_until_stored(store.objects, topic, 0, end)
        with TieredConsumer(settings("TIERED_STORAGE_PREFERRED")) as reader:
            reader.assign([TopicPartition(topic, 0, 0)])
            assert len(read(reader, 1)) >= 1
            delete_topic(bootstrap, topic)
            create_topic(bootstrap, topic, configs=small_segments())
            # More than the old topic had: Kafka does not refuse the archive's end.
            new.produce(bootstrap, topic, 200 + NEW)
            values = [(at, record.value) for at, record in sorted(new.records[topic, 0].items())]
            olds = {(at, record.value) for at, record in old.records[topic, 0].items()}
            found = [each for each in read(reader, end - 100 + len(values)) if each not in olds]
            assert found[: len(values)] == values[: len(found)]
            assert len(found) > 0

        told: list[KafkaError] = []
        caplog.set_level(logging.WARNING, "sidetier.consumer")
        for mode in MODES[:2]:
            with TieredConsumer(settings(mode, error_cb=told.append)) as consumer:
                consumer.subscribe([topic])
                assert read(consumer, len(values)) == values
                assert consumer.get_watermark_offsets(where, 30) == (0, len(values))
                assert consumer.offsets_for_times([TopicPartition(topic, 0, 0)], 30)[0].offset == 0
        with TieredConsumer(settings(MODES[2], error_cb=told.append)) as consumer:
            consumer.assign([TopicPartition(topic, 0, 0)])
            assert consumer.consume(1, 3) == []
            assert f"sidetier retire {topic}" in caplog.text
            assert all(f"sidetier retire {topic}" in error.str() for error in told)
            assert len(told) == len(MODES)

        command = [sys.executable, "-m", "sidetier.cli", "--config", str(sidecar.config), "retire"]
        subprocess.run([*command, topic], check=True, env={**os.environ, **store.environment})
        new_end = closed_end(kraft43.log_dirs(1)[0] / f"{topic}-0")
        wait_until_stored(store.objects, topic, 0, new_end)
        delete_records(bootstrap, topic, 0, new_end - 10)
        caplog.clear()
        for mode in MODES[:2]:
            with TieredConsumer(settings(mode)) as consumer:
                consumer.subscribe([topic])
                assert read(consumer, len(values)) == values
                assert consumer.get_watermark_offsets(where, 30) == (0, len(values))
        assert "archive_of_another_topic" not in caplog.text


def test_readers_of_kafka_continue_with_a_topic_whose_absence_their_clients_have_not_seen(
    kraft_cluster: KraftFactory,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Librdkafka #4898: Kafka's own consumer reads nothing more."""
    monkeypatch.setattr(subscription_state, "SILENT_SECONDS", 2.0)
    caplog.set_level(logging.WARNING, "sidetier.consumer")
    cluster, topic = kraft_cluster(brokers=1), "again"
    bootstrap = cluster.bootstrap_servers
    create_topic(bootstrap, topic, partitions=2)
    cluster.kill_broker(1)
    cluster.start_broker(1)  # raises the leader epochs
    old, new = Ledger(), Ledger(seed=7)
    old.produce(bootstrap, topic, 40)

    def tiered(mode: str, strategy: str) -> TieredConsumer:
        return TieredConsumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{mode}-{strategy}",
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": strategy,
                "log_level": 0,
                "tiered.storage.mode": mode,
                "tiered.storage.url": f"file://{tmp_path}/archive",
                "tiered.storage.cluster.name": "c",
            }
        )

    def all_of(ledger: Ledger) -> list[tuple[int, bytes]]:
        return sorted(
            (offset, record.value or b"")
            for records in ledger.records.values()
            for offset, record in records.items()
        )

    with ExitStack() as stack:
        readers = [
            stack.enter_context(tiered(mode, strategy))
            for mode, strategy in product(MODES[:2], ["range", "cooperative-sticky"])
        ]
        readers[0].assign([TopicPartition(topic, number, 0) for number in range(2)])
        for reader in readers[1:]:
            reader.subscribe([topic])
        for reader in readers:
            assert sorted(read(reader, 40)) == all_of(old)
        delete_topic(bootstrap, topic)
        create_topic(bootstrap, topic, partitions=2)
        new.produce(bootstrap, topic, 60)
        for reader in readers:
            assert sorted(read(reader, 60)) == all_of(new)
    # A client may happen to see the absence.
    assert 1 <= caplog.text.count("consumer.kafka_client_replaced recreated=again") <= len(readers)

"""Transactions of real producers over partitions whose archives end at different times."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer

from devtools.sandbox.kafka import KafkaCluster
from sidetier.mirror.hydrate.batch_scan import scan_batches
from sidetier.mirror.hydrate.plan import HydratePlan
from sidetier.mirror.hydrate.survey import Cut, make_plan
from sidetier.segments.offsets import TopicPartition
from sidetier.segments.transactions import Marker
from sidetier.storage.fake import FakeStorage
from tests.harness.java_clients import write_transactions_with_java
from tests.harness.local_segments import log_bases, small_segments
from tests.harness.made_archive import MadeArchive, access_to
from tests.harness.topics import create_topic

pytestmark = pytest.mark.integration

SIZES = (200, 700, 1500)
TRANSACTIONS = 150
WAIT = 120.0


def directory_of(cluster: KafkaCluster, topic: str, partition: int) -> Path:
    (broker,) = cluster.broker_ids
    return cluster.log_dirs(broker)[0] / f"{topic}-{partition}"


def archive_closed_segments(cluster: KafkaCluster, topic: str) -> FakeStorage:
    """Store the closed segments of each partition: with larger records, the archive ends later."""
    store = FakeStorage()
    for partition in range(len(SIZES)):
        archive = MadeArchive(store, tp=TopicPartition(topic, partition))
        directory = directory_of(cluster, topic, partition)
        *closed, end = log_bases(directory)
        for base in closed:
            archive.segment(base, (directory / f"{base:020d}.log").read_bytes())
        archive.mark(closed[-1], end)
    return store


def markers_of(cluster: KafkaCluster, topic: str, partition: int) -> list[tuple[int, int, int]]:
    """Epochs of records and marker, and the marker's offset, for each transaction in order.

    The broker's files have all of them, including those that were not archived.
    """
    result, epoch = [], -1
    directory = directory_of(cluster, topic, partition)
    for base in log_bases(directory):
        path = directory / f"{base:020d}.log"
        for _, header, marker in scan_batches([path.read_bytes()], str(path)):
            if marker is Marker.NONE:
                epoch = header.producer_epoch
            else:
                result.append((epoch, header.producer_epoch, int(header.base_offset)))
    return result


def committed_below(markers: Sequence[tuple[int, int, int]], end: int) -> int:
    """Number of transactions committed below an offset."""
    return sum(offset < end for _, _, offset in markers)


def planned(store: FakeStorage, *, consistent: bool) -> HydratePlan:
    return make_plan(
        access_to(store), lambda _: True, Cut(), {}, is_transaction_consistent=consistent
    )


@pytest.mark.timeout(600)
def test_only_v2_transactions_complete_in_every_archive_are_planned(
    kraft43: KafkaCluster, tmp_path: Path
) -> None:
    servers, topic = kraft43.bootstrap_servers, "consistent-v2"
    create_topic(servers, topic, partitions=len(SIZES), configs=small_segments())
    write_transactions_with_java(servers, topic, TRANSACTIONS, SIZES, tmp_path)
    markers = [markers_of(kraft43, topic, number) for number in range(len(SIZES))]
    for of_partition in markers:
        epochs = [(epoch, marker) for epoch, marker, _ in of_partition]
        first = epochs[0][0]
        assert epochs == [(first + number, first + number + 1) for number in range(TRANSACTIONS)]
    store = archive_closed_segments(kraft43, topic)
    ragged = [
        committed_below(markers[partition.partition], partition.end)
        for partition in planned(store, consistent=False).partitions
    ]
    assert len(set(ragged)) > 1
    plan = planned(store, consistent=True)
    whole = {
        committed_below(markers[partition.partition], partition.end)
        for partition in plan.partitions
    }
    assert whole == {min(ragged)}
    assert plan.has_whole_transactions


@pytest.mark.timeout(600)
def test_consistency_is_not_claimed_for_v1_transactions_of_librdkafka(
    kraft43: KafkaCluster,
) -> None:
    servers, topic = kraft43.bootstrap_servers, "consistent-v1"
    create_topic(servers, topic, partitions=len(SIZES), configs=small_segments())
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(WAIT)
    for _ in range(TRANSACTIONS):
        producer.begin_transaction()
        for partition, size in enumerate(SIZES):
            producer.produce(topic, bytes(size), partition=partition)
        producer.commit_transaction(WAIT)
    markers = [markers_of(kraft43, topic, number) for number in range(len(SIZES))]
    assert all(epoch == marker for of_one in markers for epoch, marker, _ in of_one)
    plan = planned(archive_closed_segments(kraft43, topic), consistent=True)
    assert plan.transactions is not None
    assert len(plan.transactions.version_1_producers) == 1
    assert not plan.has_whole_transactions

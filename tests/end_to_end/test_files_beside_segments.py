"""Optional files of a real broker: transaction indexes, producer snapshots, leader epochs."""

from pathlib import Path

import pytest
from confluent_kafka import Producer

from devtools.sandbox.kafka import KraftCluster
from sidetier.segments.epoch_history import parse_leader_epoch_checkpoint
from sidetier.segments.txn_index import parse_txn_index
from tests.harness.archive_check import ArchiveReader, wait_until_stored
from tests.harness.archive_objects import BucketObjects, s3_store
from tests.harness.ledger import Ledger
from tests.harness.local_segments import closed_end, log_bases, small_segments
from tests.harness.s3 import S3Bucket
from tests.harness.sidecar import Sidecar, beside
from tests.harness.stored_log import read_batches
from tests.harness.topics import create_topic, move_leader

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]


def run_transactions(bootstrap: str, topic: str, count: int) -> None:
    """Run transactions; every third is aborted, and each is larger than a batch."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-writer", "log_level": 0}
    )
    producer.init_transactions(30)
    for number in range(count):
        producer.begin_transaction()
        for _ in range(20):
            producer.produce(topic, bytes(500), partition=0)
        if number % 3:
            producer.commit_transaction(30)
        else:
            producer.flush(120)  # otherwise it may have no records in the log
            producer.abort_transaction(30)


def test_transaction_indexes_and_producer_snapshots_are_stored_with_their_segments(
    kraft43: KraftCluster, topic: str, s3_bucket: S3Bucket, tmp_path: Path
) -> None:
    create_topic(kraft43.bootstrap_servers, topic, configs=small_segments())
    directory = kraft43.log_dirs(1)[0] / f"{topic}-0"
    while len(log_bases(directory)) <= 4:
        run_transactions(kraft43.bootstrap_servers, topic, 15)
    store = s3_store(s3_bucket)
    with Sidecar(tmp_path, beside(kraft43, store, topics=[topic]), store) as sidecar:
        wait_until_stored(store.objects, topic, 0, closed_end(directory))
        assert sidecar.seen("segment.file_left_out") == []
        assert sidecar.stop() == 0
    view = ArchiveReader(store.objects).views()[topic, 0]
    aborted = 0
    for base in view.logs():
        for kind in ("txnindex", "snapshot"):
            local, key = directory / f"{base:020d}.{kind}", f"{view.prefix}{base:020d}.{kind}"
            assert store.objects.read(key) == (local.read_bytes() if local.exists() else None)
        found = store.objects.read(f"{view.prefix}{base:020d}.txnindex")
        if found is not None:
            markers = {txn.last_offset for txn in parse_txn_index(found)}
            log = store.objects.read(view.log_key(base)) or b""
            control = {b.base_offset for b in read_batches(log, str(base)) if b.attributes & 0x20}
            assert markers <= control
            aborted += len(markers)
    assert aborted >= 3
    assert sum(_has(store.objects, view.prefix, base) for base in view.logs()) >= 3


def _has(objects: object, prefix: str, base: int) -> bool:
    assert isinstance(objects, BucketObjects)
    return objects.read(f"{prefix}{base:020d}.snapshot") is not None


def test_every_stored_record_has_its_epoch_after_leader_changes(
    pair: KraftCluster, topic: str, s3_bucket: S3Bucket, tmp_path: Path
) -> None:
    bootstrap = pair.bootstrap_servers
    create_topic(bootstrap, topic, assignment=[[1, 2]], configs=small_segments())
    store, ledger = s3_store(s3_bucket), Ledger()
    one, other = (
        Sidecar(
            tmp_path / f"{number}", beside(pair, store, broker_id=number, topics=[topic]), store
        )
        for number in (1, 2)
    )
    with one, other:
        for leader in (2, 1, 2):
            ledger.produce(bootstrap, topic, 120)
            move_leader(bootstrap, topic, 0, leader)
        ledger.produce(bootstrap, topic, 200)
        end = closed_end(pair.log_dirs(2)[0] / f"{topic}-0")
        wait_until_stored(store.objects, topic, 0, end)
        assert [sidecar.stop() for sidecar in (one, other)] == [0, 0]
    view = ArchiveReader(store.objects).views()[topic, 0]
    key = f"{view.prefix}leader-epoch-checkpoint"
    epoch_history = parse_leader_epoch_checkpoint((store.objects.read(key) or b"").decode(), key)
    seen = set()
    for base in view.logs():
        for batch in read_batches(store.objects.read(view.log_key(base)) or b"", str(base)):
            assert epoch_history.epoch_at(batch.base_offset) == batch.leader_epoch
            seen.add(batch.leader_epoch)
    assert len(seen) >= 3
    assert seen <= {epoch for epoch, _ in epoch_history.entries}

"""One sidecar is dead, and the brokers delete segments: the followers' sidecars store the rest."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devtools.sandbox.kafka import KraftCluster
from tests.harness.archive_check import ArchiveWatch, compare, wait_until_stored
from tests.harness.archive_objects import ArchiveStore, s3_store
from tests.harness.ledger import Ledger
from tests.harness.local_segments import (
    SEGMENT_BYTES,
    closed_end,
    log_bases,
    small_segments,
    wait_until_gone,
)
from tests.harness.s3 import S3Bucket
from tests.harness.sidecar import Sidecar, beside
from tests.harness.topics import create_topic, leader_of
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]

RECORDS = 400


@pytest.fixture
def store(s3_bucket: S3Bucket) -> ArchiveStore:
    return s3_store(s3_bucket)


@contextmanager
def sidecar(
    cluster: KraftCluster, broker_id: int, store: ArchiveStore, topic: str, directory: Path
) -> Iterator[Sidecar]:
    settings = beside(cluster, store, broker_id=broker_id, topics=[topic])
    with Sidecar(directory / f"sidecar-{broker_id}", settings, store) as running:
        running.wait_until_ready()
        yield running


def create(cluster: KraftCluster, topic: str, replicas: list[int]) -> None:
    """Create a topic that keeps two segments; further ones are deleted 3 s after their renaming."""
    configs = small_segments(
        min_insync_replicas=1, retention_bytes=2 * SEGMENT_BYTES, file_delete_delay_ms=3000
    )
    create_topic(cluster.bootstrap_servers, topic, assignment=[replicas], configs=configs)
    wait_until(
        lambda: leader_of(cluster.bootstrap_servers, topic, 0) == replicas[0], 30, "the leader"
    )


def directory_of(cluster: KraftCluster, broker_id: int, topic: str) -> Path:
    return cluster.log_dirs(broker_id)[0] / f"{topic}-0"


def test_followers_store_the_segments_of_a_dead_sidecar(
    pair: KraftCluster, topic: str, store: ArchiveStore, tmp_path: Path
) -> None:
    """Both brokers delete by size, and the leader's sidecar is killed during its uploads."""
    cluster, (leads, follows) = pair, pair.broker_ids
    create(cluster, topic, [leads, follows])
    ledger = Ledger()
    with (
        sidecar(cluster, follows, store, topic, tmp_path) as following,
        ArchiveWatch(store.objects),
    ):
        with sidecar(cluster, leads, store, topic, tmp_path) as leading:
            ledger.produce(cluster.bootstrap_servers, topic, 100)
            wait_until_stored(store.objects, topic, 0, 60)
            leading.kill()
        assert following.metric("sidetier_rescued_segments_total") == 0
        for _ in range(4):
            ledger.produce(cluster.bootstrap_servers, topic, RECORDS // 4)
        for broker_id in (leads, follows):
            wait_until_gone(directory_of(cluster, broker_id, topic), below=RECORDS)
        gone = min(log_bases(directory_of(cluster, follows, topic)))
        wait_until_stored(store.objects, topic, 0, gone, 60)
        assert following.metric("sidetier_rescued_segments_total") >= 5
        with sidecar(cluster, leads, store, topic, tmp_path) as leading:
            ledger.produce(cluster.bootstrap_servers, topic, 100)
            end = closed_end(directory_of(cluster, leads, topic))
            wait_until_stored(store.objects, topic, 0, end, 60)
            assert leading.seen("gap.recorded") == []
            assert leading.seen("leadership.stood_down") == []
            assert leading.stop() == 0
        assert following.stop() == 0
    assert compare(store.objects, ledger.records) >= end


def test_new_leader_has_pinned_segments_deleted_before_it_led(
    pair: KraftCluster, topic: str, store: ArchiveStore, tmp_path: Path
) -> None:
    """A lead change with a backlog older than the retention, without a rescue in between."""
    cluster, (leads, follows) = pair, pair.broker_ids
    create(cluster, topic, [leads, follows])
    settings = beside(cluster, store, broker_id=follows, topics=[topic])
    settings["uploader"] = {"rescue": {"patience": "120s"}}
    ledger = Ledger()
    with (
        Sidecar(tmp_path / "patient", settings, store) as following,
        ArchiveWatch(store.objects),
    ):
        following.wait_until_ready()
        ledger.produce(cluster.bootstrap_servers, topic, RECORDS)
        for broker_id in (leads, follows):
            wait_until_gone(directory_of(cluster, broker_id, topic), below=RECORDS - 100)
        cluster.stop_broker(leads)
        wait_until(
            lambda: leader_of(cluster.bootstrap_of(follows), topic, 0) == follows, 60, "the lead"
        )
        end = closed_end(directory_of(cluster, follows, topic))
        wait_until_stored(store.objects, topic, 0, end, 60)
        cluster.start_broker(leads)
        assert following.seen("gap.recorded") == []
        assert following.stop() == 0
    assert compare(store.objects, ledger.records) >= end

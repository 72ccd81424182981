"""The main task on each kind of broker: segments are stored before retention deletes them."""

from pathlib import Path

import pytest

from devtools.sandbox.kafka import KafkaCluster
from tests.harness.archive_check import ArchiveWatch, compare, wait_until_stored
from tests.harness.archive_objects import file_store, s3_store
from tests.harness.ledger import Ledger
from tests.harness.local_segments import SEGMENT_BYTES, closed_end, small_segments, wait_until_gone
from tests.harness.s3 import S3Bucket
from tests.harness.sidecar import Sidecar, beside
from tests.harness.topics import create_topic

pytestmark = pytest.mark.integration


def running(kind: str, request: pytest.FixtureRequest) -> KafkaCluster:
    """One of the shared brokers, by its fixture's name."""
    cluster = request.getfixturevalue(kind)
    assert isinstance(cluster, KafkaCluster)
    return cluster


@pytest.mark.parametrize("kind", ["kraft43", "kraft39", "zk39"])
def test_segments_deleted_by_retention_are_stored(
    kind: str, request: pytest.FixtureRequest, topic: str, tmp_path: Path, s3_bucket: S3Bucket
) -> None:
    cluster = running(kind, request)
    bootstrap = cluster.bootstrap_servers
    store = s3_store(s3_bucket) if kind == "kraft43" else file_store(tmp_path / "store")
    settings = small_segments(
        cluster.version, retention_bytes=2 * SEGMENT_BYTES, file_delete_delay_ms=1000
    )
    create_topic(bootstrap, topic, partitions=2, configs=settings)
    ledger = Ledger()
    directories = [cluster.log_dirs(1)[0] / f"{topic}-{number}" for number in range(2)]
    sidecar = Sidecar(tmp_path / "sidecar", beside(cluster, store, topics=[topic]), store)
    with sidecar, ArchiveWatch(store.objects) as watch:
        for _ in range(3):
            ledger.produce(bootstrap, topic, 200, partitions=(0, 1))
            for number, directory in enumerate(directories):
                wait_until_stored(store.objects, topic, number, closed_end(directory))
        for directory in directories:
            wait_until_gone(directory, below=300)
        watch.check()
        assert sidecar.is_ready()
        rows = sidecar.partitions(topic)
        assert [row["gap_records"] for row in rows] == [0, 0]
        stored = sum(row["next_offset"] for row in rows)
        assert sidecar.stop() == 0
    assert compare(store.objects, ledger.records) == stored > 1000

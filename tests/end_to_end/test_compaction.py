"""Kafka's log cleaner rewrites and merges segments before the sidecar uploads them."""

from pathlib import Path

import pytest
from confluent_kafka import Producer

from devtools.sandbox.kafka import KraftCluster
from tests.harness.archive_check import ArchiveReader, wait_until_stored
from tests.harness.archive_objects import s3_store
from tests.harness.consumed import consume_all
from tests.harness.local_segments import SEGMENT_BYTES, closed_end, log_bases, small_segments
from tests.harness.s3 import S3ServerFactory, new_bucket
from tests.harness.sidecar import Sidecar, beside, merged
from tests.harness.topics import create_topic
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]

RECORDS = 600


def produce(bootstrap: str, topic: str, name: str) -> None:
    """Produce; every tenth key occurs once, the others repeat; a batch has about ten records."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "log_level": 0, "batch.num.messages": 10, "linger.ms": 5}
    )
    for number in range(RECORDS):
        key = f"{name}-{number}" if number % 10 == 0 else f"again-{number % 7}"
        producer.produce(topic, f"{number:>1000}".encode(), key.encode(), 0)
        producer.poll(0)
    assert producer.flush(60) == 0


def left(directory: Path, bases: list[int]) -> set[int]:
    """Those of these segments whose file still exists."""
    return {*bases} & {*log_bases(directory)}


def size_of(path: Path) -> int:
    """File size; 0 for the moment without a file while the cleaner swaps a segment."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return SEGMENT_BYTES


def test_segments_merged_while_the_store_is_silent_are_stored(
    kraft43: KraftCluster, topic: str, own_s3_server: S3ServerFactory, tmp_path: Path
) -> None:
    """The broker has one file left of the pinned segments; every record that it still has below the
    closed end is in the archive at its offset.
    """
    server = own_s3_server()
    store = s3_store(new_bucket(server))
    bootstrap = kraft43.bootstrap_servers
    directory = kraft43.log_dirs(1)[0] / f"{topic}-0"
    configs = small_segments(
        cleanup_policy="compact", min_cleanable_dirty_ratio="0.01", file_delete_delay_ms=200
    )
    create_topic(bootstrap, topic, configs=configs)
    settings = merged(
        beside(kraft43, store, topics=[topic]), {"topics": {"compacted": "as_closed"}}
    )
    with Sidecar(tmp_path, settings, store) as sidecar:
        sidecar.wait_until_ready()
        server.pause()
        produce(bootstrap, topic, "first")
        first = log_bases(directory)[:-1]
        # The cleaner merges segments in the run after the one that shrank them.
        small = directory / f"{first[-2]:020d}.log"
        wait_until(lambda: size_of(small) < SEGMENT_BYTES // 2, 60, "segments to be cleaned")
        produce(bootstrap, topic, "second")
        wait_until(lambda: len(left(directory, first)) <= len(first) // 2, 60, "them to be merged")
        end = closed_end(directory)
        server.resume()
        wait_until_stored(store.objects, topic, 0, end)
        assert sidecar.seen("gap.recorded") == []
        assert sidecar.stop() == 0
    held = {at: record for at, record in consume_all(bootstrap, topic).items() if at < end}
    assert 0 < len(held) < RECORDS
    reader = ArchiveReader(store.objects)
    stored = reader.records(reader.views()[topic, 0])
    assert {at: stored.get(at) for at in held} == held

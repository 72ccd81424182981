"""Takeover of a real broker's partition that Pinterest's uploader has filled, on a real S3 server.

The archive consists of the broker's own files in Pinterest's format, with its observed faults;
afterwards its consumer finds every record that still exists.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from devtools.sandbox.kafka import KraftCluster
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset, TopicPartition
from tests.harness.archive_check import ArchiveReader, wait_until_stored
from tests.harness.archive_objects import s3_store
from tests.harness.ledger import Ledger
from tests.harness.local_segments import closed_end, log_bases, small_segments, wait_until_gone
from tests.harness.pinterest_archive import BucketPuts, PinterestArchive, read_as_pinterest
from tests.harness.s3 import S3Bucket
from tests.harness.sidecar import Sidecar, beside, merged
from tests.harness.topics import create_topic, delete_records

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]

LAYOUT = ArchiveLayout("test", 5)
SMALL_BATCHES = {"batch.num.messages": 2}


@dataclass
class Scene:
    """The broker's partition, the produced records, and Pinterest's archive of it."""

    cluster: KraftCluster
    topic: str
    bucket: S3Bucket
    ledger: Ledger
    directory: Path
    pinterest: PinterestArchive
    bases: list[int]
    scratch: Path

    def upload(self, base: int) -> None:
        """Upload the broker's three files as Pinterest's uploader does."""
        index, timeindex, log = (
            (self.directory / segment_file_name(BaseOffset(base), kind)).read_bytes()
            for kind in (FileKind.INDEX, FileKind.TIMEINDEX, FileKind.LOG)
        )
        self.pinterest.segment(base, log, index, timeindex)

    def produce(self) -> None:
        """Produce some more closed segments."""
        bootstrap = self.cluster.bootstrap_servers
        self.ledger.produce(bootstrap, self.topic, 200, settings=SMALL_BATCHES)

    @contextmanager
    def sidecar(self) -> Iterator[Sidecar]:
        store = s3_store(self.bucket)
        bits = {"storage": {"prefix_entropy_bits": LAYOUT.bits}}
        settings = merged(beside(self.cluster, store, topics=[self.topic]), bits)
        with Sidecar(self.scratch / "sidecar", settings, store) as running:
            running.wait_until_ready()
            yield running

    def check(self, end: int, gaps: tuple[tuple[int, int], ...] = ()) -> None:
        """Assert that Pinterest's consumer reads every record up to `end` once and in order, except
        gaps.
        """
        objects = s3_store(self.bucket).objects
        prefix = LAYOUT.partition_prefix(self.pinterest.tp)
        found = list(read_as_pinterest(objects.read, prefix))
        sent = self.ledger.records[self.topic, 0]
        lost = {offset for start, after in gaps for offset in range(start, after)}
        assert [offset for offset, _ in found] == [o for o in range(end) if o not in lost]
        assert all(record == sent[offset] for offset, record in found)
        assert ArchiveReader(objects).views()[self.topic, 0].gaps == gaps


@pytest.fixture
def scene(kraft43: KraftCluster, topic: str, s3_bucket: S3Bucket, tmp_path: Path) -> Scene:
    """Twelve closed segments, none of them stored."""
    configs = small_segments(index_interval_bytes=4096, file_delete_delay_ms=200)
    create_topic(kraft43.bootstrap_servers, topic, configs=configs)
    directory = kraft43.log_dirs(1)[0] / f"{topic}-0"
    ledger = Ledger()
    while len(log_bases(directory)) <= 12:
        ledger.produce(kraft43.bootstrap_servers, topic, 50, settings=SMALL_BATCHES)
    pinterest = PinterestArchive(BucketPuts(s3_bucket), LAYOUT, TopicPartition(topic, 0))
    bases = log_bases(directory)[:12]
    return Scene(kraft43, topic, s3_bucket, ledger, directory, pinterest, bases, tmp_path)


def fill(scene: Scene) -> None:
    """Upload eleven segments with faults: one missing `.log`, one missing index, two missing
    entries, and a watermark of a segment that is not stored.
    """
    for base in scene.bases[:11]:
        scene.upload(base)
    scene.pinterest.lose(scene.bases[4], FileKind.LOG)
    scene.pinterest.lose(scene.bases[2], FileKind.INDEX)
    scene.pinterest.lose(scene.bases[7], FileKind.TIMEINDEX)
    scene.pinterest.forget(scene.bases[1], scene.bases[6])
    scene.pinterest.lose(scene.bases[10])
    scene.pinterest.mark(scene.bases[10])


def test_gaps_are_filled_from_the_brokers_segments(scene: Scene) -> None:
    fill(scene)
    end = closed_end(scene.directory)
    objects = s3_store(scene.bucket).objects
    with scene.sidecar() as sidecar:
        wait_until_stored_by_us(scene, sidecar, end)
        (taken,) = sidecar.seen("pinterest.taken_over")
        assert taken["segments"] == 4, "up to the first gap"
        assert taken["rebuilt"] == [scene.pinterest.key(scene.bases[2], FileKind.INDEX)]
        scene.check(end)
        scene.produce()
        end = closed_end(scene.directory)
        wait_until_stored(objects, scene.topic, 0, end)
        assert sidecar.seen("gap.recorded") == []
        assert sidecar.metric("sidetier_takeovers_total") == 1
        assert sidecar.stop() == 0
    scene.check(end)


def test_records_that_no_longer_exist_are_recorded_as_a_gap(scene: Scene) -> None:
    """Retention has passed the gap: only Pinterest's archive has the records around it."""
    fill(scene)
    end = closed_end(scene.directory)
    start = scene.bases[9]
    delete_records(scene.cluster.bootstrap_servers, scene.topic, 0, start)
    wait_until_gone(scene.directory, below=start)
    with scene.sidecar() as sidecar:
        wait_until_stored_by_us(scene, sidecar, end)
        gap = (scene.bases[4], scene.bases[5])
        (told,) = sidecar.seen("gap.recorded")
        assert (told["start_offset"], told["end_offset"]) == gap
        lost = gap[1] - gap[0]
        assert sidecar.metric("sidetier_gap_records_total", topic=scene.topic) == lost
        assert sidecar.stop() == 0
    scene.check(end, (gap,))


def test_running_pinterest_uploader_is_reported_and_not_overwritten(scene: Scene) -> None:
    fill(scene)
    end = closed_end(scene.directory)
    objects = s3_store(scene.bucket).objects
    with scene.sidecar() as sidecar:
        wait_until_stored_by_us(scene, sidecar, end)
        scene.pinterest.move_watermark(scene.bases[11])
        scene.produce()
        alarm = sidecar.wait_for_event("pinterest.still_running", topic=scene.topic)
        assert "Pinterest's uploader is running" in alarm["reason"]
        row = sidecar.partition(scene.topic)
        assert row is not None
        assert "Pinterest's uploader is running" in str(row)
        assert sidecar.stop() == 0
    key = LAYOUT.watermark_key(scene.pinterest.tp)
    assert objects.read(key) == b"%020d" % scene.bases[11]


def wait_until_stored_by_us(scene: Scene, sidecar: Sidecar, end: int) -> None:
    """Wait for the takeover and then the watermark, which has no second line before."""
    sidecar.wait_for_event("pinterest.taken_over", topic=scene.topic)
    wait_until_stored(s3_store(scene.bucket).objects, scene.topic, 0, end)

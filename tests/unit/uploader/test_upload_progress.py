"""The progress of uploads, while a store takes their bytes slowly."""

from pathlib import Path

import pytest

from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.checksums import checksum_of_body
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import ChecksumAlgorithm
from sidetier.telemetry.status import PartitionState, SegmentStatus
from sidetier.uploader.sending.reading import FileBody, SendProgress, Sent
from tests.harness.daemons import RunningDaemon, Site
from tests.harness.encryption import encrypting
from tests.harness.intercepted_store import SlowStore
from tests.harness.log_dir import LogDir


def sending(daemon: RunningDaemon) -> tuple[TopicPartition, SegmentStatus] | None:
    """Return the one segment of which the store has taken something, and its partition."""
    found = [
        (status.topic_partition, segment)
        for status in daemon.daemon.status.snapshot().partitions
        for segment in status.segments
        if segment.sent_bytes
    ]
    assert len(found) < 2
    return found[0] if found else None


def test_status_has_the_progress_of_each_upload(log_dir: LogDir, store: FakeStorage) -> None:
    """With one thread: the second upload begins without any event of its partition."""
    logs = {log.tp: log for log in (log_dir.create("t", number) for number in range(2))}
    for log in logs.values():
        log.closed_segment(400)
    log_dir.checkpoint_high_watermarks()
    slow, seen = SlowStore(store), set[TopicPartition]()
    with Site([log_dir], slow).running(threads=1) as daemon:
        board = daemon.daemon.status
        try:
            for _ in logs:
                daemon.wait(lambda: sending(daemon), "half of a segment to be sent")
                tp, segment = sending(daemon) or pytest.fail("the upload ended by itself")
                seen.add(tp)
                size = len(logs[tp].written[0])
                assert (segment.sent_bytes, segment.size_bytes) == (size // 2, size)
                assert segment.stage == "uploading"
                assert segment.send_bytes_per_second
                assert segment.send_seconds_left
                assert board.snapshot(with_partitions=False).sending_bytes == size // 2
                status = daemon.status(tp)
                assert status is not None
                assert status.state is PartitionState.UPLOADING
                slow.goes_on.release()
                daemon.wait(lambda: is_archived(daemon, tp), "the segment to be archived")  # noqa: B023 -- called at once
        finally:
            slow.goes_on.release(len(logs))
        assert seen == logs.keys()
        assert board.snapshot(with_partitions=False).sending_bytes == 0


def is_archived(daemon: RunningDaemon, tp: TopicPartition) -> bool:
    status = daemon.status(tp)
    return status is not None and status.next_offset == Offset(400) and not status.segments


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(1000))
    return path


def test_rate_and_time_left_count_from_the_start_of_the_attempt(path: Path) -> None:
    now = [50.0]
    progress = SendProgress(lambda: now[0])
    assert progress.measure() is None, "nothing is sent while the segment is verified"
    with path.open("rb") as file:
        body = FileBody(file.fileno(), 800, lambda _: None, 100, progress)
        with body.open() as stream:
            assert progress.measure() == Sent(0, None, None)
            now[0] = 52.0
            stream.read(200)
            assert progress.measure() == Sent(200, 100, 6.0)
            stream.seek(100)  # a part is sent again
            stream.read(50)
            assert progress.measure() == Sent(150, 75, 650 / 75)
            now[0] = 60.0
            stream.read()
            assert progress.measure() == Sent(800, 80, 0.0)
        with body.open():  # the whole file is sent again
            assert progress.measure() == Sent(0, None, None)


def test_reading_for_a_checksum_does_not_count_as_sent(path: Path) -> None:
    now = [50.0]
    progress = SendProgress(lambda: now[0])
    with path.open("rb") as file:
        body = FileBody(file.fileno(), 800, lambda _: None, 100, progress)
        checksum_of_body(body, ChecksumAlgorithm.CRC32C)
        assert progress.measure() is None
        with body.open() as stream:
            stream.read(200)
        checksum_of_body(body, ChecksumAlgorithm.CRC32C)  # of the next attempt
        assert progress.measure() is None
        now[0] = 60.0
        with body.open() as stream:
            now[0] = 62.0
            stream.read(200)
        assert progress.measure() == Sent(200, 100, 6.0)


def test_checksums_of_an_encrypted_segment_do_not_count_as_sent(
    path: Path, store: FakeStorage
) -> None:
    progress = SendProgress(lambda: 50.0)
    before: list[Sent | None] = []
    store.race("put", lambda: before.append(progress.measure()), times=None)
    with path.open("rb") as file:
        body = FileBody(file.fileno(), 800, lambda _: None, 100, progress)
        encrypting(store).put_object("t-0/00000000000000000000.log", body)
    assert before == [None, None], "of the mark of the encryption, and of the segment"
    assert progress.measure() == Sent(800, None, None)

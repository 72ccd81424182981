"""Two sidecars that both believe they lead store the same segments at the same time."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from sidetier.segments.crc import crc64nvme
from sidetier.segments.errors import ArchiveConflictError
from sidetier.segments.offsets import LeaderEpoch
from sidetier.storage.bodies import BytesBody
from sidetier.storage.object_store import LARGEST_AT_ONCE
from sidetier.storage.port import RemoteStorage
from sidetier.uploader.sending.conditional_put import WRITER_EPOCH_KEY, FileToStore, store_file
from tests.harness.stores import Subject

SIDECARS = (1, 2)
"""By leader epoch."""


def log(segment: int, epoch: int, size: int) -> bytes:
    return f"{segment} of {epoch}".encode().ljust(size, b".")


def key(segment: int) -> str:
    return f"t-0/{segment:020d}.log"


def race(store: RemoteStorage, segments: int, size: int) -> dict[int, set[int]]:
    """Segments whose log each sidecar has stored."""
    start = Barrier(len(SIDECARS))

    def upload(epoch: int) -> set[int]:
        stored = set()
        for segment in range(segments):
            data = log(segment, epoch, size)
            file = FileToStore(
                key(segment), BytesBody(data), crc64nvme(data), {}, LeaderEpoch(epoch)
            )
            start.wait(timeout=60)
            try:
                store_file(store, file, may_exist=False)
            except ArchiveConflictError:
                continue
            stored.add(segment)
        return stored

    with ThreadPoolExecutor(len(SIDECARS)) as pool:
        return dict(zip(SIDECARS, pool.map(upload, SIDECARS), strict=True))


@pytest.mark.parametrize(("segments", "size"), [(20, 1000), (2, 9 * 1024**2)])
def test_one_log_of_each_segment_is_stored_and_stays(
    subject: Subject, segments: int, size: int
) -> None:
    store = subject.storage
    winners = race(store, segments, size)
    for segment in range(segments):
        won = [epoch for epoch in SIDECARS if segment in winners[epoch]]
        fences = subject.fences if size <= LARGEST_AT_ONCE else subject.fences_parts
        assert len(won) == 1 or not fences
        found = store.get_object(key(segment))
        assert found.data in [log(segment, epoch, size) for epoch in won]
        assert found.head.metadata[WRITER_EPOCH_KEY] in map(str, won)
    assert subject.left_over() == []

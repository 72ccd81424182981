"""Readers of a simulated archive whose segments lose their last batches on the store."""

from collections.abc import Callable, Iterator

from sidetier.archive.errors import DamagedArchiveError
from sidetier.mirror.copy.archive_source import ArchivedBatches, ArchiveGap, ArchiveSource
from sidetier.segments.headers import walk_headers
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.fake import Contents, FakeStorage
from sidetier.storage.port import RemoteStorage
from sidetier.wire.batches import split_batches
from tests.harness.cut_logs import cut_log
from tests.harness.daemons import LAYOUT
from tests.harness.made_archive import access_to

_MOST_CUTS = 4


def check_cut_segments(
    store: FakeStorage, tp: TopicPartition, opened: Callable[[RemoteStorage], RemoteStorage]
) -> int:
    """Cut some committed segments, one at a time, in a copy of the store: readers must notice it.

    Args:
        store: The store of all sidecars.
        tp: The partition.
        opened: Returns the store as readers use it.

    Returns:
        The number of cuts that a reader has reported as damage. Of the other cut segments, another
        segment has the lost records.
    """
    contents = Contents()
    contents.objects.update({key: store.get_object(key) for key in store.contents()})
    copied = opened(FakeStorage(contents=contents))
    whole = list(_read(copied, tp))
    view = ArchiveSource(access_to(copied, LAYOUT)).view(tp)
    logs = () if view is None else view.logs
    noticed = 0
    for log in logs[:: max(1, len(logs) // _MOST_CUTS)]:
        stored = contents.objects[log.key]
        if _batches(copied.get_object(log.key).data) > 1:
            cut_log(copied, log.key)
            noticed += _is_noticed(copied, tp, log.key, whole)
            contents.objects[log.key] = stored
    return noticed


def _batches(data: bytes) -> int:
    return sum(1 for _ in walk_headers(lambda at, size: data[at : at + size], len(data)))


def _is_noticed(store: RemoteStorage, tp: TopicPartition, key: str, whole: list[int]) -> bool:
    try:
        left = list(_read(store, tp))
    except DamagedArchiveError as error:
        if key not in str(error):
            raise
        return True
    lost = sorted(set(whole) - set(left))
    assert not lost, f"{key} was cut, and a reader has skipped {lost}"
    return False


def _read(store: RemoteStorage, tp: TopicPartition) -> Iterator[int]:
    """Yield the offsets of all batches that a mirror copies; step over gaps."""
    source = ArchiveSource(access_to(store, LAYOUT), abort_open=True)
    view = source.view(tp)
    at = Offset(0) if view is None else view.start
    while isinstance(read := source.read(tp, at), ArchivedBatches | ArchiveGap):
        if isinstance(read, ArchiveGap):
            at = read.end
            continue
        reached = at if read.data else read.end
        for _, header in split_batches(read.data):
            yield from range(max(header.base_offset, at), min(header.next_offset, read.end))
            reached = min(header.next_offset, read.end)
        at = Offset(reached)

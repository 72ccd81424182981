"""Stored segments that lose their last batches, as by a broken copy of a bucket, and what a reader
makes of them.
"""

from collections.abc import Iterator, Sequence

from sidetier.archive.errors import DamagedArchiveError
from sidetier.mirror.copy.archive_source import ArchivedBatches, ArchiveGap, ArchiveSource
from sidetier.segments.batches import split_batches
from sidetier.segments.headers import walk_headers
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.notes import CHECKSUM_KEY, PLACE_KEY, SIZE_KEY
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import PutOptions, RemoteStorage
from tests.harness.made_archive import access_to

EARLIER_NOTES = (SIZE_KEY, PLACE_KEY)
"""Metadata that earlier versions did not write."""


def cut_log(store: RemoteStorage, key: str, batches: int = 1) -> int:
    """Remove the last batches of a `.log`; its metadata stays as it was.

    Returns:
        The offset after the last batch that is left.
    """
    stored = store.get_object(key)
    data = stored.data
    headers = list(walk_headers(lambda at, size: data[at : at + size], len(data)))
    position = headers[-batches][0]
    store.put_object(
        key, BytesBody(data[:position]), PutOptions(metadata=dict(stored.head.metadata))
    )
    return int(headers[-batches - 1][1].next_offset)


def note_as_earlier(store: RemoteStorage, key: str, checksum: str | None = None) -> None:
    """Take the metadata from a `.log` that earlier versions did not write; add a checksum."""
    stored = store.get_object(key)
    notes = {k: v for k, v in stored.head.metadata.items() if k not in EARLIER_NOTES}
    if checksum is not None:
        notes[CHECKSUM_KEY] = checksum
    store.put_object(key, BytesBody(stored.data), PutOptions(metadata=notes))


def can_be_cut(store: RemoteStorage, key: str) -> bool:
    """Whether the `.log` has more than one batch."""
    data = store.get_object(key).data
    return sum(1 for _ in walk_headers(lambda at, size: data[at : at + size], len(data))) > 1


def committed_logs(store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition) -> list[str]:
    """Return the keys of the committed `.log`s, by ascending base offset."""
    view = ArchiveSource(access_to(store, layout)).view(tp)
    return [] if view is None else [log.key for log in view.logs]


def offsets_read(store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition) -> Iterator[int]:
    """Yield the offsets of all batches that a mirror reads; step over gaps."""
    source = ArchiveSource(access_to(store, layout), abort_open=True)
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


def is_cut_noticed(
    store: RemoteStorage,
    layout: ArchiveLayout,
    tp: TopicPartition,
    key: str,
    whole: Sequence[int],
) -> bool:
    """Read an archive after one of its segments was cut.

    Args:
        store: The store.
        layout: The keys on it.
        tp: The partition.
        key: The `.log` that was cut.
        whole: The offsets that a reader found before.

    Returns:
        Whether the reader has reported the damage. Otherwise another segment has the lost records.

    Raises:
        AssertionError: The reader has skipped records.
    """
    try:
        left = list(offsets_read(store, layout, tp))
    except DamagedArchiveError as error:
        if key not in str(error):
            raise
        return True
    lost = sorted(set(whole) - set(left))
    assert not lost, f"{key} was cut, and a reader has skipped {lost}"
    return False

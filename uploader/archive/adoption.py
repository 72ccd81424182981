"""Segments that are stored above the watermark, when the broker has deleted its own copy.

A kill between the `.log` and the watermark, followed by a deletion, leaves them: they are no gap.
They were verified before they were sent, as every object here.
"""

from collections.abc import Iterator, Sequence

from sidetier.segments.keys import ArchiveLayout, parse_object_key
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.segments.watermark import Watermark
from sidetier.storage.port import ObjectSummary, RemoteStorage
from sidetier.uploader.archive.stored import derive_next_offset
from sidetier.uploader.pinning.pins import PINNED_KINDS
from sidetier.uploader.plan import Gap
from sidetier.uploader.sending.fenced import WRITER_EPOCH_KEY
from sidetier.uploader.sending.upload import StoredSegment


def stored_within(
    store: RemoteStorage,
    layout: ArchiveLayout,
    tp: TopicPartition,
    gap: Gap,
    watermark: Watermark | None,
) -> Iterator[StoredSegment]:
    """The segments above the watermark that hold offsets of the gap, by rising base, whose three
    objects are there and were written by one leader: log and indexes are known to belong together.
    """
    prefix = layout.partition_prefix(tp)
    start = layout.object_key(tp, watermark.base_offset, FileKind.TIMEINDEX) if watermark else ""
    rows: dict[BaseOffset, dict[FileKind, ObjectSummary]] = {}
    for row in store.list_objects(prefix, start_after=start):
        parsed = parse_object_key(row.key, prefix)
        if parsed is None or parsed[0] >= gap.end:
            break
        rows.setdefault(parsed[0], {})[parsed[1]] = row
    for base, files in sorted(rows.items()):
        if all(kind in files for kind in PINNED_KINDS) and _of_one_writer(store, files):
            log = files[FileKind.LOG]
            following = derive_next_offset(store, layout, tp, base)
            if following > gap.start:
                yield StoredSegment(base, following, log.modified_ms, log.size, 0)


def contiguous(stored: Sequence[StoredSegment], start: Offset) -> list[StoredSegment]:
    """Those that follow on `start` without a hole; none when the first begins above it."""
    chosen: list[StoredSegment] = []
    for segment in stored:
        if segment.base_offset > start:
            break
        if segment.next_offset <= start:
            continue  # an overlap that adds nothing
        chosen.append(segment)
        start = segment.next_offset
    return chosen


def _of_one_writer(store: RemoteStorage, files: dict[FileKind, ObjectSummary]) -> bool:
    heads = [store.head_object(files[kind].key) for kind in PINNED_KINDS]
    return len({head.metadata.get(WRITER_EPOCH_KEY) for head in heads}) == 1

"""Scan all segments that Pinterest's uploader has stored of a partition."""

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

from sidetier.archive.objects.segment import Tail, files_by_base, read_tail
from sidetier.segments.errors import DamagedSegmentError, UnsupportedFormatError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.storage.port import ObjectSummary, RemoteStorage
from sidetier.uploader.pinning.pins import PINNED_KINDS

T = TypeVar("T")
R = TypeVar("R")

HELPERS: Final = 8
_FEW: Final = 16
_helping: Final = threading.Lock()
"""Held by the one scan that has helper threads. Others read their segments one by one."""


@dataclass(frozen=True, slots=True)
class PinterestSegment:
    """A stored `.log` that ends with a whole record batch, and the files beside it."""

    base_offset: BaseOffset
    files: dict[FileKind, ObjectSummary]
    tail: Tail

    @property
    def log(self) -> ObjectSummary:
        """The `.log` in the listing."""
        return self.files[FileKind.LOG]

    @property
    def next_offset(self) -> Offset:
        """Offset after the last record."""
        return self.tail.batch.next_offset

    @property
    def missing(self) -> tuple[FileKind, ...]:
        """The indexes that are not stored."""
        return tuple(kind for kind in PINNED_KINDS if kind not in self.files)


def scan(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition
) -> tuple[list[PinterestSegment], list[str]]:
    """List the segments of a partition, and read the end of each.

    Makes one listing, and as a rule two requests for each segment. Writes nothing.

    Returns:
        The whole segments, by rising base offset, and the keys of damaged `.log` objects.

    Raises:
        StorageError: as the port says.
    """
    prefix = layout.partition_prefix(tp)
    stored = files_by_base(store.list_objects(prefix), prefix)
    rows = [(base, files) for base, files in stored if FileKind.LOG in files]
    looked = at_once(lambda row: _look(store, *row), rows)
    whole = [segment for segment in looked if segment is not None]
    damaged = [
        files[FileKind.LOG].key
        for (_, files), segment in zip(rows, looked, strict=True)
        if segment is None
    ]
    return whole, damaged


def _look(
    store: RemoteStorage, base: BaseOffset, files: dict[FileKind, ObjectSummary]
) -> PinterestSegment | None:
    try:
        tail = read_tail(store, base, files[FileKind.LOG], files.get(FileKind.INDEX))
    except (DamagedSegmentError, UnsupportedFormatError):
        return None
    return PinterestSegment(base, files, tail)


def at_once(work: Callable[[T], R], items: Sequence[T]) -> Iterable[R]:
    """Call `work` on every item, and return the results in order.

    With 16 items or more, and while no other call does so, it uses `HELPERS` threads.
    """
    if len(items) < _FEW or not _helping.acquire(blocking=False):
        return [work(item) for item in items]
    try:
        with ThreadPoolExecutor(HELPERS, "archive-scan") as helpers:
            return list(helpers.map(work, items))
    finally:
        _helping.release()

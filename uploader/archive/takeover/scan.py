"""The one look at all that Pinterest's uploader has stored of a partition."""

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
"""One scan at a time has helpers; others go through their segments one by one."""


@dataclass(frozen=True, slots=True)
class PinterestSegment:
    """A stored `.log` with whole record batches at its end, and what lies beside it."""

    base_offset: BaseOffset
    files: dict[FileKind, ObjectSummary]
    tail: Tail

    @property
    def log(self) -> ObjectSummary:
        """The row of the `.log`."""
        return self.files[FileKind.LOG]

    @property
    def next_offset(self) -> Offset:
        """One past its last offset."""
        return self.tail.batch.next_offset

    @property
    def missing(self) -> tuple[FileKind, ...]:
        """The indexes that are not there."""
        return tuple(kind for kind in PINNED_KINDS if kind not in self.files)


def scan(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition
) -> tuple[list[PinterestSegment], list[str]]:
    """What is stored, by rising base, and the keys of `.log` files that are none.

    A listing, and two requests for each segment as a rule. A kill in between leaves nothing.

    Raises:
        StorageError: as the port says.
    """
    prefix = layout.partition_prefix(tp)
    found = files_by_base(store.list_objects(prefix), prefix)
    rows = [(base, files) for base, files in found if FileKind.LOG in files]
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
    """`work` on every item, in order; with helpers where there are many and nobody else has any."""
    if len(items) < _FEW or not _helping.acquire(blocking=False):
        return [work(item) for item in items]
    try:
        with ThreadPoolExecutor(HELPERS, "archive-scan") as helpers:
            return list(helpers.map(work, items))
    finally:
        _helping.release()

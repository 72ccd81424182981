"""Scan all segments that Pinterest's uploader has stored of a partition."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

from sidetier.archive.objects.segment import Tail, files_by_base, read_tail
from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.errors import DamagedSegmentError, UnsupportedFormatError
from sidetier.segments.headers import HEADER_BYTES, BatchHeader, parse_batch_header
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.storage.port import ObjectSummary, RemoteStorage
from sidetier.uploader.gates.divergence import log_end_offset
from sidetier.uploader.pinning.pins import PINNED_KINDS


@dataclass(frozen=True, slots=True)
class LocalLog:
    """This broker's log of a partition.

    Attributes:
        directory: The partition's directory.
        start: First offset of the log; None where there is none.
        active: Base offset of the active segment; None where it is not known.
        epoch_history: Leader epochs of the log.
        compacted: Whether the bytes of a segment may change under the same name.
        doubt: Why stored segments that contradict the log must not be quarantined: the log need
            not be the leader's, or the configuration forbids it. None where they may be.
    """

    directory: str
    start: Offset | None
    active: BaseOffset | None
    epoch_history: EpochHistory
    compacted: bool = False
    doubt: str | None = None

    def holds(self, base: BaseOffset, tail: Tail) -> bool | None:
        """Return whether the last batch of a stored segment is in this log; None where this log
        cannot prove it, such as where that part of the log was deleted.

        Compares the batch's header, whose checksum covers the records, and the batch's position in
        the file, which depends on every batch before it. If both are equal, so is the segment. In a
        compacted log, or where the segment's file is gone, compares the leader epoch instead, which
        can only prove that the log does not hold the batch.
        """
        if self.start is None or tail.batch.next_offset <= self.start:
            return None
        if not self.compacted:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                return self._header_at(base, tail.position) == tail.batch
        run = (tail.batch.leader_epoch, tail.batch.base_offset)
        problem = self.epoch_history.violation([run], tail.batch.next_offset)
        return None if problem is None else False

    def end(self) -> Offset | None:
        """Return the log end offset, exclusive; None without an active segment.

        Reads the batch headers of the active segment. Raises OSError if its file is gone.
        """
        return None if self.active is None else log_end_offset(self.directory, self.active)

    def _header_at(self, base: BaseOffset, position: int) -> BatchHeader | None:
        try:
            return parse_batch_header(self._read(base, position))
        except (DamagedSegmentError, UnsupportedFormatError):
            return None

    def _read(self, base: BaseOffset, position: int) -> bytes:
        """Read a header from the live `.log`. A `.deleted` file may be left by a truncation."""
        path = os.path.join(self.directory, segment_file_name(base, FileKind.LOG))
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, HEADER_BYTES, position)
        finally:
            os.close(descriptor)


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

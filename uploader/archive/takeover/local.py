"""This broker's log, for the comparison with Pinterest's archive."""

import contextlib
import os
from dataclasses import dataclass

from sidetier.archive.objects.segment import Tail
from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.errors import DamagedSegmentError, UnsupportedFormatError
from sidetier.segments.headers import HEADER_BYTES, BatchHeader, parse_batch_header
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset, Offset
from sidetier.uploader.gates.divergence import log_end_offset


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

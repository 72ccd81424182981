"""This broker's own log, to compare Pinterest's archive with."""

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
    """Where the log lies, begins (None: there is none), and goes on in its active segment.

    In a `compacted` one a segment's bytes change under the same name. `doubt` is why nothing may be
    set aside that contradicts it: this need not be the leader's log, or it is not wanted.
    """

    directory: str
    start: Offset | None
    active: BaseOffset | None
    epoch_history: EpochHistory
    compacted: bool = False
    doubt: str | None = None

    def holds(self, base: BaseOffset, tail: Tail) -> bool | None:
        """Whether the last batch of a stored segment is in this log; None where it cannot be told.

        The batch's checksum covers all that its producer sent, and its place in the file all that
        came before it: where both are the same, so is the segment.
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
        """One past the last record; None where it cannot be told. Reads the active segment's
        headers; raises OSError when that is gone.
        """
        return None if self.active is None else log_end_offset(self.directory, self.active)

    def _header_at(self, base: BaseOffset, position: int) -> BatchHeader | None:
        try:
            return parse_batch_header(self._read(base, position))
        except (DamagedSegmentError, UnsupportedFormatError):
            return None

    def _read(self, base: BaseOffset, position: int) -> bytes:
        """Of the live file alone: a `.deleted` one may be what truncation has left behind."""
        path = os.path.join(self.directory, segment_file_name(base, FileKind.LOG))
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, HEADER_BYTES, position)
        finally:
            os.close(descriptor)

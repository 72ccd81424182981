"""The readable end of an archive that Pinterest's uploader fills.

Its `offset.wm` proves nothing: it has been seen to go back, to be above a gap, and to name a
segment that is not stored. `_metadata`, which Pinterest's consumer uses, loses entries. So the
reader uses neither, and reads the stored segments.

The readable end is the end of the segment that `offset.wm` names, or of the nearest one below it,
extended by the segments that follow without a gap. Ends are read from the segments' bytes, so an
`offset.wm` that lags hides nothing. Nothing is read behind the first gap above the named segment:
uploads run in parallel, and the upload that fills the gap may be in progress. A gap below the named
segment is reported.

Nothing shows whether the stored records were ever committed: Pinterest's uploader does not check.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Final

from sidetier.archive.objects.segment import StoredLog, Version, read_tail
from sidetier.segments.errors import DamagedSegmentError, UnsupportedFormatError
from sidetier.segments.headers import BatchHeader, walk_headers
from sidetier.segments.offsets import BaseOffset, Offset
from sidetier.storage.port import RemoteStorage

MAX_TAILS: Final = 64
"""Maximum number of segments above `offset.wm` whose ends one snapshot reads."""
_PIECE: Final = 1 << 20


def readable_end(
    logs: Sequence[StoredLog], named: BaseOffset, end_of: Callable[[StoredLog], Offset]
) -> Offset:
    """Return the readable end of the archive, exclusive, as the module describes it.

    Args:
        logs: The stored segments, by ascending base offset.
        named: Base offset in `offset.wm`.
        end_of: Returns a segment's next offset, and may make requests. Called for at most
            `MAX_TAILS` + 1 segments.
    """
    below = [log for log in logs if log.base_offset <= named]
    end = end_of(below[-1]) if below else Offset(0)
    above = logs[len(below) :]
    if not below and above:
        end = Offset(above[0].base_offset)
    for log in above[:MAX_TAILS]:
        if log.base_offset > end:
            break
        end = max(end, end_of(log))
    return end


@dataclass(slots=True)
class Ends:
    """Ends of segments. Each version of each segment is read once. Not thread-safe."""

    store: RemoteStorage
    known: dict[Version, Offset] = field(default_factory=dict)

    def __call__(self, log: StoredLog) -> Offset:
        """Return the offset after the last one of a segment. Usually two ranged requests.

        If the segment is cut short or damaged, return one past the first offset that cannot be
        read. A reader that reads up to there meets the damage and reports it.
        """
        if log.version not in self.known:
            self.known[log.version] = self._look(log)
        return self.known[log.version]

    def _look(self, log: StoredLog) -> Offset:
        if log.index is not None and log.index.size > 0:
            with contextlib.suppress(DamagedSegmentError, UnsupportedFormatError):
                tail = read_tail(self.store, log.base_offset, log.row, log.index)
                return tail.batch.next_offset
        return _walked_end(self.store, log)


def _walked_end(store: RemoteStorage, log: StoredLog) -> Offset:
    """Find the end without an index: read the whole object once, in one request."""
    last: BatchHeader | None = None
    is_whole = False
    with (
        store.get_object_input_stream(log.key) as stream,
        contextlib.suppress(DamagedSegmentError, UnsupportedFormatError),
    ):
        for _, header in walk_headers(_Forward(stream).read, log.size):
            last = header
        is_whole = True
    lowest = Offset(log.base_offset)
    end = lowest if last is None else max(last.next_offset, lowest)
    return end if is_whole else Offset(end + 1)


class _Forward:
    """Positional reads on a stream. Positions must not decrease."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._window, self._start = b"", 0

    def read(self, position: int, length: int) -> bytes:
        """Return up to `length` bytes. Bytes before `position` are discarded."""
        self._skip(position)
        missing = length - len(self._window)
        if missing > 0:
            self._window += self._stream.read(max(missing, _PIECE))
        return self._window[:length]

    def _skip(self, position: int) -> None:
        ahead = position - self._start
        while ahead > len(self._window):
            ahead -= len(self._window)
            self._window = self._stream.read(_PIECE)
            if not self._window:
                ahead = 0
        self._window, self._start = self._window[ahead:], position

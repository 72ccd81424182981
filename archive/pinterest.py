"""How far an archive of Pinterest's uploader can be read.

Its `offset.wm` proves nothing: it was seen to go back, to lie behind a gap, and to name a segment
that is not there. What its consumer goes by, `_metadata`, loses entries. So neither is believed:
what is stored is read.

The end is that of the segment which the watermark names, or of the nearest one below, and then of
those that follow on it without a gap, told from their bytes: a watermark that lags hides nothing.
Behind the first gap above the named segment nothing is read: uploads run side by side, and what
fills it may be under way. A gap below is told as such.

That what is stored was ever committed nobody can tell: Pinterest's uploader does not ask.
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

MOST_TAILS: Final = 64
"""How many segments above the watermark one look asks for their ends."""
_PIECE: Final = 1 << 20


def readable_end(
    logs: Sequence[StoredLog], named: BaseOffset, end_of: Callable[[StoredLog], Offset]
) -> Offset:
    """See above; `end_of` may make requests, and is asked for `MOST_TAILS` segments and one."""
    below = [log for log in logs if log.base_offset <= named]
    end = end_of(below[-1]) if below else Offset(0)
    above = logs[len(below) :]
    if not below and above:
        end = Offset(above[0].base_offset)
    for log in above[:MOST_TAILS]:
        if log.base_offset > end:
            break
        end = max(end, end_of(log))
    return end


@dataclass(slots=True)
class Ends:
    """Where segments end; asked once of each version of each. Not thread-safe."""

    store: RemoteStorage
    known: dict[Version, Offset] = field(default_factory=dict)

    def __call__(self, log: StoredLog) -> Offset:
        """One past the last offset: two ranged requests as a rule.

        Where the segment is cut short or damaged: one past the first offset that cannot be read,
        so that whoever reads up to here meets the damage, and tells.
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
    """The end without an index: reads the whole object once, in one request."""
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
    """A stream as something that can be read at a position, as long as positions do not fall."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._window, self._start = b"", 0

    def read(self, position: int, length: int) -> bytes:
        """Up to so many bytes; what lies before the position is forgotten."""
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

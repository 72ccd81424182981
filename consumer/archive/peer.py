"""How far an archive of Pinterest's uploader can be read.

Its `offset.wm` proves nothing: it was seen to go back, to lie behind a hole, and to name a segment
that is not there. What its consumer goes by, `_metadata`, loses entries. So neither is believed:
what is stored is read.

The end is that of the segment which the watermark names, or of the nearest one below, and then of
those that follow on it without a hole, told from their bytes: a watermark that lags hides nothing.
Behind the first hole above the named segment nothing is read: uploads run side by side, and what
fills it may be under way. A hole below is told as such.

That what is stored was ever committed nobody can tell: the peer does not ask.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from sidetier.consumer.archive.stored_log import StoredLog
from sidetier.segments.errors import DamagedSegmentError, UnsupportedFormatError
from sidetier.segments.headers import BatchHeader, walk_headers
from sidetier.segments.offsets import BaseOffset, Offset
from sidetier.storage.port import RemoteStorage
from sidetier.storage.stored_tails import read_tail

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
    known: dict[tuple[str, str, int], Offset] = field(default_factory=dict)

    def __call__(self, log: StoredLog) -> Offset:
        """One past the last offset: two ranged requests as a rule.

        Where the segment is cut short or damaged: one past the first offset that cannot be read,
        so that whoever reads up to here meets the damage, and tells.
        """
        if log.version not in self.known:
            self.known[log.version] = self._look(log)
        return self.known[log.version]

    def _look(self, log: StoredLog) -> Offset:
        try:
            tail = read_tail(self.store, log.base_offset, log.row, log.index)
        except (DamagedSegmentError, UnsupportedFormatError):
            return Offset(sound_end(self.store, log) + 1)
        return tail.batch.next_offset


def sound_end(store: RemoteStorage, log: StoredLog) -> Offset:
    """The next offset of the last whole batch of a damaged segment; reads all of it once."""
    last: BatchHeader | None = None
    window, window_start = b"", 0

    def read(position: int, length: int) -> bytes:
        nonlocal window, window_start
        if not window_start <= position <= position + length <= window_start + len(window):
            with store.get_object_input_stream(log.key, position, position + _PIECE) as stream:
                window, window_start = stream.read(), position
        return window[position - window_start : position - window_start + length]

    try:
        for _, header in walk_headers(read, log.size):
            last = header
    except (DamagedSegmentError, UnsupportedFormatError):
        pass
    return (
        Offset(log.base_offset) if last is None else max(last.next_offset, Offset(log.base_offset))
    )

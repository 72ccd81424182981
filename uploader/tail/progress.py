"""How far the tail of a partition is stored, while several packs are in flight. Pure.

A range counts only once every range before it is stored: a reader stops at the first gap. So when
one fails, the later ones in flight count no more, and all is read again from the stored end. Their
packs may be stored nevertheless; readers then find the same bytes twice.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from sidetier.segments.offsets import Offset, OffsetRange
from sidetier.segments.producer_snapshot import OpenTransaction


class Reached(NamedTuple):
    """An end of stored or sent records.

    Attributes:
        end: The offset, exclusive.
        open: The transactions that are open there; None if they are not known.
        newest_ms: Largest timestamp below it, in ms since 1970; -1 if none is known.
    """

    end: Offset
    open: tuple[OpenTransaction, ...] | None
    newest_ms: int = -1


@dataclass(slots=True, eq=False)
class SentRange:
    """A range that is in flight."""

    start: Offset
    reached: Reached
    done: bool = False


@dataclass(slots=True)
class TailProgress:
    """What is stored of the tail of one partition in one leader epoch.

    Attributes:
        stored: Up to where it is stored, except for gaps of the log.
        unjoined: Readers join nothing that is stored above its start before the archive has reached
            its end: the records between were deleted from the log, or the archive has diverged at
            its start. None if readers join all.
    """

    stored: Reached
    unjoined: OffsetRange | None = None
    _sent: deque[SentRange] = field(default_factory=deque)

    @property
    def safe_up_to(self) -> Offset:
        """Up to where readers get the records from archive and tail."""
        end = self.stored.end
        return end if self.unjoined is None else min(end, self.unjoined.start)

    @property
    def next(self) -> Reached:
        """From where to read: the end of what was sent."""
        return self._sent[-1].reached if self._sent else self.stored

    def send(self, sent: SentRange) -> None:
        """Note that the next range is in flight."""
        self._sent.append(sent)

    def succeeded(self, sent: SentRange) -> None:
        """Note that a range is stored."""
        sent.done = True
        while self._sent and self._sent[0].done:
            first = self._sent.popleft()
            if first.start > self.stored.end:
                start, end = self.unjoined or (self.stored.end, first.start)
                self.unjoined = OffsetRange(start, max(end, first.start))
            self.stored = first.reached

    def failed(self, sent: SentRange) -> None:
        """Note that a range, or the answer about it, is lost: it and all later ones are sent
        again.
        """
        if any(each is sent for each in self._sent):
            while self._sent.pop() is not sent:
                pass

    def archived(self, end: Offset) -> bool:
        """Note the archive end offset. Return whether the tail now begins there."""
        if self.unjoined is not None:
            if end < self.unjoined.end:
                return False
            self.unjoined = None
        if end <= self.stored.end or self._sent:
            return False
        self.stored = Reached(end, None, self.stored.newest_ms)
        return True

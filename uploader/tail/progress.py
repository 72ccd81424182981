"""How far the tail of a partition is stored, while several packs are on their way. Pure.

A range counts only once every range before it is stored: a reader stops at the first gap. So when
one fails, the later ones on their way count no more, and all is read again from the stored end.
Their packs may be stored nevertheless; readers then find the same bytes twice.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from sidetier.segments.offsets import Offset
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
    """A range that is on its way."""

    reached: Reached
    done: bool = False


@dataclass(slots=True)
class TailProgress:
    """What is stored of the tail of one partition in one leader epoch.

    Attributes:
        stored: Up to where it is stored without a gap.
    """

    stored: Reached
    _sent: deque[SentRange] = field(default_factory=deque)

    @property
    def next(self) -> Reached:
        """From where to read: the end of what was sent."""
        return self._sent[-1].reached if self._sent else self.stored

    @property
    def is_sending(self) -> bool:
        """Whether a range is on its way."""
        return bool(self._sent)

    def send(self, reached: Reached) -> SentRange:
        """Note that the range from `next` up to `reached` is on its way."""
        sent = SentRange(reached)
        self._sent.append(sent)
        return sent

    def succeeded(self, sent: SentRange) -> bool:
        """Note that a range is stored. Return whether the stored end has moved."""
        sent.done = True
        before = self.stored
        while self._sent and self._sent[0].done:
            self.stored = self._sent.popleft().reached
        return self.stored is not before

    def failed(self, sent: SentRange) -> None:
        """Note that a range, or the answer about it, is lost: it and all later ones are sent
        again.
        """
        if any(each is sent for each in self._sent):
            while self._sent.pop() is not sent:
                pass

    def archived(self, end: Offset) -> None:
        """Note the archive end offset. The tail begins there."""
        if end > self.stored.end and not self._sent:
            self.stored = Reached(end, None, self.stored.newest_ms)

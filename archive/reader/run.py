"""A run: what one opening of a source leads to. `pipeline` describes its place on the path."""

from dataclasses import dataclass
from enum import Enum, auto
from itertools import chain
from typing import Final

from sidetier.archive.objects.log_check import cut_at
from sidetier.archive.reader.decoder import Decoder, FeedResult
from sidetier.archive.reader.settings import ReaderSettings
from sidetier.archive.reader.source import AtEnd, Halted, Opened, Opening, Stuck, Target
from sidetier.archive.reader.transactions import KnownTransactions
from sidetier.archive.segment_bytes import MemoryBudget, Range, ReadAhead, ReadBytes
from sidetier.segments.errors import (
    BatchTooLargeError,
    ObjectNotFoundError,
    PreconditionFailedError,
    SidetierError,
)
from sidetier.segments.offsets import Offset


class Outcome(Enum):
    """An ending of a run that needs no further facts."""

    DECIDED = auto()
    """The transaction that blocked reading is decided."""
    DONE = auto()
    """Every wanted record has arrived, and is decided."""


Ending = Outcome | AtEnd | Halted | Stuck | Target | SidetierError
"""Why a run ended. With a `Stuck` or a `Target`, the source must be asked again there."""


_OUTCOMES: Final = {FeedResult.DECIDED: Outcome.DECIDED, FeedResult.DONE: Outcome.DONE}
_GONE: Final = (ObjectNotFoundError, PreconditionFailedError)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What all runs of a pipeline read.

    Attributes:
        settings: The reader's settings.
        until: End of the wanted offsets, exclusive; None if there is no end.
        transactions: The known transactions; None to read uncommitted.
    """

    settings: ReaderSettings
    until: Offset | None
    transactions: KnownTransactions | None


class Run:
    """Reads from one opening on, up to where the source must be asked again.

    Args:
        start: What to open.
        wanted: What to read.
        waiting_for: First offset of an open transaction. Only headers are read until it is decided.
        found: Bytes that were read already, if reading begins in them.

    Attributes:
        is_asked: The opening was requested.
        ending: Why the run has ended; None while it goes on. Decoded records may be left.
        decoder_bytes: Bytes that the decoder refers to.
    """

    def __init__(
        self,
        start: Target | Stuck,
        wanted: Wanted,
        waiting_for: Offset | None = None,
        found: ReadBytes | None = None,
    ) -> None:
        self.start: Final = start
        self.waiting_for: Final = waiting_for
        self.is_asked = False
        self.ending: Ending | None = None
        self.ahead: ReadAhead | None = None
        self.decoder: Decoder | None = None
        self.decoder_bytes = 0
        self._wanted = wanted
        self._found = found
        self._as_of: float | None = None

    @property
    def held_bytes(self) -> int:
        """Bytes that the run holds, without those that are being fetched."""
        if self.ahead is None:
            return 0 if self._found is None else self._found.size
        return self.decoder_bytes + self.ahead.arrived_bytes

    @property
    def requests(self) -> int:
        """Number of its requests under way."""
        if self.ahead is None:
            return int(self.is_asked and self.ending is None)
        return self.ahead.under_way

    @property
    def blocked_at(self) -> Offset | None:
        """First offset of the open transaction that blocks reading; None if there is none."""
        return self.waiting_for if self.decoder is None else self.decoder.blocked_at

    @property
    def has_batches(self) -> bool:
        """Whether records can be decoded now."""
        return self.decoder is not None and self.decoder.has_batches

    @property
    def head(self) -> Range | None:
        """The range to scan next, if it has come."""
        return None if self.ahead is None or self.ending is not None else self.ahead.head

    def opened(self, opening: Opening | SidetierError) -> None:
        """Take the answer of the source."""
        if not isinstance(opening, Opened):
            self.ending = opening
            return
        if self._is_decided_by(opening):
            self.ending = Outcome.DECIDED
            return
        wanted, settings = self._wanted, self._wanted.settings
        parts = opening.parts
        first = next(parts)
        decoder = Decoder(
            first,
            opening.offset,
            settings,
            transactions=wanted.transactions,
            bound=wanted.until,
            waiting_for=self.waiting_for,
            stuck=self.start if isinstance(self.start, Stuck) else None,
        )
        if decoder.is_done:
            self.ending = Outcome.DONE
            return
        sizes = settings.first_range, settings.largest_range
        self.ahead = ReadAhead(chain((first,), parts), sizes, self._found)
        self.decoder, self._found, self._as_of = decoder, None, opening.as_of

    def next_range(
        self, budget: MemoryBudget, max_requests: int, *, may_exceed: bool
    ) -> Range | None:
        """Return the next range to request; None if there is none now.

        Args:
            budget: The budget of all partitions.
            max_requests: Maximum number of concurrent requests.
            may_exceed: The run may exceed the budget by the smallest useful range.
        """
        ahead, decoder = self.ahead, self.decoder
        if ahead is None or decoder is None or self.ending is not None:
            return None
        if ahead.under_way >= max_requests:
            return None
        missing = 0 if decoder.has_batches else decoder.missing
        return ahead.next_range(budget, self.decoder_bytes, missing, may_exceed=may_exceed)

    def scan(self, fetched: Range) -> FeedResult | None:
        """Pass a range to the decoder. Return what it needs next; None if the range was not
        fetched. No lock is needed.
        """
        error, log, decoder = fetched.error, fetched.part.log, self.decoder
        if decoder is None or (error is not None and not isinstance(error, _GONE)):
            return None
        if error is not None:
            # The object was deleted or replaced: as if the segment ended here.
            return decoder.stop_here(error)
        data = fetched.data or b""
        # The range was requested within the listed size, so the object is shorter than its row.
        if len(data) < fetched.size:
            return decoder.stop_here(cut_at(log.key, fetched.start + len(data), log.size))
        return decoder.feed(data, is_last=fetched.is_last)

    def scanned(self, scanned: Range, result: FeedResult | None, share: int) -> None:
        """Take the result of `scan`."""
        ahead, decoder = self.ahead, self.decoder
        if ahead is None or decoder is None:
            return
        ahead.ranges.popleft()
        # The fetch thread refers to its last range until it gets the next one, which may take long.
        # The pool could not lend this memory again meanwhile.
        scanned.data = None
        if result is None:
            self.ending = scanned.error
        elif result is FeedResult.STUCK:
            self.ending = decoder.stuck
        else:
            self.ending = _OUTCOMES.get(result)
        if result is FeedResult.NEXT_SEGMENT:
            self._next_segment(scanned, ahead, decoder)
        if self.ending is None:
            self._limit_held_batches(decoder, share)
        if self.ending is not None:
            ahead.ranges.clear()
        self.decoder_bytes = decoder.held_bytes

    def decoded(self, decoder: Decoder, error: BatchTooLargeError | None) -> None:
        """Note what the decoder has met in its batches."""
        ending = error or decoder.stuck
        if ending is not None and ending is not self.ending:
            # Reading got further than the damaged batch, but nothing behind it is returned.
            self.ending = ending
            if self.ahead is not None:
                self.ahead.ranges.clear()
        if error is not None:
            self.decoder = None  # it would fail again
        self.decoder_bytes = 0 if error is not None else decoder.held_bytes

    def look_ahead(self) -> None:
        """Drop the batches that are held for an open transaction, and look for its marker only."""
        if self.decoder is not None and self.decoder.blocked_at is not None:
            self.decoder.look_ahead(self.decoder.blocked_at)
            self.decoder_bytes = self.decoder.held_bytes

    def may_yield(self, budget: MemoryBudget) -> bool:
        """Whether to drop batches held for a transaction, because no memory is left to read on."""
        ahead, decoder = self.ahead, self.decoder
        if ahead is None or decoder is None or self.ending is not None or ahead.ranges:
            return False
        if decoder.looks_ahead or decoder.has_batches or budget.is_ample:
            return False
        return decoder.blocked_at is not None

    def _next_segment(self, scanned: Range, ahead: ReadAhead, decoder: Decoder) -> None:
        part = ahead.leave(scanned.part)
        if part is None:
            self.ending = AtEnd(decoder.offset, self._as_of)
        elif decoder.waiting_for is not None:
            # The transaction index and the producer snapshot may be enough.
            self.ending = Target(decoder.offset, decoder.waiting_for)
        else:
            decoder.enter(part)

    def _limit_held_batches(self, decoder: Decoder, share: int) -> None:
        """Keep batches held for an open transaction from filling the partition's share."""
        blocked, transactions = decoder.blocked_at, self._wanted.transactions
        if blocked is None or decoder.looks_ahead or transactions is None:
            return
        if decoder.offset < transactions.known_below:
            # Transactions below `known_below` were read before; the marker is at or above it.
            decoder.look_ahead(blocked)
            self.ending = Target(transactions.known_below, blocked)
        elif decoder.held_bytes > share // 2:
            decoder.look_ahead(blocked)

    def _is_decided_by(self, opening: Opened) -> bool:
        """Whether the transactions of the skipped segments decide the one that is waited for."""
        waiting_for, known = self.waiting_for, self._wanted.transactions
        if waiting_for is None or known is None:
            return False
        for learnt in opening.learnt:
            known.learn_from_indexes(learnt, waiting_for)
        return bool(opening.learnt) and known.last_stable_offset > waiting_for

"""Which batches are handed out now, which later, and which never: pure.

Reading uncommitted that is all but control batches, at once. Reading committed nothing at or above
the first offset of a transaction that is not decided is handed out; what has come is held until its
marker comes. Where that would take more memory than there is, the held batches are dropped, and the
headers behind them alone are looked at until the transaction is decided; then reading goes on where
it was, and knows.

A marker that lies in a gap is not seen: then the producer's next one decides.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from sidetier.archive.objects.segment import StoredLog
from sidetier.archive.reading.assembly import Scanned
from sidetier.archive.transaction_indexes import SegmentTransactions
from sidetier.segments.arrow import Fate, Flags, HeaderTable, TransactionFilter, read_markers
from sidetier.segments.errors import DamagedSegmentError, UnsupportedFormatError
from sidetier.segments.offsets import Offset


@dataclass(frozen=True, slots=True)
class Portion:
    """Batches of one buffer, of which the records from `first` up to, not including, `until` are
    wanted.
    """

    log: StoredLog
    scanned: Scanned
    first: Offset
    until: Offset

    @property
    def headers(self) -> HeaderTable:
        """Those of the batches."""
        return self.scanned.headers

    @property
    def next_offset(self) -> Offset:
        """Where reading goes on behind it."""
        following = self.headers.next_offset
        return self.until if following is None else min(following, self.until)

    def below(self, bound: Offset) -> "Portion":
        """Those that begin below an offset, and of the last one only the records below it."""
        count = int(np.searchsorted(self.headers.rows["base_offset"], bound, side="left"))
        return replace(self.rows(slice(0, count)), until=min(self.until, bound))

    def rows(self, chosen: slice) -> "Portion":
        """Some of the batches."""
        scanned = self.scanned
        return replace(
            self, scanned=Scanned(scanned.data, scanned.headers.where(chosen), scanned.position)
        )


@dataclass(frozen=True, slots=True)
class Cleared:
    """Batches that may be handed out, all of them decided; `keep` are those that are shown."""

    portion: Portion
    keep: Flags


@dataclass(frozen=True, slots=True)
class DamagedRow:
    """Which of some batches cannot be read, and why."""

    row: int
    error: DamagedSegmentError | UnsupportedFormatError


class Transactions:
    """What is known of a partition's transactions since it was assigned or sought.

    The first batch may begin below the offset that is wanted; it counts.
    """

    def __init__(self) -> None:
        self._filter: TransactionFilter | None = None

    @property
    def known_below(self) -> Offset:
        """The offset up to which they are known."""
        return self._filter.known_below if self._filter is not None else Offset(0)

    @property
    def stable(self) -> Offset:
        """Every batch below is decided: the first offset of the oldest open transaction."""
        return self._filter.last_stable_offset if self._filter is not None else Offset(0)

    def learn(self, portion: Portion) -> DamagedRow | None:
        """Take in the next batches; with a marker that cannot be read, those before it."""
        damaged = None
        try:
            self._feed(portion)
        except (DamagedSegmentError, UnsupportedFormatError):
            damaged = self._first_damaged(portion)
            self._feed(portion.rows(slice(0, damaged.row)))
        return damaged

    def take_in(self, learnt: SegmentTransactions, waiting_for: Offset) -> None:
        """Take in what the companions of a segment say, which is not read.

        A transaction that began below what was read may have records here, too: it counts as open
        from `waiting_for` on.
        """
        if self._filter is not None:
            still_open = (
                replace(one, first_offset=max(one.first_offset, waiting_for))
                for one in learnt.still_open
            )
            self._filter.learn(learnt.below, learnt.aborted, still_open)

    def shown(self, headers: HeaderTable) -> Flags:
        """Which batches below `stable` are shown."""
        if self._filter is None:
            return ~headers.is_control
        return np.asarray(self._filter.fates(headers) == Fate.COMMITTED)

    def forget_below(self, offset: Offset) -> None:
        """Nothing below will be asked for again."""
        if self._filter is not None:
            self._filter.forget_below(offset)

    def _feed(self, portion: Portion) -> None:
        headers, scanned = portion.headers, portion.scanned
        if not len(headers):
            return
        if self._filter is None:
            self._filter = TransactionFilter(int(headers.rows["base_offset"][0]))
        markers = read_markers(
            scanned.data, headers, name=portion.log.key, position=scanned.position
        )
        self._filter.feed(headers, markers)

    def _first_damaged(self, portion: Portion) -> DamagedRow:
        scanned = portion.scanned
        for row in np.flatnonzero(portion.headers.is_control).tolist():
            one = portion.headers.where(slice(row, row + 1))
            try:
                read_markers(scanned.data, one, name=portion.log.key, position=scanned.position)
            except (DamagedSegmentError, UnsupportedFormatError) as error:
                return DamagedRow(row, error)
        raise AssertionError(f"{portion.log.key}: a marker was damaged, and none is")


class Uncommitted:
    """Hands on everything at once."""

    held_bytes = 0
    blocked_at: Offset | None = None

    def add(self, portion: Portion) -> Iterator[Cleared]:
        """All but control batches."""
        if len(portion.headers):
            yield Cleared(portion, ~portion.headers.is_control)


class Committed:
    """Holds what is not decided."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._held: deque[Portion] = deque()

    @property
    def held_bytes(self) -> int:
        """Bytes of the buffers that are held."""
        return sum(len(portion.scanned.data) for portion in self._held)

    @property
    def blocked_at(self) -> Offset | None:
        """The first offset of what is held; None where nothing is."""
        return Offset(int(self._held[0].headers.rows["base_offset"][0])) if self._held else None

    def add(self, portion: Portion) -> Iterator[Cleared]:
        """What is decided now, in order; the transactions have learnt of these batches before."""
        if len(portion.headers):
            self._held.append(portion)
        stable = self._transactions.stable
        while self._held:
            first = self._held.popleft()
            bases = first.headers.rows["base_offset"]
            below = int(np.searchsorted(bases, stable, side="left"))
            if below:
                decided = first.rows(slice(0, below))
                yield Cleared(decided, self._transactions.shown(decided.headers))
            if below < len(bases):
                self._held.appendleft(first.rows(slice(below, None)) if below else first)
                return

"""Decide which batches are returned now, later, or never. Pure functions.

With `read_uncommitted`, all batches except control batches are returned at once. With
`read_committed`, no record at or above the first offset of an open transaction is returned; fetched
batches are held until its marker arrives. If the held batches would need too much memory, they are
dropped. Then only batch headers are read ahead until the transaction is decided, and reading
continues where it was, with the outcome known.

A transaction marker in a gap is not seen. Then the producer's next marker decides.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from sidetier.archive.objects.segment import StoredLog
from sidetier.archive.reader.assembly import ScannedBatches
from sidetier.archive.transactions import SegmentTransactions
from sidetier.segments.arrow import Fate, Flags, HeaderTable, fates_of, feed_table, read_markers
from sidetier.segments.errors import DamagedSegmentError, UnsupportedFormatError
from sidetier.segments.offsets import Offset
from sidetier.segments.transactions import TransactionTracker


@dataclass(frozen=True, slots=True)
class Batches:
    """Batches of one buffer. Their records from `first` up to `until`, exclusive, are wanted."""

    log: StoredLog
    scanned: ScannedBatches
    first: Offset
    until: Offset

    @property
    def headers(self) -> HeaderTable:
        """Headers of the batches."""
        return self.scanned.headers

    @property
    def next_offset(self) -> Offset:
        """Offset where reading continues after these batches."""
        following = self.headers.next_offset
        return self.until if following is None else min(following, self.until)

    def below(self, bound: Offset) -> "Batches":
        """Return the batches that begin below `bound`; of the last one only the records below
        it.
        """
        count = int(np.searchsorted(self.headers.rows["base_offset"], bound, side="left"))
        return replace(self.rows(slice(0, count)), until=min(self.until, bound))

    def rows(self, chosen: slice) -> "Batches":
        """Return the chosen batches."""
        scanned = self.scanned
        return replace(
            self,
            scanned=ScannedBatches(scanned.data, scanned.headers.where(chosen), scanned.position),
        )


@dataclass(frozen=True, slots=True)
class DecidedBatches:
    """Decided batches that may be returned. `keep` flags the ones whose records are visible."""

    batches: Batches
    keep: Flags


@dataclass(frozen=True, slots=True)
class DamagedMarker:
    """The index of a batch that cannot be read, and the reason."""

    row: int
    error: DamagedSegmentError | UnsupportedFormatError


class KnownTransactions:
    """The transactions of a partition that are known since it was assigned or sought.

    The first batch may begin below the wanted offset; it counts.
    """

    def __init__(self) -> None:
        self._tracker: TransactionTracker | None = None

    @property
    def known_below(self) -> Offset:
        """The offset up to which transactions are known, exclusive."""
        return self._tracker.end if self._tracker is not None else Offset(0)

    @property
    def last_stable_offset(self) -> Offset:
        """First offset of the oldest open transaction. Every batch below it is decided."""
        return self._tracker.last_stable_offset if self._tracker is not None else Offset(0)

    def learn(self, batches: Batches) -> DamagedMarker | None:
        """Process the next batches. If a marker cannot be read, process only the batches
        before it.
        """
        damaged = None
        try:
            self._feed(batches)
        except (DamagedSegmentError, UnsupportedFormatError):
            # `read_markers` has raised before the tracker got any of these batches.
            damaged = self._first_damaged(batches)
            self._feed(batches.rows(slice(0, damaged.row)))
        return damaged

    def learn_from_indexes(self, learnt: SegmentTransactions, waiting_for: Offset) -> None:
        """Process the transactions of a segment that is not read, from the files beside it.

        An open transaction that began below the offsets that were read may have records in them,
        too. So it counts as open from `waiting_for` on.
        """
        if self._tracker is not None:
            still_open = (
                replace(transaction, first_offset=max(transaction.first_offset, waiting_for))
                for transaction in learnt.still_open
            )
            self._tracker.skip_to(learnt.end, learnt.aborted, still_open)

    def shown(self, headers: HeaderTable) -> Flags:
        """Return which batches below `last_stable_offset` are visible."""
        if self._tracker is None:
            return ~headers.is_control
        return np.asarray(fates_of(self._tracker, headers) == Fate.COMMITTED)

    def forget_below(self, offset: Offset) -> None:
        """Drop transactions below this offset, which will not be needed again."""
        if self._tracker is not None:
            self._tracker.forget_below(offset)

    def _feed(self, batches: Batches) -> None:
        headers, scanned = batches.headers, batches.scanned
        if not len(headers):
            return
        # A transaction that began below the first batch is not known to be open here: its later
        # batches name it, and its marker decides them.
        if self._tracker is None:
            self._tracker = TransactionTracker(int(headers.rows["base_offset"][0]))
        markers = read_markers(
            scanned.data, headers, name=batches.log.key, position=scanned.position
        )
        feed_table(self._tracker, headers, markers)

    def _first_damaged(self, batches: Batches) -> DamagedMarker:
        scanned = batches.scanned
        for row in np.flatnonzero(batches.headers.is_control).tolist():
            batch = batches.headers.where(slice(row, row + 1))
            try:
                read_markers(scanned.data, batch, name=batches.log.key, position=scanned.position)
            except (DamagedSegmentError, UnsupportedFormatError) as error:
                return DamagedMarker(row, error)
        raise AssertionError(f"{batches.log.key}: a marker was damaged, and none is")


class ReadUncommitted:
    """Passes everything on at once."""

    held_bytes = 0
    blocked_at: Offset | None = None

    def add(self, batches: Batches) -> Iterator[DecidedBatches]:
        """Yield all batches, with control batches flagged as not visible."""
        if len(batches.headers):
            yield DecidedBatches(batches, ~batches.headers.is_control)


class ReadCommitted:
    """Holds batches that are not decided."""

    def __init__(self, transactions: KnownTransactions) -> None:
        self._transactions = transactions
        self._held: deque[Batches] = deque()

    @property
    def held_bytes(self) -> int:
        """Size of the held buffers, in bytes."""
        return sum(len(batches.scanned.data) for batches in self._held)

    @property
    def blocked_at(self) -> Offset | None:
        """First held offset; None if nothing is held."""
        return Offset(int(self._held[0].headers.rows["base_offset"][0])) if self._held else None

    def add(self, batches: Batches) -> Iterator[DecidedBatches]:
        """Yield the batches that are decided now, in order.

        The caller passes these batches to `KnownTransactions.learn` first.
        """
        if len(batches.headers):
            self._held.append(batches)
        stable = self._transactions.last_stable_offset
        while self._held:
            first = self._held.popleft()
            bases = first.headers.rows["base_offset"]
            below = int(np.searchsorted(bases, stable, side="left"))
            if below:
                decided = first.rows(slice(0, below))
                yield DecidedBatches(decided, self._transactions.shown(decided.headers))
            if below < len(bases):
                # A part of the buffer stays held: its records
                # come in order, behind the open transaction.
                self._held.appendleft(first.rows(slice(below, None)) if below else first)
                return

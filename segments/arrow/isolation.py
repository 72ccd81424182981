"""Read committed: which batches are part of a transaction that was committed, or of none.

Pure, over header tables. What is known of a partition's transactions comes from three sources: the
markers in the log, the `.txnindex` of a segment (its aborted transactions), and the producer
snapshot of the segment behind it (the transactions that were open at its end).

The rule is Kafka's: the next marker of a producer after a batch decides it, whatever the epoch
(`TransactionIndex`, `CompletedFetch.isBatchAborted`). Nothing at or above the last stable offset,
the first offset of the oldest transaction that is not decided, is handed out.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from sidetier.segments.arrow.header_table import Buffer, HeaderTable
from sidetier.segments.offsets import Offset
from sidetier.segments.producer_snapshot import OpenTransaction
from sidetier.segments.txn_index import AbortedTxn


class Fate(IntEnum):
    """What a read-committed consumer does with a batch."""

    COMMITTED = 0
    """Shown: of no transaction, or of a committed one."""
    ABORTED = 1
    """Hidden."""
    UNDECIDED = 2
    """Held back, and all that follows it."""
    CONTROL = 3
    """Hidden, in both isolation levels."""


class Marker(IntEnum):
    """What a control batch says of its producer's transaction; Kafka's `ControlRecordType`."""

    NONE = -1
    """No control batch, or one of another kind."""
    ABORT = 0
    COMMIT = 1


Fates = npt.NDArray[np.int8]
"""A value of `Fate` per batch."""
Markers = npt.NDArray[np.int8]
"""A value of `Marker` per batch."""

_: Final = (Buffer,)


def read_markers(
    data: Buffer, headers: HeaderTable, *, name: str = "record batches", position: int = 0
) -> Markers:
    """The marker that each batch is; only control batches are decoded.

    Raises:
        DamagedSegmentError: a control batch that is damaged, or holds no marker's key.
    """
    raise NotImplementedError


class TransactionFilter:
    """What is known of the transactions of one partition, from `start` up to `known_below`.

    Fed in order of offsets, by `feed` and by `learn` in any mixture; `fates` may be asked at any
    time of any batch from `start` on, also again when more is known. Not thread-safe.

    Args:
        start: the offset from which on it is fed.
        open_transactions: those that were open at `start` (a producer snapshot knows them). Without
            them a transaction that began below `start` is seen at its first batch or at its marker,
            which decides right, but the last stable offset may be too high until then.
    """

    def __init__(self, start: int = 0, open_transactions: Iterable[OpenTransaction] = ()) -> None:
        raise NotImplementedError

    @property
    def known_below(self) -> Offset:
        """The offset up to which transactions are known."""
        raise NotImplementedError

    @property
    def last_stable_offset(self) -> Offset:
        """The first offset of the oldest open transaction, else `known_below`.

        Every batch below it is committed or aborted.
        """
        raise NotImplementedError

    def feed(self, headers: HeaderTable, markers: Markers) -> None:
        """Take in the next batches: `markers` is what `read_markers` says of them.

        Batches below `known_below` are ignored: they were fed before.
        """
        raise NotImplementedError

    def learn(
        self, below: int, aborted: Iterable[AbortedTxn], open_transactions: Iterable[OpenTransaction]
    ) -> None:
        """Take in what files say of all offsets from `known_below` up to `below`, unread.

        Args:
            below: the end of the segment: the base offset of its successor.
            aborted: the entries of the `.txnindex` of every segment on the way.
            open_transactions: those of the producer snapshot at `below`.
        """
        raise NotImplementedError

    def fates(self, headers: HeaderTable) -> Fates:
        """What becomes of each batch, as far as is known now."""
        raise NotImplementedError

    def forget_below(self, offset: int) -> None:
        """Drop what concerns only batches below this offset, which will not be asked for again."""
        raise NotImplementedError

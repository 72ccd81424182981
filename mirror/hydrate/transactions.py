"""The transactions of a partition, followed from batch to batch.

Source: Kafka's `ProducerStateManager` and `ProducerAppendInfo` (KIP-98). A transaction begins with
the first transactional batch of its producer and ends with that producer's next marker. A marker
without a batch before it decides nothing.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from sidetier.segments.headers import BatchHeader
from sidetier.segments.offsets import Offset
from sidetier.segments.producer_snapshot import encode_snapshot
from sidetier.segments.txn_index import AbortedTxn

_PRODUCER = struct.Struct(">qhiqiqiq")
_UNKNOWN_COORDINATOR = -1
_SEQUENCES = 2**31


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transaction of one partition.

    `begin_ms` is the largest timestamp of its first batch, set by the producer. `marker_offset` and
    `marker_ms` (set by a broker) are None and `committed` is False where no marker was seen.
    """

    producer_id: int
    producer_epoch: int
    first_offset: Offset
    begin_ms: int
    marker_offset: Offset | None = None
    marker_ms: int | None = None
    committed: bool = False

    @property
    def is_open(self) -> bool:
        """No marker was seen."""
        return self.marker_offset is None


@dataclass(slots=True)
class _OpenProducer:
    """A producer with an open transaction: the transaction's first batch, and its last one."""

    first: BatchHeader
    last: BatchHeader


@dataclass(slots=True)
class TransactionFollower:
    """Follows the batches of a partition in order of offsets.

    `finished` are the transactions that a marker has decided, in order of the markers; `aborted`
    has the entries of the transaction index for those that were aborted. Who takes them out clears
    the lists.
    """

    finished: list[Transaction] = field(default_factory=list)
    aborted: list[AbortedTxn] = field(default_factory=list)
    _open: dict[int, _OpenProducer] = field(default_factory=dict)

    def add(self, header: BatchHeader, commits: bool | None) -> None:  # noqa: FBT001
        """Take the next batch; `commits` tells of a marker what it decides."""
        if commits is not None:
            self._decide(header, commits=commits)
        elif header.is_transactional:
            known = self._open.get(header.producer_id)
            if known is None:
                self._open[header.producer_id] = _OpenProducer(header, header)
            else:
                known.last = header

    def still_open(self) -> tuple[Transaction, ...]:
        """The transactions without a marker so far, by first offset."""
        found = [_begun(producer.first) for producer in self._open.values()]
        return tuple(sorted(found, key=lambda one: one.first_offset))

    def producer_snapshot(self) -> bytes:
        """A `.snapshot` for the offset after the last batch, with the producers whose transactions
        are open and no others.

        The broker then forgets all other producer ids: a producer of the new cluster that is given
        an archived id again is not taken for the old one.
        """
        return encode_snapshot(map(_row, self._open.values()))

    def _decide(self, header: BatchHeader, *, commits: bool) -> None:
        producer = self._open.pop(header.producer_id, None)
        if producer is None:
            return
        begun = _begun(producer.first)
        self.finished.append(
            Transaction(
                begun.producer_id,
                begun.producer_epoch,
                begun.first_offset,
                begun.begin_ms,
                header.base_offset,
                header.max_timestamp,
                commits,
            )
        )
        if not commits:
            others = (one.first.base_offset for one in self._open.values())
            stable = min(others, default=Offset(header.base_offset + 1))
            self.aborted.append(
                AbortedTxn(header.producer_id, begun.first_offset, header.base_offset, stable)
            )


def transactions_of(
    batches: Iterable[tuple[BatchHeader, bool | None]],
) -> tuple[Transaction, ...]:
    """All transactions in batches that come in order of offsets: the decided ones in order of their
    markers, then the open ones.
    """
    follower = TransactionFollower()
    for header, commits in batches:
        follower.add(header, commits)
    return (*follower.finished, *follower.still_open())


def _begun(first: BatchHeader) -> Transaction:
    return Transaction(
        first.producer_id, first.producer_epoch, first.base_offset, first.max_timestamp
    )


def _row(producer: _OpenProducer) -> bytes:
    last = producer.last
    delta = last.last_offset - last.base_offset
    return _PRODUCER.pack(
        last.producer_id,
        last.producer_epoch,
        (last.base_sequence + delta) % _SEQUENCES,
        last.last_offset,
        delta,
        last.max_timestamp,
        _UNKNOWN_COORDINATOR,
        producer.first.base_offset,
    )

"""Follow the transactions of a partition from batch to batch.

Source: Kafka's `ProducerStateManager` and `ProducerAppendInfo` (KIP-98). A transaction begins with
the first transactional batch of its producer and ends with that producer's next marker. A marker
without a batch before it decides nothing.
"""

import struct
from dataclasses import dataclass, field

from sidetier.segments.headers import BatchHeader
from sidetier.segments.offsets import Offset
from sidetier.segments.producer_snapshot import encode_snapshot
from sidetier.segments.txn_index import AbortedTxn

_PRODUCER = struct.Struct(">qhiqiqiq")
_UNKNOWN_COORDINATOR = -1
_SEQUENCES = 2**31


@dataclass(slots=True)
class _OpenProducer:
    """A producer with an open transaction: the first and the last batch of the transaction."""

    first: BatchHeader
    last: BatchHeader


@dataclass(slots=True)
class TransactionFollower:
    """Follows the batches of a partition by ascending offset."""

    _aborted: list[AbortedTxn] = field(default_factory=list)
    _open: dict[int, _OpenProducer] = field(default_factory=dict)

    def add(self, header: BatchHeader, commits: bool | None) -> None:  # noqa: FBT001
        """Take the next batch; `commits` is whether a marker commits, None for other batches."""
        if commits is not None:
            self._decide(header, commits=commits)
        elif header.is_transactional:
            known = self._open.get(header.producer_id)
            if known is None:
                self._open[header.producer_id] = _OpenProducer(header, header)
            else:
                known.last = header

    def take_aborted(self) -> list[AbortedTxn]:
        """Return the transaction index entries since the last call, by ascending marker offset."""
        taken, self._aborted = self._aborted, []
        return taken

    def producer_snapshot(self) -> bytes:
        """Return the `.snapshot` for the offset after the last batch, with open transactions only.

        It has the producers whose transactions are open and no others, so the broker forgets all
        other producer ids: a producer of the new cluster that is given an archived id again is not
        taken for the old one.
        """
        return encode_snapshot(map(_row, self._open.values()))

    def _decide(self, header: BatchHeader, *, commits: bool) -> None:
        producer = self._open.pop(header.producer_id, None)
        if producer is None:
            return
        if not commits:
            others = (producer_left.first.base_offset for producer_left in self._open.values())
            stable = min(others, default=Offset(header.base_offset + 1))
            self._aborted.append(
                AbortedTxn(
                    header.producer_id, producer.first.base_offset, header.base_offset, stable
                )
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

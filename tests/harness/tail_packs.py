"""Tail packs of handmade batches."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sidetier.archive.tail.merge import MergedTail
from sidetier.archive.tail.pack import (
    PackBuilder,
    TailBatch,
    TailRow,
    claim,
    decode_footer,
    decode_index,
    epochs_from,
)
from sidetier.archive.tail.read import read_tails
from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import LeaderEpoch, Offset, TopicPartition
from sidetier.storage.port import IfAbsent, PutOptions, RemoteStorage
from tests.harness.batches import make_batch

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
LAYOUT = ArchiveLayout("prod", 0)
TP = TopicPartition("orders", 0)


def history(*entries: tuple[int, int]) -> EpochHistory:
    """Return an epoch history."""
    return EpochHistory(tuple((LeaderEpoch(epoch), Offset(start)) for epoch, start in entries))


def log(epochs: EpochHistory, start: int, end: int, payload: bytes = b"") -> list[bytes]:
    """Return batches of two records (the last may have one) of a log with this history."""
    return [
        make_batch(
            base,
            min(2, end - base),
            epoch=epochs.epoch_at(base) or 0,
            payload=payload or b"record %d" % base,
            timestamp=1_700_000_000_000 + base,
        )
        for base in range(start, end, 2)
    ]


def tail_row(
    epochs: EpochHistory, start: int, end: int, *, log_start: int = 0, crc: int = 1
) -> TailRow:
    """The row of one batch of 100 bytes, with all its records decided."""
    return TailRow(
        TP,
        TOPIC_ID,
        epochs_from(epochs, start),
        Offset(start),
        Offset(end),
        Offset(log_start),
        Offset(end),
        batches=1,
        size=100,
        crc64nvme=crc,
    )


def decode_pack(data: bytes, key: str) -> tuple[TailRow, ...]:
    """Parse footer and index of a whole pack. Raises as `decode_index`."""
    footer = decode_footer(data, len(data), key)
    index = data[footer.position : footer.position + footer.length]
    return decode_index(index, footer, key).rows


def read_tail(store: RemoteStorage, tail: MergedTail) -> Sequence[TailBatch]:
    """Return the batches of one partition's tail, in order of offsets. Raises as `read_tails`."""
    tps = {part.source.row.tp for part in tail.slices}
    parts = sorted(read_tails(store, dict.fromkeys(tps, tail)), key=lambda part: part.number)
    return [batch for part in parts for batch in part.batches]


def last_stable(tail: MergedTail) -> Offset | None:
    """Last stable offset of a tail, by its last row: at most its end. None for an empty tail, and
    if only a part of the last row is in the tail.
    """
    if not tail.slices or tail.slices[-1].end != tail.slices[-1].source.row.end:
        return None
    row = tail.slices[-1].source.row
    return min(tail.end, row.last_stable, *(each.first_offset for each in row.open))


@dataclass
class MadePack:
    """A pack that a test fills and stores."""

    builder: PackBuilder = field(default_factory=PackBuilder)

    def range(
        self,
        epochs: EpochHistory,
        start: int,
        end: int,
        *,
        tp: TopicPartition = TP,
        topic_id: str = TOPIC_ID,
        payload: bytes = b"",
    ) -> TailRow:
        batches = log(epochs, start, end, payload)
        row = TailRow(
            tp,
            topic_id,
            epochs_from(epochs, start),
            Offset(start),
            Offset(end),
            Offset(0),
            Offset(end),
            batches=len(batches),
            max_timestamp=1_700_000_000_000 + end,
        )
        return self.builder.add(row, *batches)

    def claim(self, epochs: EpochHistory, *, tp: TopicPartition = TP) -> TailRow:
        return self.builder.add(claim(tp, TOPIC_ID, epochs, Offset(0), Offset(0)))

    def store(self, store: RemoteStorage, broker: int, number: int) -> str:
        key = LAYOUT.tail_pack_key(broker, number)
        store.put_object(key, self.builder.body(), PutOptions(condition=IfAbsent()))
        return key


def partitions(count: int) -> Iterable[TopicPartition]:
    """Return many partitions of some topics."""
    return (TopicPartition(f"topic-{number // 50}", number % 50) for number in range(count))

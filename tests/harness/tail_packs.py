"""Tail packs of handmade batches."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from sidetier.archive.tail.pack import PackBuilder, TailRow, claim, epochs_from
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

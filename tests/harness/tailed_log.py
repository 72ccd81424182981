"""A log with transactions, of which a part is archived and the rest is in tail packs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from sidetier.archive.reader import IsolationLevel, ReachedEnd, Records, Taken
from sidetier.archive.tail.pack import PackBuilder, TailRow, claim, epochs_from
from sidetier.segments.batches import split_batches
from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import LeaderEpoch, Offset, TopicPartition
from sidetier.segments.transactions import TransactionTracker
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import IfAbsent, PutOptions, RemoteStorage
from tests.harness.made_archive import LAYOUT, TP, MadeArchive
from tests.harness.record_batches import MadeBatch, TransactionalLog
from tests.harness.tail_packs import TOPIC_ID, history
from tests.harness.transactions import feed_headers


@dataclass(slots=True)
class TailedLog(TransactionalLog):
    """The log of one partition. `epochs` is the epoch history of its leader."""

    store: RemoteStorage = field(default_factory=FakeStorage)
    layout: ArchiveLayout = LAYOUT
    tp: TopicPartition = TP
    epochs: EpochHistory = field(default_factory=lambda: history((0, 0)))
    stored: set[tuple[int, int]] = field(default_factory=set)
    """Start and end of the archived segments."""
    log_start: int = 0

    @property
    def archive(self) -> MadeArchive:
        return MadeArchive(self.store, self.layout, self.tp)

    def between(self, start: int, end: int) -> list[MadeBatch]:
        """The batches of [start, end), each of its leader epoch."""
        return [
            replace(batch, leader_epoch=self.epochs.epoch_at(batch.first) or 0)
            for batch in self.batches
            if start <= batch.first < end
        ]

    def archived(self, *borders: int) -> None:
        """Archive segments from each of the offsets up to the next."""
        for base, end in pairwise(borders):
            if (base, end) not in self.stored:
                self.archive.segment(base, self.between(base, end))
                self.stored.add((base, end))
        epochs = self.epochs.up_to(borders[-1])
        self.archive.epoch_history(*epochs.entries)
        last = epochs.entries[-1][0] if epochs.entries else 0
        self.archive.mark(
            borders[-2], borders[-1], leader_epoch=last, topic_id=TOPIC_ID, start_offset=borders[0]
        )

    def row(self, start: int, end: int, builder: PackBuilder) -> TailRow:
        """Add the range [start, end) to a pack."""
        batches = [batch.encoded() for batch in self.between(start, end)]
        tracker = TransactionTracker()
        feed_headers(tracker, b"".join(batch.encoded() for batch in self.between(0, start)))
        before = len(tracker.aborted)
        feed_headers(tracker, b"".join(batches))
        return builder.add(
            TailRow(
                self.tp,
                TOPIC_ID,
                epochs_from(self.epochs, start),
                Offset(start),
                Offset(end),
                Offset(self.log_start),
                tracker.last_stable_offset,
                len(batches),
                1_700_000_000_000 + end,
                tuple(tracker.open.values()),
                tuple(tracker.aborted[before:]),
            ),
            *batches,
        )

    def pack(self, broker: int, number: int, *ranges: tuple[int, int]) -> str:
        """Store a pack with ranges of this log."""
        builder = PackBuilder()
        for start, end in ranges:
            self.row(start, end, builder)
        return store_pack(self.store, self.layout, builder, broker, number)

    def claim(self, broker: int, number: int) -> str:
        """Store a pack with the claim of the leader of the newest epoch."""
        builder = PackBuilder()
        end = Offset(self.next_offset)
        builder.add(claim(self.tp, TOPIC_ID, self.epochs, Offset(self.log_start), end))
        return store_pack(self.store, self.layout, builder, broker, number)

    def elected_uncleanly(self, start: int, epoch: int = 1) -> "TailedLog":
        """Return the log of a later leader that has discarded the records from an offset on."""
        epochs = EpochHistory(
            (*self.epochs.up_to(start).entries, (LeaderEpoch(epoch), Offset(start)))
        )
        kept = [batch for batch in self.batches if batch.first < start]
        stored = {span for span in self.stored if span[1] <= start}
        return replace(self, batches=kept, next_offset=start, epochs=epochs, stored=stored)

    def offsets(self, isolation: IsolationLevel, end: int) -> list[int]:
        """What a reader gets of the log up to an offset."""
        if isolation is IsolationLevel.READ_UNCOMMITTED:
            return [r.offset for b in self.between(0, end) if not b.is_control for r in b.records]
        tracker = TransactionTracker()
        feed_headers(tracker, b"".join(batch.encoded() for batch in self.between(0, end)))
        aborted = list(tracker.aborted)
        return [
            record.offset
            for batch in self.between(0, tracker.last_stable_offset)
            if not batch.is_control
            and not any(
                txn.producer_id == batch.producer_id
                and txn.first_offset <= batch.first <= txn.last_offset
                for txn in aborted
                if batch.is_transactional
            )
            for record in batch.records
        ]


def store_pack(
    store: RemoteStorage, layout: ArchiveLayout, builder: PackBuilder, broker: int, number: int
) -> str:
    """Store a pack."""
    key = layout.tail_pack_key(broker, number)
    store.put_object(key, builder.body(), PutOptions(condition=IfAbsent()))
    return key


def mixed_log(store: RemoteStorage | None = None) -> TailedLog:
    """A log in which transactions are open at offset 12, and at its end.

    Producer 1 aborts behind 12 what it has begun below; producer 2 commits it; 3 begins and aborts
    behind it; 4 is open at the end.
    """
    log = TailedLog(store=store or FakeStorage())
    log.write(9, 3, transactional=False)
    log.write(1, 2)
    log.write(2, 2)
    log.write(9, 3, transactional=False)
    log.write(1, 2)
    assert log.next_offset == 12
    log.write(1, 1)
    log.mark(1, commit=False)
    log.write(9, 2, transactional=False)
    log.write(3, 2)
    log.mark(2, commit=True)
    log.mark(3, commit=False)
    log.write(9, 4, transactional=False)
    log.write(4, 1)
    log.write(9, 2, transactional=False)
    return log


def tailed(store: RemoteStorage | None = None) -> TailedLog:
    """A mixed log whose tail is in packs of two brokers."""
    log = mixed_log(store)
    log.archived(0, 5, 12)
    log.pack(1, 0, (5, 14))
    log.pack(1, 1, (14, 18), (18, 19))
    log.pack(2, 0, (14, 18), (19, log.next_offset))
    return log


def borders(log: TailedLog) -> Sequence[int]:
    """The offsets between its batches."""
    return [batch.first for batch in log.batches] + [log.next_offset]


def stored_headers(data: bytes) -> Iterable[int]:
    """Base offsets of the batches of a stored segment."""
    return [header.base_offset for _, header in split_batches(memoryview(data))]


def read_offsets(taken: Iterable[Taken]) -> list[int]:
    """Offsets of the records; nothing but records, and the end, was taken."""
    offsets: list[int] = []
    for item in taken:
        assert isinstance(item, Records | ReachedEnd), item
        if isinstance(item, Records):
            offsets += item.records.column("offset").to_pylist()
    return offsets

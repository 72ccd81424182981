"""A broker's answers and a sender of packs by hand, for tests of the tail's writer."""

import shutil
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from sidetier.archive.tail.inventory import TailInventory
from sidetier.archive.tail.merge import ArchivedPart, MergedTail, PackRef
from sidetier.archive.tail.pack import TailRow
from sidetier.segments.batches import split_batches
from sidetier.segments.epoch_history import NO_EPOCHS, EpochHistory
from sidetier.segments.headers import CONTROL, FIELD_AT, TRANSACTIONAL
from sidetier.segments.offsets import BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.storage.port import RemoteStorage
from sidetier.uploader.clock import Clock
from sidetier.uploader.tail.board import TailPartition
from sidetier.uploader.tail.cycle import TailCycle
from sidetier.uploader.tail.packs import PackJob, TailPlace, run_job
from tests.harness.batches import make_batch, with_crc
from tests.harness.daemons import LAYOUT, OffsetsByHand
from tests.harness.log_dir import LogDir, PartitionLog, encode_record, record_batch
from tests.harness.made_archive import MadeArchive
from tests.harness.tail_packs import decode_pack, read_tail

BROKER = BrokerId(1)


class SenderByHand:
    """A PackSender that stores each pack at once; while `held`, when the test says so."""

    def __init__(self, clock: "TickingClock", check: Callable[[PackJob], None]) -> None:
        self._clock = clock
        self._check = check
        """Called with each pack before it is stored."""
        self.held = False
        self.waiting: list[PackJob] = []
        self._ended: list[PackJob] = []

    def send(self, job: PackJob) -> None:
        self._check(job)
        self.waiting.append(job)
        if not self.held:
            self.end(job)

    def end(self, job: PackJob) -> None:
        """Store a pack that waits."""
        self.waiting.remove(job)
        run_job(job, self._clock.wall)
        self._ended.append(job)

    def fail(self, job: PackJob, error: Exception) -> None:
        """Lose a pack that waits."""
        self.waiting.remove(job)
        job.result = error
        self._ended.append(job)

    def finished(self, timeout: float = 0.0) -> Sequence[PackJob]:
        ended, self._ended = self._ended, []
        if not ended:
            self._clock.now += timeout
        return ended


class TickingClock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1_700_000_000 + self.now

    @property
    def clock(self) -> Clock:
        return Clock(self.monotonic, self.wall)


class TailSite:
    """The sidecar of one broker: its log dir, its cycle, and the store that it shares."""

    def __init__(
        self,
        path: Path,
        store: RemoteStorage,
        broker: int = 1,
        clock: TickingClock | None = None,
    ) -> None:
        self.log_dir = LogDir(path, broker_id=broker)
        self.store = store
        self.broker = BrokerId(broker)
        self.time = clock or TickingClock()
        self.source = OffsetsByHand([self.log_dir])
        self.archive_ends: dict[TopicPartition, int] = {}
        self.archived_epochs: dict[TopicPartition, EpochHistory] = {}
        """The epochs of the archive, known to the daemon; otherwise those of the log, once the
        archive end has moved."""
        self.restart()

    def restart(self) -> None:
        """Begin again without a memory, as after a kill."""
        self.sender = SenderByHand(self.time, self.check_sent)
        self.cycle = self._new_cycle(lambda work: work())
        self._loaded: dict[tuple[TopicPartition, int], int] = {}

    def packed_log(self, *, packs: int, records: int) -> PartitionLog:
        """Return the log of partition t-0, of which each of some packs has some records."""
        log = self.log_dir.create("t", 0)
        for _ in range(packs):
            log.append(records)
            self.run()
        return log

    def read_packs_by_hand(self) -> list[Callable[[], None]]:
        """Begin again. The readings of packs are added to the returned list, for a test to run."""
        works: list[Callable[[], None]] = []
        self.cycle = self._new_cycle(works.append)
        return works

    def _new_cycle(self, background: Callable[[Callable[[], None]], None]) -> TailCycle:
        return TailCycle(
            self.source,
            lambda _: TailPlace(self.store, LAYOUT, encrypts=False),
            self.inventory_of,
            self.sender,
            self.broker,
            self.time.clock,
            background=background,
        )

    def check_sent(self, job: PackJob) -> None:
        """Every range is in the log of the leader that has just answered for it."""
        assert job.body is not None
        data = b"".join(map(bytes, job.body.pieces))
        for row in decode_pack(data, "a pack in flight"):
            log = self.log_dir.partitions.get(row.tp)
            assert log is not None, "of a partition that is gone"
            assert (log.epoch, log.topic_id) == (row.leader_epoch, row.topic_id), "another leader"
            assert data[row.position : row.position + row.size] in log_bytes(log), "not in the log"

    @staticmethod
    def inventory_of(place: TailPlace) -> TailInventory:
        """Reads the packs anew each time."""
        return TailInventory(place.store, place.layout)

    def rows(self) -> list[TailRow]:
        """All rows of this broker's packs."""
        contents = TailInventory(self.store, LAYOUT).read([self.broker])
        return [source.row for rows in contents.rows.values() for source in rows]

    def rows_of(self, pack: PackRef) -> tuple[TailRow, ...]:
        """The rows of a pack."""
        return TailInventory(self.store, LAYOUT).rows(pack)

    def led(
        self, tps: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, TailPartition]:
        """The board, as the daemon would write it."""
        logs = self.log_dir.partitions
        return {
            tp: TailPartition(
                tp,
                str(logs[tp].path),
                LeaderEpoch(logs[tp].epoch),
                logs[tp].topic_id,
                Offset(self.archive_ends.get(tp, 0)),
                self._known_epochs(logs[tp]),
            )
            for tp in (logs if tps is None else tps)
        }

    def _known_epochs(self, log: PartitionLog) -> EpochHistory:
        """The archived epochs that the daemon has: none before its first commit as the leader."""
        end = self.archive_ends.get(log.tp, 0)
        has_committed = self._loaded.setdefault((log.tp, log.epoch), end) != end
        known = archived_epochs(log, end) if has_committed else NO_EPOCHS
        return self.archived_epochs.get(log.tp, known)

    def stored_archive(self, tp: TopicPartition) -> ArchivedPart | None:
        """What the store has of the archive of a partition."""
        log, end = self.log_dir.partitions.get(tp), self.archive_ends.get(tp, 0)
        if log is None or not end:
            return None
        epochs = self.archived_epochs.get(tp, archived_epochs(log, end))
        return ArchivedPart(Offset(end), epochs, log.topic_id)

    def run(self, tps: Iterable[TopicPartition] | None = None) -> None:
        """One cycle, and what is in flight after it. Time passes first."""
        self.time.now += 5
        self.cycle.run(self.led(tps))
        if not self.sender.held:
            self.cycle.settle(0)

    def packs(self) -> int:
        """Number of packs of this broker."""
        return len(list(self.store.list_objects(LAYOUT.tail_packs_prefix(self.broker))))


def archived_epochs(log: PartitionLog, end: int) -> EpochHistory:
    """The epoch history of an archive that has this log up to an offset."""
    entries = tuple((LeaderEpoch(epoch), Offset(start)) for epoch, start in log.epochs())
    return EpochHistory(entries).up_to(end)


def archive_log(store: RemoteStorage, log: PartitionLog, end: int) -> None:
    """Store the archive of a log up to an offset, as one segment."""
    archive = MadeArchive(store, LAYOUT, log.tp)
    batches = split_batches(memoryview(log_bytes(log)))
    archive.segment(0, b"".join(bytes(batch) for batch, head in batches if head.next_offset <= end))
    archive.epoch_history(*archived_epochs(log, end).entries)
    archive.mark(0, end, topic_id=log.topic_id, start_offset=0)


def merged(
    store: RemoteStorage, log: PartitionLog, end: int | None = 0, epochs: EpochHistory = NO_EPOCHS
) -> MergedTail:
    """The tail that a reader sees."""
    contents = TailInventory(store, LAYOUT).read()
    assert not contents.problems
    archived_end = None if end is None else Offset(end)
    return contents.merged(log.tp, ArchivedPart(archived_end, epochs, log.topic_id))


def tail_bytes(store: RemoteStorage, tail: MergedTail) -> bytes:
    """The bytes of a merged tail."""
    return b"".join(bytes(batch.data) for batch in read_tail(store, tail))


def log_bytes(log: PartitionLog) -> bytes:
    """All bytes of a log."""
    return b"".join(log.written[base] for base in log.bases())


def replicate(log: PartitionLog, to: TailSite) -> PartitionLog:
    """Copy a log, as far as it reaches, to another broker. The same files, batches and epochs."""
    copy = log.copy_to(to.log_dir, log.bases()[1:])
    if log.tp in to.log_dir.partitions:
        shutil.rmtree(to.log_dir.partitions[log.tp].path)
    copy.rename_to(str(log.tp))
    copy.epoch = log.epoch
    to.log_dir.partitions[log.tp] = copy
    return copy


def transactional(
    base: int, producer: int, count: int = 1, *, marker: int | None = None, epoch: int = 0
) -> bytes:
    """Return a batch of a transaction, or its marker (0 aborts, 1 commits)."""
    if marker is None:
        batch = bytearray(record_batch(base, [b"v" * 30] * count, epoch=epoch))
        attributes = TRANSACTIONAL
    else:
        record = encode_record(0, b"\0\0\0\0\0\0", struct.pack(">hh", 0, marker))
        batch = bytearray(make_batch(base, 1, epoch=epoch, payload=record))
        attributes = TRANSACTIONAL | CONTROL
    batch[FIELD_AT["attributes"] : FIELD_AT["attributes"] + 2] = struct.pack(">h", attributes)
    batch[FIELD_AT["producer_id"] : FIELD_AT["producer_id"] + 10] = struct.pack(">qh", producer, 0)
    return with_crc(batch)

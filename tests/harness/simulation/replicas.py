"""Brokers and their partitions: appends, replication, high watermark, elections, retention.

Kafka's guarantees hold: records below the high watermark are never lost or changed, and a clean
election selects a replica that has all of them. Replicas roll independently, so their segments have
different bases over the same batches. An unclean election breaks the guarantee: records that the
new leader lacks are discarded. A topic that is deleted and recreated starts empty under the same
name.
"""

import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from sidetier.leadership.port import TopicConfig
from sidetier.segments.offsets import TopicPartition
from sidetier.uploader.gates.high_watermark import CHECKPOINT_NAME
from tests.harness.log_dir import TOPIC_ID, LogDir, PartitionLog, record_batch

TP = TopicPartition("t", 0)
ANOTHER_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAg"
WALL_START = 1_700_000_000.0
"""Start time of a simulation, in seconds since 1970."""


class Broker:
    """A machine with one or more log dirs, a directory for a spool, and a clock that may jump.

    All brokers share `ticks`: file times follow the order of events, so that the same choices give
    the same run.
    """

    def __init__(self, directory: Path, number: int, log_dirs: int, ticks: Iterator[int]) -> None:
        self.log_dirs = [LogDir(directory / f"logs-{i}", broker_id=number) for i in range(log_dirs)]
        self.spool = directory / "spool"
        self.spool.mkdir()
        self.replicas: dict[TopicPartition, Replica] = {}
        self.skew = 0.0
        """Seconds by which the machine's wall clock is ahead."""
        self._ticks = ticks

    def now_ns(self) -> int:
        """Return the next moment of this machine's wall clock, in ns since 1970."""
        return int((WALL_START + self.skew) * 1e9) + next(self._ticks) * 1000

    def checkpoint(self) -> None:
        """Write `replication-offset-checkpoint` in each log dir."""
        for log_dir in self.log_dirs:
            replicas = {tp: r for tp, r in self.replicas.items() if r.log_dir is log_dir}
            log_dir.checkpoint_high_watermarks(
                {tp: replica.high_watermark for tp, replica in replicas.items()}
            )
            written = self.now_ns()
            os.utime(log_dir.path / CHECKPOINT_NAME, ns=(written, written))


@dataclass(frozen=True, slots=True)
class Batch:
    """A record batch in a log."""

    base: int
    end: int
    epoch: int
    data: bytes
    begins: bool | None = None
    """Whether it begins a transaction (True) or decides it (False); None for all others."""


def open_transaction(batches: Iterable[Batch], below: int) -> int | None:
    """Return the first offset of the transaction that is open at an offset; None if none is."""
    first: int | None = None
    for batch in batches:
        if batch.end <= below and batch.begins is not None:
            first = batch.base if batch.begins else None
    return first


@dataclass(slots=True)
class Replica:
    """A broker's replica: every batch that it has ever had and not truncated, and its files."""

    broker: Broker
    log_dir: LogDir
    log: PartitionLog
    batches: list[Batch] = field(default_factory=list)
    high_watermark: int = 0
    log_start: int = 0
    """Log start offset that delete-records or retention has set."""
    seen: set[int] = field(default_factory=set)
    """Bases of segments that a sidecar could notice after they were marked for deletion."""
    remembered: set[int] = field(default_factory=set)
    """Leader epochs that a sidecar knows to belong to this log's history."""
    remembered_from: int = 0
    """First offset from which a sidecar with `remembered` knows the leader epoch of each record."""
    epochs_lost: bool = False
    """Whether the log start passed the start of an epoch before a sidecar read that epoch. Then
    nothing proves that the records deleted before it were committed.
    """
    moved_away: list[Path] = field(default_factory=list)
    """Directories that the broker deletes after a move to another log dir."""

    def __post_init__(self) -> None:
        self.log.open_at = self._open_at

    def _open_at(self, base: int) -> Iterable[int]:
        first = open_transaction(self.batches, base)
        return () if first is None else (first,)

    @property
    def end(self) -> int:
        return self.log.log_end

    def append(self, batch: Batch) -> None:
        if self.log.epoch != batch.epoch:
            self.lead(batch.epoch)
        self.log.append_bytes(batch.data, batch.end - batch.base)
        self._touch()
        self.batches.append(batch)

    def lead(self, epoch: int) -> None:
        """Begin a later epoch at the log end.

        If the log start is there too, the checkpoint keeps no entry that connects the epoch with
        the deleted records.
        """
        before = self.log.epochs()[:1]
        self.log.lead(epoch)
        self.epochs_lost |= bool(before) and before != self.log.epochs()[:1] and self.log_start > 0

    def _touch(self) -> None:
        now_ns = self.broker.now_ns()
        os.utime(self.log.file(self.log.active), ns=(now_ns, now_ns))

    def truncate(self, kept: int) -> None:
        """Keep the first `kept` batches only.

        If retention has already deleted these, an empty log begins there.
        """
        end = self.batches[kept - 1].end if kept else 0
        del self.batches[kept:]
        below_start = end < max(self.log_start, self.log.bases()[0])
        self.log.begin_at(end) if below_start else self.log.truncate(end)
        self._touch()
        self.seen = {base for base in self.seen if base < end}
        has_epochs = self.log.known_from() < end  # an empty log has no epochs
        self.log.epoch = self.batches[-1].epoch if has_epochs else -1
        self.log_start = min(self.log_start, end)

    def create_again(self, topic_id: str) -> None:
        """Replace the deleted topic by another one of the same name."""
        tp = self.log.tp
        self.log.delete_topic()
        self.log = self.log_dir.create(tp.topic, tp.partition, topic_id=topic_id)
        self.log.open_at = self._open_at
        self.batches.clear()
        self.seen.clear()
        self.high_watermark = self.log_start = 0
        self.forget()

    def scan(self) -> None:
        """Read the checkpoint as a sidecar does.

        It continues the earlier history if it knew the checkpoint's first epoch already.
        """
        epochs = self.log.epochs()
        if epochs:
            first, start = epochs[0]
            continues = first in self.remembered and self.remembered_from <= start
            self.remembered_from = self.remembered_from if continues else start
            before = {epoch for epoch in self.remembered if continues and epoch < first}
            self.remembered = before | {epoch for epoch, _ in epochs}

    def forget(self) -> None:
        """Forget the remembered epochs, as a sidecar that dies does."""
        self.remembered = set()

    def known_from(self) -> int:
        """Return the first offset from which the sidecar can know the leader epochs.

        It is above 0 if no sidecar has read an epoch that the log start has passed, or if an empty
        log began.
        """
        epochs = self.log.epochs()
        if epochs and epochs[0][0] in self.remembered:
            return min(self.remembered_from, epochs[0][1])
        return self.log.known_from()

    def closed(self) -> list[int]:
        return [int(base) for base in self.log.bases()[:-1]]

    def marked_for_deletion(self) -> list[Path]:
        """Return the `.deleted` files of retention or truncation."""
        log = self.log
        return [log.path / name for name in log.names() if name.endswith(".deleted")]

    def holds(self, offset: int) -> bool:
        """Return whether the offset is in a segment that is not marked for deletion."""
        return self.log.bases()[0] <= offset < self.end

    def stage_oldest(self) -> None:
        """Mark the oldest closed segment for deletion, if all of it is committed."""
        bases = self.log.bases()
        if len(bases) > 1 and bases[1] <= self.high_watermark:
            self.log.stage(bases[0])
            self.move_start(bases[1])

    def move_start(self, offset: int) -> None:
        """Move the log start offset forwards; segments below it are marked for deletion."""
        offset = max(self.log_start, self.log.bases()[0], offset)
        self.log_start = offset
        while len(bases := self.log.bases()) > 1 and bases[1] <= offset:
            self.log.stage(bases[0])
        self.log.start_at(offset)
        first = [epoch for epoch, _ in self.log.epochs()[:1]]
        self.epochs_lost |= not self.remembered.issuperset(first)

    def begin_move(self, target: LogDir, rolls: Collection[int]) -> None:
        """Give the caught-up copy in another log dir the partition's name.

        For a moment both directories have it, as in Kafka.
        """
        copy = self.log.copy_to(target, rolls)
        for base in copy.bases():
            now_ns = self.broker.now_ns()
            os.utime(copy.file(base), ns=(now_ns, now_ns))
        copy.rename_to(str(copy.tp))
        self.moved_away.append(self.log.path)
        del self.log_dir.partitions[copy.tp]
        self.log, self.log_dir = copy, target
        target.partitions[copy.tp] = copy

    def end_move(self) -> None:
        """Rename the old directory to `-delete`."""
        old_path, nonce = self.moved_away[-1], f"{self.broker.now_ns():032x}"
        self.moved_away[-1] = old_path.rename(old_path.with_name(f"{old_path.name}.{nonce}-delete"))

    def delete_moved(self) -> None:
        """Delete the old directories, as the broker does some time later."""
        for path in self.moved_away:
            shutil.rmtree(path)
        self.moved_away.clear()


class Replicated:
    """A partition: its leader, leader epoch, in-sync replicas and committed batches."""

    def __init__(self, brokers: Mapping[int, Broker], seed: int, tp: TopicPartition = TP) -> None:
        self.tp = tp
        self.brokers = brokers
        self.replicas: dict[int, Replica] = {}
        for number, broker in brokers.items():
            log_dir = broker.log_dirs[(number + tp.partition) % len(broker.log_dirs)]
            replica = Replica(broker, log_dir, log_dir.create(tp.topic, tp.partition))
            self.replicas[number] = broker.replicas[tp] = replica
        self.leader = 1
        self.epoch = 0
        self.in_sync = set(self.replicas)
        self.high_watermark = 0
        self.committed: list[Batch] = []
        self.topic_id = TOPIC_ID
        self.topics: dict[bytes, str] = {}
        """Topic id of every batch that was ever committed, by its bytes."""
        self.thrown_away: set[bytes] = set()
        """Batches that were committed and that no leader's log has any more."""
        self.config = TopicConfig()
        self.before_trim: Callable[[Collection[Batch], int], None] = lambda _, __: None
        """Called with the batches that a sidecar's request is about to delete, and their end."""
        self._random = Random(f"{seed} {tp}")

    def append(self, records: int, *, begins: bool | None = None) -> None:
        leader = self.replicas[self.leader]
        values = [self._random.randbytes(8) for _ in range(records)]
        data = record_batch(leader.end, values, epoch=self.epoch)
        batch = Batch(leader.end, leader.end + records, self.epoch, data, begins)
        leader.append(batch)
        self._advance()

    def next_of_transaction(self) -> None:
        """Begin a transaction, or decide the one that is open."""
        leader = self.replicas[self.leader]
        self.append(1, begins=open_transaction(leader.batches, leader.end) is None)

    def replicate(self, broker: int) -> None:
        """Fetch from the leader: truncate batches that it does not have, and append its others."""
        if broker == self.leader:
            return
        leader, follower = self.replicas[self.leader], self.replicas[broker]
        common = 0
        for follower_batch, leader_batch in zip(follower.batches, leader.batches, strict=False):
            if follower_batch != leader_batch:
                break
            common += 1
        if common < len(follower.batches):
            follower.truncate(common)
        for batch in leader.batches[common:]:
            follower.append(batch)
        self.in_sync.add(broker)
        self._advance()
        follower.high_watermark = min(self.high_watermark, follower.end)
        deleted = min(leader.log_start, follower.high_watermark)
        if deleted > follower.log_start:
            follower.move_start(deleted)

    def fall_behind(self, broker: int) -> None:
        """Remove a follower from the ISR; two replicas stay, as with `min.insync.replicas`."""
        if broker != self.leader and len(self.in_sync) > 2:
            self.in_sync.discard(broker)
            self._advance()

    def elect(self, broker: int) -> None:
        """Elect cleanly. Replicas that have not fetched from the new leader yet are not in sync."""
        if broker == self.leader or broker not in self.in_sync:
            return
        self.epoch += 1
        self.leader = broker
        self.in_sync = {broker}
        leader = self.replicas[broker]
        leader.lead(self.epoch)
        leader.high_watermark = max(leader.high_watermark, self.committed_end())

    def elect_unclean(self, broker: int) -> None:
        """Elect a replica that is not in sync. Records that it lacks are lost, even
        acknowledged.
        """
        if broker == self.leader or broker in self.in_sync:
            return
        self.epoch += 1
        self.leader = broker
        self.in_sync = {broker}
        leader = self.replicas[broker]
        leader.lead(self.epoch)
        self.high_watermark = leader.high_watermark
        before, common = self.committed, 0
        for old_batch, leader_batch in zip(before, leader.batches, strict=False):
            if old_batch != leader_batch:
                break
            common += 1
        committed_count = sum(1 for batch in leader.batches if batch.end <= leader.high_watermark)
        self.committed = leader.batches[: max(common, committed_count)]
        self.thrown_away.update(batch.data for batch in before)
        self._commit(self.committed)

    def create_again(self) -> None:
        """Delete the topic, and recreate it under the same name."""
        self.topic_id = ANOTHER_TOPIC_ID
        self.epoch = self.high_watermark = 0
        self.in_sync = set(self.replicas)
        self.committed = []
        self.thrown_away.clear()
        for replica in self.replicas.values():
            replica.create_again(self.topic_id)

    def lose_tail(self, broker: int, batches: int) -> int:
        """Crash a machine whose broker comes back without the last, unflushed batches.

        A crashed leader is replaced by an in-sync replica. Without one nothing is lost: its broker
        has flushed in time.

        Returns:
            The number of lost batches.
        """
        replica = self.replicas[broker]
        start = max(replica.log_start, replica.log.bases()[0])
        remaining = sum(1 for batch in replica.batches if batch.base >= start)
        if broker == self.leader:
            other_replicas = sorted(self.in_sync - {broker})
            if not other_replicas:
                return 0
            self.elect(other_replicas[0])
        self.in_sync.discard(broker)
        lost = min(batches, remaining)
        if lost:
            replica.truncate(len(replica.batches) - lost)
            replica.high_watermark = min(replica.high_watermark, replica.end)
        return lost

    def delete_records(self, share: float) -> int | None:
        """Delete records from the log start, mostly up to the middle of a segment.

        Returns:
            The new log start offset; None if there is nothing to delete.
        """
        leader = self.replicas[self.leader]
        start = max(leader.log_start, leader.log.bases()[0])
        offset = start + int((leader.high_watermark - start) * share)
        if offset <= start:
            return None
        leader.move_start(offset)
        return offset

    def trim(self, end: int) -> None:
        """Delete the leader's records below an offset on the request of a sidecar."""
        leader = self.replicas[self.leader]
        start = max(leader.log_start, leader.log.bases()[0])
        self.before_trim([b for b in leader.batches if start < b.end and b.base < end], end)
        leader.move_start(end)

    def move(self, broker: int, rolls: Collection[int] | None) -> bool:
        """Move a replica to the broker's next log dir.

        The copy rolls where the log did, or only at those bases that are in `rolls`.

        Returns:
            False if the broker has no other log dir.
        """
        replica = self.replicas[broker]
        dirs = replica.broker.log_dirs
        if len(dirs) == 1:
            return False
        target = dirs[(dirs.index(replica.log_dir) + 1) % len(dirs)]
        replica.begin_move(target, replica.log.bases() if rolls is None else rolls)
        return True

    def _commit(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            self.topics[batch.data] = self.topic_id
            self.thrown_away.discard(batch.data)

    def committed_end(self) -> int:
        return self.committed[-1].end if self.committed else 0

    def known_from(self) -> int:
        """Return the first offset from which the leader's sidecar can know the leader epochs."""
        return self.replicas[self.leader].known_from()

    def roll(self, broker: int) -> None:
        log = self.replicas[broker].log
        if log.log_end > log.active:
            log.roll()

    def stage(self, broker: int) -> None:
        """Let retention mark the oldest closed segment for deletion, if all of it is committed."""
        self.replicas[broker].stage_oldest()

    def unlink(self, broker: int) -> None:
        """Unlink `.deleted` files that a sidecar could notice, or that are not committed."""
        replica = self.replicas[broker]
        for path in replica.marked_for_deletion():
            base = int(path.name.split(".")[0])
            if base in replica.seen or base >= replica.high_watermark:
                path.unlink()

    def checkpoint(self, broker: int) -> None:
        self.brokers[broker].checkpoint()

    def noticed(self, broker: int) -> None:
        """Note that a sidecar has listed the directory."""
        replica = self.replicas[broker]
        replica.seen.update(int(path.name.split(".")[0]) for path in replica.marked_for_deletion())
        replica.scan()

    def _advance(self) -> None:
        if len(self.in_sync) < 2:
            return
        leader = self.replicas[self.leader]
        self.high_watermark = max(
            self.high_watermark, min(self.replicas[broker].end for broker in self.in_sync)
        )
        leader.high_watermark = self.high_watermark
        done = len(self.committed)
        for batch in leader.batches[done:]:
            if batch.end <= self.high_watermark:
                self.committed.append(batch)
                self._commit([batch])

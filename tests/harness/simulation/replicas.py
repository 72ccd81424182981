"""Brokers and their partitions: appends, replication, high watermark, elections, retention.

What Kafka promises holds here: what lies below the high watermark is never lost or changed, and a
clean election picks a replica that has all of it. Replicas roll where they like, so their segments
have other bases over the same batches. An unclean election breaks the promise: what the new leader
lacks is thrown away. A topic that is deleted and created again begins anew under the same name.
"""

import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
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
"""When a simulation begins, in seconds since 1970."""


class Broker:
    """A machine with one or more log dirs, a directory for a spool, and a clock that may jump.

    `ticks` are shared by all brokers: files get the times of the order of events, so that the same
    choices give the same run.
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
        """The next moment on this machine's wall clock, in ns since 1970."""
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
    """A record batch as it lies in a log."""

    base: int
    end: int
    epoch: int
    data: bytes


@dataclass(slots=True)
class Replica:
    """A broker's copy: every batch that it ever had and has not truncated, and its files."""

    broker: Broker
    log_dir: LogDir
    log: PartitionLog
    batches: list[Batch] = field(default_factory=list)
    high_watermark: int = 0
    log_start: int = 0
    """The log start offset, where delete-records has moved it to."""
    seen: set[int] = field(default_factory=set)
    """Bases of segments that a sidecar has had time to notice since they were staged."""
    remembered: set[int] = field(default_factory=set)
    """The leader epochs that a sidecar knows to belong to this log's history."""
    remembered_from: int = 0
    """The first offset of which a sidecar that remembers them knows who wrote it."""
    epochs_lost: bool = False
    """The log start has passed the beginning of an epoch before a sidecar has read of it: nothing
    proves that what was deleted before was committed.
    """
    moved_away: list[Path] = field(default_factory=list)
    """Directories that the broker deletes after a move to another log dir."""

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
        """A later epoch begins at the log's end. Where the log start is there too, the checkpoint
        keeps no entry that connects the epoch with what was deleted.
        """
        before = self.log.epochs()[:1]
        self.log.lead(epoch)
        self.epochs_lost |= bool(before) and before != self.log.epochs()[:1] and self.log_start > 0

    def _touch(self) -> None:
        now_ns = self.broker.now_ns()
        os.utime(self.log.file(self.log.active), ns=(now_ns, now_ns))

    def truncate(self, kept: int) -> None:
        """Keep only so many batches; where retention has taken those before, too, an empty log
        begins there.
        """
        end = self.batches[kept - 1].end if kept else 0
        del self.batches[kept:]
        below_start = end < max(self.log_start, self.log.bases()[0])
        self.log.begin_at(end) if below_start else self.log.truncate(end)
        self._touch()
        self.seen = {base for base in self.seen if base < end}
        known = self.log.known_from() < end  # an empty log knows no epoch
        self.log.epoch = self.batches[-1].epoch if known else -1
        self.log_start = min(self.log_start, end)

    def create_again(self, topic_id: str) -> None:
        """The topic was deleted, and another one has its name."""
        tp = self.log.tp
        self.log.delete_topic()
        self.log = self.log_dir.create(tp.topic, tp.partition, topic_id=topic_id)
        self.batches.clear()
        self.seen.clear()
        self.high_watermark = self.log_start = 0
        self.forget()

    def look(self) -> None:
        """A sidecar reads the checkpoint: it goes on from what was read before where its first
        epoch was known then.
        """
        epochs = self.log.epochs()
        if epochs:
            first, start = epochs[0]
            known = first in self.remembered and self.remembered_from <= start
            self.remembered_from = self.remembered_from if known else start
            before = {epoch for epoch in self.remembered if known and epoch < first}
            self.remembered = before | {epoch for epoch, _ in epochs}

    def forget(self) -> None:
        """The sidecar has died: what it remembered is lost."""
        self.remembered = set()

    def known_from(self) -> int:
        """The first offset of which the sidecar can know who wrote it. It is above 0 where nobody
        has read what the log start has passed, or an empty log began anew.
        """
        epochs = self.log.epochs()
        if epochs and epochs[0][0] in self.remembered:
            return min(self.remembered_from, epochs[0][1])
        return self.log.known_from()

    def closed(self) -> list[int]:
        return [int(base) for base in self.log.bases()[:-1]]

    def marked_for_deletion(self) -> list[Path]:
        """Files that wait for their end: retention's, or what truncation left."""
        log = self.log
        return [log.path / name for name in log.names() if name.endswith(".deleted")]

    def holds(self, offset: int) -> bool:
        """The offset lies in a segment that the broker still has under its name."""
        return self.log.bases()[0] <= offset < self.end

    def stage_oldest(self) -> None:
        """The oldest closed segment gets its `.deleted` names, if all of it is committed."""
        bases = self.log.bases()
        if len(bases) > 1 and bases[1] <= self.high_watermark:
            self.log.stage(bases[0])
            self.move_start(bases[1])

    def move_start(self, offset: int) -> None:
        """The log start offset moves forwards; segments below it are deleted."""
        offset = max(self.log_start, self.log.bases()[0], offset)
        self.log_start = offset
        while len(bases := self.log.bases()) > 1 and bases[1] <= offset:
            self.log.stage(bases[0])
        self.log.start_at(offset)
        first = [epoch for epoch, _ in self.log.epochs()[:1]]
        self.epochs_lost |= not self.remembered.issuperset(first)

    def begin_move(self, target: LogDir, rolls: Collection[int]) -> None:
        """The copy in another log dir has caught up, and gets the partition's name: for a moment
        both directories have it.
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
        """What was moved gets the name of a directory that is to be deleted."""
        left, nonce = self.moved_away[-1], f"{self.broker.now_ns():032x}"
        self.moved_away[-1] = left.rename(left.with_name(f"{left.name}.{nonce}-delete"))

    def delete_moved(self) -> None:
        """Some time later the broker deletes the directories."""
        for path in self.moved_away:
            shutil.rmtree(path)
        self.moved_away.clear()


class Replicated:
    """A partition: who leads, in which epoch, who is in sync, and what is committed."""

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
        """The topic id of every batch that was ever committed, by its bytes."""
        self.thrown_away: set[bytes] = set()
        """Batches that were committed, and are in no leader's log any more."""
        self.config = TopicConfig()
        self.start_outrun = False
        """Two sidecars have begun the archive within the same request."""
        self._random = Random(f"{seed} {tp}")

    def note_start_outrun(self) -> None:
        self.start_outrun = True

    def append(self, records: int) -> None:
        leader = self.replicas[self.leader]
        values = [self._random.randbytes(8) for _ in range(records)]
        data = record_batch(leader.end, values, epoch=self.epoch)
        batch = Batch(leader.end, leader.end + records, self.epoch, data)
        leader.append(batch)
        self._advance()

    def replicate(self, broker: int) -> None:
        """A fetch: what the leader does not have goes, what it has comes."""
        if broker == self.leader:
            return
        leader, follower = self.replicas[self.leader], self.replicas[broker]
        common = 0
        for ours, theirs in zip(follower.batches, leader.batches, strict=False):
            if ours != theirs:
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
        """A follower leaves the in-sync set; two replicas stay, as `min.insync.replicas` has it."""
        if broker != self.leader and len(self.in_sync) > 2:
            self.in_sync.discard(broker)
            self._advance()

    def elect(self, broker: int) -> None:
        """A clean election; who has not fetched from the new leader yet is not in sync."""
        if broker == self.leader or broker not in self.in_sync:
            return
        self.epoch += 1
        self.leader = broker
        self.in_sync = {broker}
        leader = self.replicas[broker]
        leader.lead(self.epoch)
        leader.high_watermark = max(leader.high_watermark, self.committed_end())

    def elect_unclean(self, broker: int) -> None:
        """A replica leads that is not in sync: what it lacks is lost, acknowledged or not."""
        if broker == self.leader or broker in self.in_sync:
            return
        self.epoch += 1
        self.leader = broker
        self.in_sync = {broker}
        leader = self.replicas[broker]
        leader.lead(self.epoch)
        self.high_watermark = leader.high_watermark
        before, kept = self.committed, 0
        for ours, theirs in zip(before, leader.batches, strict=False):
            if ours != theirs:
                break
            kept += 1
        known = sum(1 for batch in leader.batches if batch.end <= leader.high_watermark)
        self.committed = leader.batches[: max(kept, known)]
        self.thrown_away.update(batch.data for batch in before)
        self._commit(self.committed)

    def create_again(self) -> None:
        """The topic is deleted, and created again under its name."""
        self.topic_id = ANOTHER_TOPIC_ID
        self.epoch = self.high_watermark = 0
        self.in_sync = set(self.replicas)
        self.committed = []
        self.thrown_away.clear()
        for replica in self.replicas.values():
            replica.create_again(self.topic_id)

    def lose_tail(self, broker: int, batches: int) -> int:
        """A machine crashes, and its broker comes back without what had not reached the disk;
        returns how many batches these are. A leader is followed by a replica that is in sync; where
        there is none, nothing is lost here: its broker has flushed in time.
        """
        replica = self.replicas[broker]
        start = max(replica.log_start, replica.log.bases()[0])
        left = sum(1 for batch in replica.batches if batch.base >= start)
        if broker == self.leader:
            others = sorted(self.in_sync - {broker})
            if not others:
                return 0
            self.elect(others[0])
        self.in_sync.discard(broker)
        lost = min(batches, left)
        if lost:
            replica.truncate(len(replica.batches) - lost)
            replica.high_watermark = min(replica.high_watermark, replica.end)
        return lost

    def delete_records(self, share: float) -> int | None:
        """An operator deletes records from the log's start, mostly up to the middle of a segment;
        returns up to where, None where there is nothing to delete.
        """
        leader = self.replicas[self.leader]
        start = max(leader.log_start, leader.log.bases()[0])
        offset = start + int((leader.high_watermark - start) * share)
        if offset <= start:
            return None
        leader.move_start(offset)
        return offset

    def move(self, broker: int, rolls: Collection[int] | None) -> bool:
        """The copy in the broker's next log dir gets the partition's name; False where there is no
        other log dir. It rolls where the log did, or at those of `rolls` alone.
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
        """The first offset of which the leader's sidecar can know who wrote it."""
        return self.replicas[self.leader].known_from()

    def roll(self, broker: int) -> None:
        log = self.replicas[broker].log
        if log.log_end > log.active:
            log.roll()

    def stage(self, broker: int) -> None:
        """Retention takes the oldest closed segment, if all of it is committed."""
        self.replicas[broker].stage_oldest()

    def unlink(self, broker: int) -> None:
        """The end of the staged segments that a sidecar has had time to see."""
        replica = self.replicas[broker]
        for path in replica.marked_for_deletion():
            base = int(path.name.split(".")[0])
            if base in replica.seen or base >= replica.high_watermark:
                path.unlink()

    def checkpoint(self, broker: int) -> None:
        self.brokers[broker].checkpoint()

    def noticed(self, broker: int) -> None:
        """A sidecar has looked at the directory."""
        replica = self.replicas[broker]
        replica.seen.update(int(path.name.split(".")[0]) for path in replica.marked_for_deletion())
        replica.look()

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

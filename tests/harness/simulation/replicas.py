"""One partition on several brokers: appends, replication, high watermark, elections, retention.

What Kafka promises holds here: what lies below the high watermark is never lost or changed, and a
clean election picks a replica that has all of it. Replicas roll where they like, so their segments
have other bases over the same batches. An unclean election breaks the promise: what the new leader
lacks is thrown away. A topic that is deleted and created again begins anew under the same name.
"""

import os
from collections.abc import Iterable
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

    log_dir: LogDir
    log: PartitionLog
    batches: list[Batch] = field(default_factory=list)
    high_watermark: int = 0
    seen: set[int] = field(default_factory=set)
    """Bases of segments that a sidecar has had time to notice since they were staged."""

    @property
    def end(self) -> int:
        return self.log.log_end

    def append(self, batch: Batch, now_ns: int) -> None:
        if self.log.epoch != batch.epoch:
            self.log.lead(batch.epoch)
        self.log.append_bytes(batch.data, batch.end - batch.base)
        os.utime(self.log.file(self.log.active), ns=(now_ns, now_ns))
        self.batches.append(batch)

    def truncate(self, kept: int, now_ns: int) -> None:
        """Keep only so many batches; where retention has taken those before, too, an empty log
        begins there.
        """
        end = self.batches[kept - 1].end if kept else 0
        del self.batches[kept:]
        below_start = end < self.log.bases()[0]
        self.log.begin_at(end) if below_start else self.log.truncate(end)
        os.utime(self.log.file(self.log.active), ns=(now_ns, now_ns))
        self.seen = {base for base in self.seen if base < end}
        known = self.batches and not below_start  # an empty log knows no epoch
        self.log.epoch = self.batches[-1].epoch if known else -1

    def create_again(self, topic_id: str) -> None:
        """The topic was deleted, and another one has its name."""
        self.log.delete_topic()
        self.log = self.log_dir.create(TP.topic, TP.partition, topic_id=topic_id)
        self.batches.clear()
        self.seen.clear()
        self.high_watermark = 0

    def closed(self) -> list[int]:
        return [int(base) for base in self.log.bases()[:-1]]

    def staged(self) -> list[Path]:
        """Files that wait for their end: retention's, or what truncation left."""
        return list(self.log.path.glob("*.deleted"))

    def holds(self, offset: int) -> bool:
        """The offset lies in a segment that the broker still has under its name."""
        return self.log.bases()[0] <= offset < self.end


class Replicated:
    """The partition: who leads, in which epoch, who is in sync, and what is committed."""

    def __init__(self, directory: Path, brokers: int, seed: int) -> None:
        self.replicas = {}
        for broker in range(1, brokers + 1):
            log_dir = LogDir(directory / f"broker-{broker}", broker_id=broker)
            self.replicas[broker] = Replica(log_dir, log_dir.create(TP.topic, TP.partition))
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
        self._random = Random(seed)
        self._ticks = 0

    def _tick(self) -> int:
        """The next moment, in ns since 1970: files get the times of the order of events, so that
        the same choices give the same run.
        """
        self._ticks += 1
        return int(WALL_START * 1e9) + self._ticks * 1000

    def append(self, records: int) -> None:
        leader = self.replicas[self.leader]
        values = [self._random.randbytes(8) for _ in range(records)]
        data = record_batch(leader.end, values, epoch=self.epoch)
        batch = Batch(leader.end, leader.end + records, self.epoch, data)
        leader.append(batch, self._tick())
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
            follower.truncate(common, self._tick())
        for batch in leader.batches[common:]:
            follower.append(batch, self._tick())
        self.in_sync.add(broker)
        self._advance()
        follower.high_watermark = min(self.high_watermark, follower.end)

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
        leader.log.lead(self.epoch)
        leader.high_watermark = max(leader.high_watermark, self.committed_end())

    def elect_unclean(self, broker: int) -> None:
        """A replica leads that is not in sync: what it lacks is lost, acknowledged or not."""
        if broker == self.leader or broker in self.in_sync:
            return
        self.epoch += 1
        self.leader = broker
        self.in_sync = {broker}
        leader = self.replicas[broker]
        leader.log.lead(self.epoch)
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

    def _commit(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            self.topics[batch.data] = self.topic_id
            self.thrown_away.discard(batch.data)

    def committed_end(self) -> int:
        return self.committed[-1].end if self.committed else 0

    def known_from(self) -> int:
        """The first offset of which the leader knows who wrote it. It is above 0 where an empty log
        began anew, behind all that its own retention had taken.
        """
        return self.replicas[self.leader].log.known_from()

    def roll(self, broker: int) -> None:
        log = self.replicas[broker].log
        if log.log_end > log.active:
            log.roll()

    def stage(self, broker: int) -> None:
        """Retention takes the oldest closed segment, if all of it is committed."""
        replica = self.replicas[broker]
        bases = replica.log.bases()
        if len(bases) > 1 and bases[1] <= replica.high_watermark:
            replica.log.stage(bases[0])

    def unlink(self, broker: int) -> None:
        """The end of the staged segments that a sidecar has had time to see."""
        replica = self.replicas[broker]
        for path in replica.staged():
            base = int(path.name.split(".")[0])
            if base in replica.seen or base >= replica.high_watermark:
                path.unlink()

    def checkpoint(self, broker: int) -> None:
        replica = self.replicas[broker]
        replica.log_dir.checkpoint_high_watermarks({TP: replica.high_watermark})
        written = self._tick()
        os.utime(replica.log_dir.path / CHECKPOINT_NAME, ns=(written, written))

    def noticed(self, broker: int) -> None:
        """A sidecar has looked at the directory."""
        replica = self.replicas[broker]
        replica.seen.update(int(path.name.split(".")[0]) for path in replica.staged())

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

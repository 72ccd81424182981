"""A model of one replicated partition (KIP-101), its archive, and the tail packs of its sidecars.

Three replicas with epoch histories, clean and unclean elections, truncation, retention, recreated
topics, and power failures that cut committed records. A sidecar beside each broker, whose cycles
stop at every step, also while other cycles of the same broker go on, and which cleans whether its
broker leads or not. At the end, some packs cannot be read. `Model.act` draws one step.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from sidetier.archive.tail.merge import (
    ZOMBIE_MS,
    ArchivedPart,
    MergedTail,
    PackedRow,
    PackRef,
    merge,
)
from sidetier.archive.tail.needed_rows import Kept, Need, joined, need_of
from sidetier.archive.tail.pack import TailRow, claim, epochs_from
from sidetier.segments.crc import crc64nvme
from sidetier.segments.epoch_history import (
    NO_EPOCHS,
    EpochHistory,
    contradiction,
    extend,
    truncate,
)
from sidetier.segments.errors import ArchiveConflictError
from sidetier.segments.offsets import BrokerId, LeaderEpoch, Offset, OffsetRange, TopicPartition

TP = TopicPartition("orders", 0)
BROKERS = 3

Choose = Callable[[int], int]
"""Draws a number from 0 up to the argument, exclusive."""
Merge = Callable[[ArchivedPart, Iterable[PackedRow], Sequence[PackRef]], MergedTail]
NeedOf = Callable[[TailRow, ArchivedPart], Need]
STEP_MS = 1000


class Batch(NamedTuple):
    """A batch of a replica's log."""

    base: int
    end: int
    epoch: int
    uid: int


@dataclass
class Replica:
    """One replica. `log` also keeps the batches that retention has deleted: they are the truth."""

    log: list[Batch] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    high_watermark: int = 0
    log_start: int = 0

    @property
    def end(self) -> int:
        return self.log[-1].end if self.log else self.log_start

    @property
    def history(self) -> EpochHistory:
        return EpochHistory(tuple((LeaderEpoch(e), Offset(s)) for e, s in self.epochs))

    def lead(self, epoch: int) -> None:
        self._assign(epoch, self.end)

    def append(self, batch: Batch) -> None:
        if not self.epochs or self.epochs[-1][0] < batch.epoch:
            self._assign(batch.epoch, batch.base)
        self.log.append(batch)

    def truncate(self, end: int) -> None:
        self.log = [batch for batch in self.log if batch.end <= end]
        self.epochs = [(epoch, start) for epoch, start in self.epochs if start < end]
        self.high_watermark = min(self.high_watermark, self.end)

    def delete_below(self, start: int) -> None:
        kept = [entry for entry in self.epochs if entry[1] > start]
        dropped = [entry for entry in self.epochs if entry[1] <= start]
        self.epochs = ([(dropped[-1][0], start)] if dropped else []) + kept
        self.log_start = start

    def _assign(self, epoch: int, start: int) -> None:
        self.epochs = [entry for entry in self.epochs if entry[1] < start] + [(epoch, start)]


@dataclass
class Topic:
    """One incarnation of the topic."""

    topic_id: str
    replicas: list[Replica]
    leader: int = 0
    epoch: int = 0
    in_sync: set[int] = field(default_factory=lambda: set(range(BROKERS)))
    fetched: dict[int, int] = field(default_factory=dict)

    @property
    def led(self) -> Replica:
        return self.replicas[self.leader]

    def advance(self) -> None:
        ends = [self.fetched.get(b, 0) for b in self.in_sync if b != self.leader]
        mark = min([self.led.end, *ends])
        self.led.high_watermark = max(self.led.high_watermark, mark)


@dataclass
class Cycle:
    """A cycle of a sidecar, at one of its steps."""

    topic: Topic
    epoch: int
    high_watermark: int
    history: EpochHistory
    rows: list[TailRow] | None = None
    is_confirmed: bool = False


@dataclass
class Sidecar:
    packs: dict[int, list[TailRow]] = field(default_factory=dict)
    stored_ms: dict[int, int] = field(default_factory=dict)
    cycles: list[Cycle] = field(default_factory=list)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    """Stored end, by topic id and leader epoch."""
    claimed: set[tuple[str, int]] = field(default_factory=set)
    number: int = 0


@dataclass
class Archive:
    topic_id: str | None = None
    log: list[Batch] = field(default_factory=list)
    epochs: EpochHistory = NO_EPOCHS
    end: int | None = None
    gaps: list[OffsetRange] = field(default_factory=list)
    moved: set[Batch] = field(default_factory=set)
    """Batches in quarantine."""

    @property
    def part(self) -> ArchivedPart:
        end = None if self.end is None else Offset(self.end)
        return ArchivedPart(end, self.epochs, self.topic_id, self.gaps)


class Model:
    """The partition, its archive and its packs."""

    def __init__(self, choose: Choose, need: NeedOf = need_of) -> None:
        self._choose = choose
        self._need_of = need
        self.now = 0
        self._uid = 0
        self._topic_of: dict[int, str] = {}
        self._topics = 0
        self.contents: dict[int, list[Batch]] = {}
        """The batches of each row, by its checksum."""
        self.topic = self._new_topic()
        self.sidecars = [Sidecar() for _ in range(BROKERS)]
        self.archive = Archive()

    def _new_topic(self) -> Topic:
        self._topics += 1
        topic = Topic(f"topic-{self._topics:016d}", [Replica() for _ in range(BROKERS)])
        topic.led.lead(0)
        return topic

    def act(self) -> None:
        """Take one step."""
        self.now += STEP_MS
        steps = (
            [self.produce] * 5
            + [self.fetch] * 5
            + [self.step_sidecar] * 14
            + [self.settle] * 5
            + [self.elect, self.elect_unclean, self.shrink] * 2
            + [self.clean, self.commit] * 4
            + [self.retention, self.rare, self.lose_power, self.wait]
        )
        steps[self._choose(len(steps))]()

    # -- the cluster -----------------------------------------------------------------------------

    def produce(self) -> None:
        led = self.topic.led
        self._uid += 1
        self._topic_of[self._uid] = self.topic.topic_id
        base = led.end
        led.append(Batch(base, base + 1 + self._choose(3), self.topic.epoch, self._uid))
        self.topic.advance()

    def fetch(self) -> None:
        topic, led = self.topic, self.topic.led
        broker = self._choose(BROKERS)
        replica = topic.replicas[broker]
        if broker == topic.leader:
            return
        common = 0
        for mine, theirs in zip(replica.log, led.log, strict=False):
            if mine != theirs:
                break
            common = mine.end
        replica.truncate(common)
        if replica.end < led.log_start:
            # `truncateFullyAndStartAt`: the rest of the log is not copied, but is the truth.
            replica.log = [batch for batch in led.log if batch.end <= led.log_start]
            replica.epochs, replica.log_start = [], led.log_start
        for batch in led.log[len(replica.log) :][: 1 + self._choose(4)]:
            replica.append(batch)
        if replica.epochs and led.log_start > replica.log_start:
            replica.delete_below(led.log_start)
        topic.fetched[broker] = replica.end
        if replica.end >= max(led.high_watermark, led.epochs[-1][1]):
            topic.in_sync.add(broker)
        topic.advance()
        replica.high_watermark = min(led.high_watermark, replica.end)

    def shrink(self) -> None:
        broker = self._choose(BROKERS)
        if broker != self.topic.leader:
            self.topic.in_sync.discard(broker)
            self.topic.advance()

    def elect(self) -> None:
        candidates = sorted(self.topic.in_sync)
        self._elect(candidates[self._choose(len(candidates))], self.topic.in_sync)

    def elect_unclean(self) -> None:
        broker = self._choose(BROKERS)
        self._elect(broker, {broker})

    def lose_power(self) -> None:
        """All replicas come back without the end of their logs, also without committed records."""
        topic = self.topic
        ends = [batch.end for batch in topic.led.log if batch.end > topic.led.log_start]
        if not ends:
            return
        end = ends[self._choose(len(ends))]
        for replica in topic.replicas:
            if replica.log_start <= end:
                replica.truncate(end)
        self._elect(topic.leader, {topic.leader})

    def wait(self) -> None:
        """So long that no cycle of before is left, and each broker knows who leads."""
        self.now += 2 * ZOMBIE_MS
        for sidecar in self.sidecars:
            sidecar.cycles.clear()

    def _elect(self, broker: int, in_sync: set[int]) -> None:
        topic = self.topic
        topic.leader, topic.in_sync = broker, set(in_sync)
        topic.epoch += 1 + self._choose(2)
        topic.fetched.clear()
        topic.led.lead(topic.epoch)
        topic.advance()

    def retention(self) -> None:
        led = self.topic.led
        ends = [b.end for b in led.log if led.log_start < b.end <= led.high_watermark]
        if ends:
            led.delete_below(ends[self._choose(len(ends))])

    def rare(self) -> None:
        """Recreate the topic, or retire the archive of an old one."""
        if self._choose(3) == 0:
            self.topic = self._new_topic()
        elif self.archive.topic_id not in {None, self.topic.topic_id}:
            self.archive = Archive(moved=self.archive.moved | set(self.archive.log))

    # -- the archive -----------------------------------------------------------------------------

    def commit(self) -> None:
        """Archive more of the leader's log; first, quarantine what has diverged."""
        archive, led, end = self.archive, self.topic.led, self.archive.end or 0
        if archive.topic_id not in {None, self.topic.topic_id}:
            return
        found = contradiction(archive.epochs, led.history, Offset(end), archive.gaps)
        if found is not None:
            end = int(found.offset)
            archive.moved |= {batch for batch in archive.log if batch.end > end}
            archive.log = [batch for batch in archive.log if batch.end <= end]
            if not archive.log:
                self.archive = Archive(moved=archive.moved)
                return
            # Retention can hide a part of the divergence: the cut is at a batch all the same.
            end = min(end, max([archive.log[-1].end, *(gap.end for gap in archive.gaps)]))
            archive.epochs = truncate(archive.epochs, Offset(end))
            archive.gaps = [gap for gap in archive.gaps if gap.end <= end]
            archive.end = end
            return
        if archive.log and not _is_prefix(archive.log, led.log):
            return  # retention hides the divergence; the sidecar has to stop
        if end < led.log_start:
            archive.gaps.append(OffsetRange(Offset(end), Offset(led.log_start)))
            end = led.log_start
        batches = [b for b in led.log if b.base >= end and b.end <= led.high_watermark]
        batches = batches[: self._choose(len(batches) + 1)]
        new_end = batches[-1].end if batches else end
        if new_end <= (archive.end or 0):
            archive.gaps = [gap for gap in archive.gaps if gap.end <= new_end]
            return
        try:
            archive.epochs = extend(
                archive.epochs,
                led.history,
                archive.end or 0,
                new_end,
                gaps=archive.gaps,
                sparse=True,
            )
        except ArchiveConflictError:
            return  # retention hides where they diverge; an operator has to decide
        archive.topic_id = self.topic.topic_id
        archive.log += batches
        archive.end = new_end

    # -- sidecars --------------------------------------------------------------------------------

    def rows(self) -> list[PackedRow]:
        """All rows of all packs."""
        return [
            PackedRow(
                PackRef(
                    BrokerId(broker),
                    number,
                    f"{broker}/{number}",
                    "etag",
                    1,
                    sidecar.stored_ms[number],
                ),
                row,
            )
            for broker, sidecar in enumerate(self.sidecars)
            for number, rows in sidecar.packs.items()
            for row in rows
        ]

    def step_sidecar(self) -> None:
        # The leader's as often as all together.
        broker = self.topic.leader if self._choose(2) else self._choose(BROKERS)
        sidecar = self.sidecars[broker]
        if not sidecar.cycles or (len(sidecar.cycles) < 3 and self._choose(4) == 0):
            self.ask(broker)
            return
        cycle = sidecar.cycles[self._choose(len(sidecar.cycles))]
        keeps = (
            self.read(broker, cycle)
            if cycle.rows is None
            else self.ask_again(broker, cycle)
            if not cycle.is_confirmed
            else self.put(broker, cycle)
        )
        if not keeps:
            sidecar.cycles.remove(cycle)

    def ask(self, broker: int) -> Cycle | None:
        topic = self.topic
        if topic.leader != broker:
            return None
        cycle = Cycle(topic, topic.epoch, topic.led.high_watermark, topic.led.history)
        self.sidecars[broker].cycles.append(cycle)
        return cycle

    def read(self, broker: int, cycle: Cycle) -> bool:
        # By the path: a recreated topic has the same one.
        sidecar, replica = self.sidecars[broker], self.topic.replicas[broker]
        if self.archive.topic_id not in {None, cycle.topic.topic_id}:
            return False  # first, the archive of the old topic must be retired
        key = cycle.topic.topic_id, cycle.epoch
        own = claim(
            TP, key[0], cycle.history, Offset(replica.log_start), Offset(cycle.high_watermark)
        )
        if key not in sidecar.ends:
            part = self.archive.part
            if part.topic_id is None:
                part = ArchivedPart(topic_id=key[0])
            merged = merge(part, [*self.rows(), PackedRow(None, own)])
            sidecar.ends[key] = int(merged.end)
        start = max(sidecar.ends[key], replica.log_start)
        cycle.rows = [] if key in sidecar.claimed else [own]
        batches = [b for b in replica.log if b.base >= start and b.end <= cycle.high_watermark]
        if batches and batches[0].base == start and batches[-1].epoch <= cycle.epoch:
            cycle.rows.append(self._row(key[0], replica, cycle.history, batches))
        return True

    def ask_again(self, broker: int, cycle: Cycle) -> bool:
        topic = self.topic
        # The broker answers by name; then the sidecar looks at the topic id again.
        cycle.is_confirmed = topic.leader == broker and topic.epoch == cycle.epoch
        return cycle.is_confirmed and topic is cycle.topic

    def put(self, broker: int, cycle: Cycle) -> bool:
        sidecar, key = self.sidecars[broker], (cycle.topic.topic_id, cycle.epoch)
        if cycle.rows:
            self._store(sidecar, cycle.rows)
            sidecar.claimed.add(key)
            sidecar.ends[key] = max(
                sidecar.ends[key], *(int(row.end) for row in cycle.rows if row.size), 0
            )
        return False

    def _store(self, sidecar: Sidecar, rows: list[TailRow]) -> None:
        sidecar.number += 1
        sidecar.packs[sidecar.number] = rows
        sidecar.stored_ms[sidecar.number] = self.now

    def clean(self) -> None:
        """The sidecar of any broker drops the rows of its own packs that other objects have, and
        copies some of the others.
        """
        broker = self._choose(BROKERS)
        sidecar, part, topic_id = self.sidecars[broker], self.archive.part, self.topic.topic_id
        if broker == self.topic.leader:
            if part.topic_id not in {None, topic_id}:
                return
            part = replace(part, topic_id=topic_id)  # its broker knows
        before = self._stored()
        kept, copied = Kept(), list[TailRow]()
        for number, rows in sorted(sidecar.packs.items(), reverse=True):
            needed = [
                row
                for row in rows
                if self._need_of(row, part) in {Need.NEEDED, Need.LOST} and kept.add(row)
            ]
            if self._choose(2):
                stored_ms = sidecar.stored_ms[number]
                copied += (
                    row._replace(first_stored_ms=row.first_stored_ms or stored_ms) for row in needed
                )
                needed = []
            sidecar.packs[number] = needed
        if copied:
            self._store(sidecar, self._joined(copied))
        sidecar.packs = {number: rows for number, rows in sidecar.packs.items() if rows}
        archived = {*self.archive.log, *self.archive.moved}
        for batch in before - self._stored():
            assert batch in archived or self._topic_of[batch.uid] != topic_id, (
                "cleaning has dropped a record that no other object has"
            )

    def _stored(self) -> set[Batch]:
        return {
            batch
            for source in self.rows()
            if source.row.size
            for batch in self.contents[source.row.crc64nvme]
        }

    def _joined(self, rows: list[TailRow]) -> list[TailRow]:
        done: list[TailRow] = []
        for row in sorted(rows, key=lambda row: (row.topic_id, row.leader_epoch, row.start)):
            both = joined(done[-1], row, 1 << 30) if done else None
            if both is None:
                done.append(row)
                continue
            content = self.contents[done[-1].crc64nvme] + self.contents[row.crc64nvme]
            size, crc = self._content(content)
            done[-1] = both._replace(size=size, crc64nvme=crc)
        return done

    def _content(self, batches: list[Batch]) -> tuple[int, int]:
        text = repr([tuple(batch) for batch in batches]).encode()
        crc = crc64nvme(text)
        self.contents[crc] = batches
        return len(text), crc

    def _live(self, rows: Iterable[PackedRow]) -> set[Batch]:
        """The batches above the archive end offset that the leader has, too."""
        known, end = set(self.topic.led.log), self.archive.end or 0
        return {
            batch
            for source in rows
            if source.row.size and source.row.topic_id == self.topic.topic_id
            for batch in self.contents[source.row.crc64nvme]
            if batch in known and batch.end > end
        }

    def _row(
        self, topic_id: str, replica: Replica, history: EpochHistory, batches: list[Batch]
    ) -> TailRow:
        size, crc = self._content(batches)
        start, end = Offset(batches[0].base), Offset(batches[-1].end)
        return TailRow(
            TP,
            topic_id,
            epochs_from(history, start),
            start,
            end,
            Offset(replica.log_start),
            end,
            batches=len(batches),
            size=size,
            crc64nvme=crc,
        )

    def settle(self) -> None:
        """Let the leader's sidecar run one cycle, so that its claim is stored."""
        broker = self.topic.leader
        cycle = self.ask(broker)
        assert cycle is not None
        if self.read(broker, cycle) and self.ask_again(broker, cycle):
            self.put(broker, cycle)
        self.sidecars[broker].cycles.remove(cycle)

    # -- the check -------------------------------------------------------------------------------

    def check(self, merge_rows: Merge) -> None:
        """Compare the merged tail with the log of the leader, whose claim is stored."""
        archive, truth = self.archive, self.topic.led.log
        part = archive.part
        if part.topic_id is None:
            part = ArchivedPart(topic_id=self.topic.topic_id)
        if part.topic_id != self.topic.topic_id:
            truth = []  # nothing is left of the old topic
        rows = self.rows()
        self._check(merge_rows(part, rows, ()), part, truth, rows, is_whole=True)
        packs = {source.pack for source in rows if source.pack is not None}
        unread = [pack for pack in sorted(packs, key=_place) if self._choose(5) == 0]
        readable = [source for source in rows if source.pack not in unread]
        merged = merge_rows(part, readable, unread)
        self._check(merged, part, truth, readable, is_whole=False)

    def _check(  # noqa: C901 - one comparison after the other
        self,
        merged: MergedTail,
        part: ArchivedPart,
        truth: list[Batch],
        rows: list[PackedRow],
        *,
        is_whole: bool,
    ) -> None:
        archive = self.archive
        reached = merged.start
        by_base = {batch.base: batch for batch in truth}
        is_ours = part.topic_id == self.topic.topic_id
        has_diverged = not _is_prefix(archive.log, truth)
        for source, start, end in merged.slices:
            assert start == reached < end, "a gap or a record twice"
            taken = [
                b for b in self.contents[source.row.crc64nvme] if start < b.end and b.base < end
            ]
            # A gap before the archive end offset can end inside a batch of another log.
            is_behind_gap = any(gap.end == start for gap in archive.gaps)
            assert taken[0].base == start or (is_behind_gap and taken[0].base < start)
            assert taken[-1].end == end, "cut inside a batch"
            for batch in taken:
                assert self._topic_of[batch.uid] == part.topic_id, "of another topic"
                if is_ours:
                    assert by_base.get(batch.base) == batch, "not in the log"
            reached = end
        assert reached == merged.end
        if not is_ours:
            return
        if has_diverged and self.topic.led.log_start < (archive.end or 0):
            assert not merged.slices, "joined to an archive that has diverged"
        if not is_whole or has_diverged or self.topic.led.log_start > (archive.end or 0):
            return
        live = self._live(rows)
        at = archive.end
        if at is None:
            at = min((batch.base for batch in live), default=int(merged.start))
        # The archive end offset can be inside a batch, as above.
        for batch in sorted(live):
            at = batch.end if batch.base <= at < batch.end else at
        assert merged.end == at, "a stored range is missing"


def _is_prefix(archived: list[Batch], log: list[Batch]) -> bool:
    known = set(log)
    return all(batch in known for batch in archived)


def _place(pack: PackRef) -> tuple[int, int]:
    return pack.broker, pack.number

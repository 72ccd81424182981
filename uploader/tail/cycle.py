"""One cycle of the tail's writer: ask, read, ask again, look again, and store what is committed.

`gates.committed_range` decides which bytes are committed; this module only obeys its order:

1. Ask the own broker for the high watermarks of all led partitions: one request.
2. Read whole batches from the stored end up to there.
3. Ask again for the partitions with data, in the same leader epochs.
4. Look again: file and topic id are those that were read.
5. Store the pack. Its create is the commit; only then the stored end moves.

A partition begins at the end of the merged tail, with its own claim: the records below are the same
in its own log. A claim is stored once the broker has answered in the new leader epoch, also if
there is no data.

At most `MAX_BYTES` are in memory: packs on their way, and the one that is being filled.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import structlog

from sidetier.archive.tail.inventory import TailContents, TailInventory
from sidetier.archive.tail.merge import ArchivedPart, MergedTail, PackedRow, PackRef, merge
from sidetier.archive.tail.pack import PackBuilder, TailRow, claim, epochs_from
from sidetier.leadership.port import LedLog, LogOffsetSource
from sidetier.segments.epoch_history import NO_EPOCHS, EpochHistory
from sidetier.segments.errors import (
    ArchiveError,
    BrokerError,
    LeadershipError,
    SegmentError,
    SegmentGoneError,
    SidetierError,
)
from sidetier.segments.offsets import BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.segments.producer_snapshot import OpenTransaction
from sidetier.uploader.clock import Clock
from sidetier.uploader.gates.committed_range import refusal
from sidetier.uploader.gates.remembered_epochs import read_local_epochs
from sidetier.uploader.state.segment import Backoff
from sidetier.uploader.tail.board import SafePartition, TailPartition
from sidetier.uploader.tail.packs import PackJob, PackNumbers, PackSender, TailPlace
from sidetier.uploader.tail.progress import Reached, SentRange, TailProgress
from sidetier.uploader.tail.ranges import Place, TailRange, find_range, open_at, read_range
from sidetier.uploader.watching.disk import log_file, topic_id_in
from sidetier.wire.log_offsets import AnsweredOffset, OffsetKind

log: Final = structlog.get_logger()
MAX_PACK_BYTES: Final = 32 << 20
"""A pack of this many bytes is complete; its last batch may exceed it."""
MAX_BYTES: Final = 64 << 20
"""Bytes of packs on their way, and of the one that is being filled."""
MAX_SENDING: Final = 4
"""Packs on their way at the same time."""
MIN_ROOM: Final = 1 << 20
"""No pack is begun for fewer bytes."""
_LONGEST_HOLD: Final = 60.0


@dataclass(slots=True)
class PartitionTail:
    """The tail of one partition in one leader epoch.

    Attributes:
        led: What the daemon knows.
        history: The epoch history of the log; it does not change within a leader epoch.
        progress: What is stored; None until the merged tail is known.
        claims: Whether the claim must still be sent.
        exact: Whether the open transactions are known from the begin on.
        place: Where the last range has ended.
        hold: After a range that was refused.
        answered_end: The high watermark that the broker has answered last.
        waiting_since: When records were found that are not stored yet, in monotonic seconds.
    """

    led: TailPartition
    history: EpochHistory = NO_EPOCHS
    progress: TailProgress | None = None
    claims: bool = True
    exact: bool = True
    place: Place | None = None
    hold: Backoff = field(default_factory=Backoff)
    answered_end: Offset = Offset(0)  # noqa: RUF009 - a number
    waiting_since: float | None = None

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return self.led.tp

    @property
    def asked(self) -> tuple[TopicPartition, LeaderEpoch]:
        """How the broker is asked for it."""
        return self.led.tp, self.led.leader_epoch


@dataclass(slots=True)
class CycleTotals:
    """Counts since the start of the process."""

    packs: int = 0
    stored_bytes: int = 0
    failed_packs: int = 0
    refused_ranges: int = 0
    claims: int = 0


class _Part(NamedTuple):
    """A range or a claim of the pack that is being filled."""

    tail: PartitionTail
    read: TailRange | None


class _Sent(NamedTuple):
    """What a pack on its way has of one partition; no range for a claim."""

    tail: PartitionTail
    progress: TailProgress
    sent: SentRange | None


@dataclass(frozen=True, slots=True)
class _Context:
    """Of a pack on its way: its group, its bytes, and what it has of each partition."""

    group: "_Group"
    size: int
    rows: tuple[TailRow, ...]
    parts: tuple[_Sent, ...]


class _Reading:
    """Reads the live packs of one store for partitions whose tail begins. `run` is for any thread.

    Attributes:
        tails: The partitions.
        contents: The packs; None before the end, and after an error.
        error: The error.
        ended: Whether it has ended.
    """

    def __init__(
        self, tails: Sequence[PartitionTail], inventory: TailInventory, numbers: PackNumbers
    ) -> None:
        self.tails = tails
        self.contents: TailContents | None = None
        self.error: Exception | None = None
        self.ended = False
        self._inventory = inventory
        self._numbers = numbers

    def run(self) -> None:
        """Read the packs, and find the next number."""
        wanted = {tail.tp for tail in self.tails}
        try:
            contents = self._inventory.read(partitions=wanted)
            self._numbers.list_again()
            self.contents = contents
        except Exception as error:  # noqa: BLE001 - the reading begins again
            self.error = error
        finally:
            self.ended = True


@dataclass(slots=True)
class _Group:
    """The packs of one store, encrypted or not."""

    numbers: PackNumbers
    packs: int = 0
    """On their way."""
    size: int = 0


class TailCycle:
    """The state of the tail's writer, and its cycle. One thread uses it.

    Args:
        source: Asks the own broker.
        place_of: Where a topic is stored.
        inventory_of: Reads the live packs of a store.
        sender: Stores packs.
        broker: This broker.
        clock: The time.
        interval: Seconds between two cycles: how long one waits for packs on their way.
        throttle: Called with the number of bytes before each reading.
        background: Runs the reading of packs on another thread.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - its ports
        self,
        source: LogOffsetSource,
        place_of: Callable[[str], TailPlace],
        inventory_of: Callable[[TailPlace], TailInventory],
        sender: PackSender,
        broker: BrokerId,
        clock: Clock,
        interval: float = 5.0,
        throttle: Callable[[int], None] = lambda _: None,
        background: Callable[[Callable[[], None]], None] = lambda work: work(),
    ) -> None:
        self._source = source
        self._place_of = place_of
        self._inventory_of = inventory_of
        self._sender = sender
        self._broker = broker
        self._clock = clock
        self._interval = interval
        self._throttle = throttle
        self._background = background
        self._readings: dict[int, _Reading] = {}
        """The readings of packs that are under way, by store."""
        self._followed: Mapping[TopicPartition, TailPartition] | None = None
        self._tails: dict[TopicPartition, PartitionTail] = {}
        self._starting: dict[TopicPartition, PartitionTail] = {}
        """Those whose begin is not known yet."""
        self._asked: list[tuple[TopicPartition, LeaderEpoch]] = []
        self._ready: list[PartitionTail] = []
        """In the order of `_asked`."""
        self._places: dict[str, TailPlace] = {}
        self._numbers: dict[int, PackNumbers] = {}
        self._groups: dict[tuple[int, bool], _Group] = {}
        self._store_holds: dict[int, Backoff] = {}
        self._safe: Mapping[TopicPartition, SafePartition] | None = None
        """None after something has changed."""
        self.totals = CycleTotals()

    # -- for its owner ----------------------------------------------------------------------------

    def run(self, led: Mapping[TopicPartition, TailPartition]) -> None:
        """Run one cycle over the led partitions.

        Raises:
            BrokerError, LeadershipError: The broker does not answer. Nothing was read.
        """
        self._take_finished()
        self._follow(led)
        self._begin_new()
        if not self._asked:
            return
        answers = self._source.offsets(OffsetKind.HIGH_WATERMARK, self._asked)
        now = self._clock.monotonic()
        active = list(self._with_work(answers, now))
        # What waits longest comes first: bytes in memory are limited.
        active.sort(key=lambda one: one[0].waiting_since or now)
        by_group: dict[int, tuple[_Group, list[tuple[PartitionTail, LedLog]]]] = {}
        for one in active:
            group = self._group(one[0].tp.topic)
            by_group.setdefault(id(group), (group, []))[1].append(one)
        # A store that does not answer comes last.
        for group, members in sorted(by_group.values(), key=lambda each: each[0].packs):
            self._store_group(group, members, now + self._interval)

    def _with_work(
        self, answers: Iterable[AnsweredOffset | SidetierError], now: float
    ) -> Iterator[tuple[PartitionTail, LedLog]]:
        """Yield the partitions with records, or a claim, to store, with the broker's answer."""
        for tail, answer in zip(self._ready, answers, strict=True):
            if not isinstance(answer, AnsweredOffset):
                continue  # it does not lead in this epoch, or not yet
            progress = tail.progress
            assert progress is not None  # noqa: S101 - it is ready
            tail.answered_end = answer.offset
            if answer.offset <= progress.stored.end:
                if tail.waiting_since is not None:
                    tail.waiting_since = self._safe = None
            elif tail.waiting_since is None:
                tail.waiting_since, self._safe = now, None
            if answer.offset <= progress.next.end and not tail.claims:
                continue
            if answer.leader_epoch == tail.led.leader_epoch and tail.hold.until <= now:
                yield tail, LedLog(answer.offset, Offset(0), answer.leader_epoch)

    def settle(self, timeout: float) -> None:
        """Wait for the packs on their way, `timeout` seconds at most."""
        deadline = self._clock.monotonic() + timeout
        self._take_finished()
        while any(group.packs for group in self._groups.values()):
            left = deadline - self._clock.monotonic()
            if left <= 0:
                return
            self._take_finished(left)

    def safe(self) -> Mapping[TopicPartition, SafePartition]:
        """Return what is safe of each led partition. The same object while nothing changes."""
        if self._safe is not None:
            return self._safe
        found = {}
        since_1970 = self._clock.wall() - self._clock.monotonic()
        for tp, tail in self._tails.items():
            stored = None if tail.progress is None else tail.progress.stored
            waits = tail.waiting_since
            found[tp] = SafePartition(
                None if stored is None else stored.end,
                -1 if stored is None else stored.newest_ms,
                None if waits is None else int((since_1970 + waits) * 1000),
                tail.hold.error,
            )
        self._safe = found
        return found

    def stores(self) -> Sequence[PackNumbers]:
        """Return the stores in use, with the numbers of this broker's packs. From any thread."""
        return list(self._numbers.values())

    def stored_end(self, tp: TopicPartition) -> Offset | None:
        """Return up to where the tail of a led partition is stored; None if it is not known."""
        tail = self._tails.get(tp)
        return None if tail is None or tail.progress is None else tail.progress.stored.end

    # -- which partitions -------------------------------------------------------------------------

    def _follow(self, led: Mapping[TopicPartition, TailPartition]) -> None:
        if led is self._followed:
            return
        self._followed, self._safe = led, None
        for tp in self._tails.keys() - led.keys():
            del self._tails[tp]
            self._starting.pop(tp, None)
        for tp, entry in led.items():
            tail = self._tails.get(tp)
            if tail is not None and _is_same_log(tail.led, entry):
                if tail.led.directory != entry.directory:
                    tail.place = None
                tail.led = entry
                if tail.progress is not None:
                    self._archived(tail, entry.archive_end)
            else:
                # Records may be waiting: where its tail ends is not known yet.
                new = PartitionTail(entry, waiting_since=self._clock.monotonic())
                self._tails[tp] = self._starting[tp] = new
        self._list_ready()

    def _archived(self, tail: PartitionTail, end: Offset) -> None:
        assert tail.progress is not None  # noqa: S101 - for mypy
        before = tail.progress.stored
        tail.progress.archived(end)
        if tail.progress.stored is not before:
            tail.place = None

    def _list_ready(self) -> None:
        self._ready = [tail for tail in self._tails.values() if tail.progress is not None]
        self._asked = [tail.asked for tail in self._ready]

    def _group(self, topic: str) -> _Group:
        place = self._place(topic)
        key = (id(place.store), place.encrypts)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(self.numbers(place))
        return group

    def _place(self, topic: str) -> TailPlace:
        place = self._places.get(topic)
        if place is None:
            place = self._places[topic] = self._place_of(topic)
        return place

    def numbers(self, place: TailPlace) -> PackNumbers:
        """Return the numbers of this broker's packs in a store."""
        numbers = self._numbers.get(id(place.store))
        if numbers is None:
            numbers = PackNumbers(place.store, place.layout, self._broker)
            self._numbers[id(place.store)] = numbers
        return numbers

    # -- where a tail begins ----------------------------------------------------------------------

    def _begin_new(self) -> None:
        """Find where the tails of new partitions begin. One reading of each store's packs."""
        if not self._starting:
            return
        now = self._clock.monotonic()
        by_store: dict[int, tuple[TailPlace, list[PartitionTail]]] = {}
        for tail in [tail for tail in self._starting.values() if tail.hold.until <= now]:
            try:
                place = self._place(tail.tp.topic)
            except SidetierError as error:
                self._refuse(tail, str(error))
            else:
                by_store.setdefault(id(place.store), (place, []))[1].append(tail)
        for place, tails in by_store.values():
            self._begin_in(place, tails, now)
        self._list_ready()

    def _begin_in(self, place: TailPlace, tails: Sequence[PartitionTail], now: float) -> None:
        """Find where the tails of one store begin. Others are stored while the packs are read."""
        for _ in range(2):  # take the result of a reading, and begin the next one
            reading = self._readings.get(id(place.store)) or self._begin_reading(place, tails, now)
            if reading is None or not reading.ended:
                return
            del self._readings[id(place.store)]
            hold = self._store_holds[id(place.store)]
            if reading.contents is None:
                hold.fail(str(reading.error), now, _LONGEST_HOLD)
                log.warning("tail.unavailable", error=str(reading.error))
                return
            hold.clear()
            for tail in reading.tails:
                if self._starting.get(tail.tp) is tail:  # it still leads in that epoch
                    self._begin(tail, reading.contents)

    def _begin_reading(
        self, place: TailPlace, tails: Iterable[PartitionTail], now: float
    ) -> "_Reading | None":
        if self._store_holds.setdefault(id(place.store), Backoff()).until > now:
            return None
        # Not before they can begin: a broker writes an epoch soon after it leads in it.
        found = [
            tail
            for tail in tails
            if self._starting.get(tail.tp) is tail
            and tail.hold.until <= now
            and self._read_history(tail)
        ]
        if not found:
            return None
        reading = _Reading(found, self._inventory_of(place), self.numbers(place))
        self._readings[id(place.store)] = reading
        self._background(reading.run)
        return reading

    def _read_history(self, tail: PartitionTail) -> bool:
        """Read the epoch history. Return whether it has the epoch in which this broker leads."""
        try:
            history = read_local_epochs(tail.led.directory)
        except SegmentGoneError:
            return False
        except (SegmentError, OSError) as error:
            self._refuse(tail, str(error))
            return False
        if not history.entries or history.entries[-1][0] != tail.led.leader_epoch:
            return False
        tail.history = history
        return True

    def _begin(self, tail: PartitionTail, contents: TailContents) -> None:
        led, rows = tail.led, contents.rows.get(tail.tp, ())
        own = claim(led.tp, led.topic_id, tail.history, Offset(0), Offset(0))
        reached = Reached(led.archive_end, None)
        try:
            # The topic id comes from the broker's own directory, so rows of another are dead.
            archived = ArchivedPart(led.archive_end, led.archived_epochs, led.topic_id)
            merged = merge(archived, [*rows, PackedRow(None, own)])
        except ArchiveError as error:
            log.warning(
                "tail.conflict", topic=led.tp.topic, partition=led.tp.partition, error=str(error)
            )
        else:
            if merged.leader_epoch is not None and merged.leader_epoch > led.leader_epoch:
                self._refuse(tail, f"leader epoch {merged.leader_epoch} has a tail already")
                return
            newest = -1 if merged.newest_ms is None else merged.newest_ms
            reached = Reached(merged.end, _open_at_end(merged), newest)
        tail.claims = not any(_proves(source.row, own) for source in rows)
        tail.progress = TailProgress(reached)
        tail.hold.clear()
        del self._starting[tail.tp]

    # -- ranges -----------------------------------------------------------------------------------

    def _store_group(  # noqa: C901 - one loop that fills packs
        self, group: _Group, members: Iterable[tuple[PartitionTail, LedLog]], deadline: float
    ) -> None:
        """Fill packs, and send each as soon as it is full."""
        room = self._room(group, deadline)
        parts: list[_Part] = []
        size = 0
        for tail, led_log in members:
            if not room:
                return  # the next cycle goes on
            if tail.claims:
                parts.append(_Part(tail, None))
            assert tail.progress is not None  # noqa: S101 - for mypy
            at, place = tail.progress.next, tail.place
            while read := self._next_range(tail, led_log, at, place, room - size):
                parts.append(_Part(tail, read))
                size += len(read.data)
                at, place = Reached(read.end, read.open), read.place
                if size < room:
                    continue
                if not self._send(group, parts):
                    return
                parts, size = [], 0
                room = self._room(group, deadline)
                # Nothing behind a range that was refused.
                if not room or tail.progress.next.end != at.end:
                    break
        if parts:
            self._send(group, parts)

    def _room(self, group: _Group, deadline: float) -> int:
        """Return how many bytes the next pack may have, and wait for some until the deadline.

        One store that hangs leaves the others their share.
        """
        share = max(1, len(self._groups))
        most, packs = MAX_BYTES // share, max(1, MAX_SENDING // share)
        self._take_finished()
        while group.packs and (group.packs >= packs or most - group.size < MIN_ROOM):
            left = deadline - self._clock.monotonic()
            if left <= 0:
                return 0
            self._take_finished(left)
        return min(MAX_PACK_BYTES, max(most - group.size, MIN_ROOM))

    def _next_range(
        self,
        tail: PartitionTail,
        led_log: LedLog,
        at: Reached,
        place: Place | None,
        max_bytes: int,
    ) -> TailRange | None:
        """Read the next range of a partition, of one segment; None if there is none now."""
        led = tail.led
        try:
            wanted = find_range(led.directory, led.topic_id, at.end, led_log, max_bytes, place)
            if wanted is None:
                return None
            known = at.open if wanted.start == at.end else None
            if known is None:
                known = open_at(led.directory, wanted.start)
                tail.exact = known is not None
            self._throttle(wanted.size)
            return read_range(led.directory, wanted, tail.history, known or ())
        except (SegmentError, OSError) as error:
            self._refuse(tail, str(error))
            return None

    def _send(self, group: _Group, parts: Sequence[_Part]) -> bool:
        """Ask again, look again, and send what is committed.

        Returns:
            Whether the broker has answered.
        """
        tails = list({id(part.tail): part.tail for part in parts}.values())
        asked = [tail.asked for tail in tails]
        try:
            starts = self._source.offsets(OffsetKind.LOG_START, asked)
            stable: Sequence[AnsweredOffset | SidetierError | None] = [None] * len(asked)
            if any(tail.claims or not tail.exact for tail in tails):
                stable = self._source.offsets(OffsetKind.LAST_STABLE, asked)
            # The last one: it proves that what was answered and read before belongs to the epoch.
            again = self._source.offsets(OffsetKind.HIGH_WATERMARK, asked)
        except (BrokerError, LeadershipError) as error:
            log.warning("tail.unconfirmed", error=str(error))
            return False
        answers = {
            id(tail): _Answers(start, last_stable, end)
            for tail, start, last_stable, end in zip(tails, starts, stable, again, strict=True)
        }
        builder, sent = PackBuilder(), list[_Sent]()
        refused: set[int] = set()
        for part in parts:
            tail = part.tail
            if id(tail) in refused:
                continue
            reason = self._add(builder, sent, part, answers[id(tail)])
            if reason is not None:
                refused.add(id(tail))
                self._refuse(tail, reason)
        if builder.rows:
            group.packs, group.size = group.packs + 1, group.size + builder.size
            context = _Context(group, builder.size, tuple(builder.rows), tuple(sent))
            self._sender.send(PackJob(group.numbers, builder.body(), context))
        return True

    def _add(
        self, builder: PackBuilder, sent: list[_Sent], part: _Part, answers: "_Answers"
    ) -> str | None:
        """Add a part to a pack, or return why it is not committed."""
        tail, read = part.tail, part.read
        led, progress = tail.led, tail.progress
        assert progress is not None  # noqa: S101 - for mypy
        log_start = answers.log_start
        if not isinstance(log_start, AnsweredOffset):
            return f"the broker does not answer for the log start: {log_start}"
        again = answers.led_log()
        if read is None:
            if not isinstance(again, LedLog) or again.leader_epoch != led.leader_epoch:
                return f"the broker does not confirm leader epoch {led.leader_epoch}: {again}"
            if topic_id_in(led.directory) != led.topic_id:
                return f"{led.directory} belongs to another topic than {led.topic_id}"
            stable = answers.last_stable(Offset(0))
            builder.add(claim(led.tp, led.topic_id, tail.history, log_start.offset, stable))
            sent.append(_Sent(tail, progress, None))
            tail.claims = False
            return None
        file = log_file(led.directory, read.wanted.segment)
        reason = refusal(read.wanted, read.runs, read.end, again, file)
        if reason is not None:
            return reason
        row = TailRow(
            led.tp,
            led.topic_id,
            epochs_from(tail.history, read.wanted.start),
            read.wanted.start,
            read.end,
            log_start.offset,
            _last_stable(read) if tail.exact else answers.last_stable(read.end),
            read.batches,
            read.max_timestamp,
            read.open,
            read.aborted,
        )
        builder.add(row, read.data)
        newest = max(progress.next.newest_ms, read.max_timestamp)
        mark = progress.send(Reached(read.end, read.open, newest))
        sent.append(_Sent(tail, progress, mark))
        tail.place = read.place
        tail.hold.clear()
        return None

    def _refuse(self, tail: PartitionTail, reason: str) -> None:
        """Note that nothing of a partition is stored now. It is read anew, from its offset on."""
        if tail.hold.error != reason:
            log.warning(
                "tail.refused", topic=tail.tp.topic, partition=tail.tp.partition, reason=reason
            )
        self.totals.refused_ranges += 1
        self._safe = None
        tail.place = None
        tail.hold.fail(reason, self._clock.monotonic(), _LONGEST_HOLD)

    # -- packs on their way -----------------------------------------------------------------------

    def _take_finished(self, timeout: float = 0.0) -> None:
        for job in self._sender.finished(timeout):
            self._safe = None
            context = job.context
            assert isinstance(context, _Context)  # noqa: S101 - for mypy
            context.group.packs -= 1
            context.group.size -= context.size
            if isinstance(job.result, PackRef):
                self._stored(job.result, context)
            else:
                self._lost(job.result, context)

    def _stored(self, pack: PackRef, context: _Context) -> None:
        self.totals.packs += 1
        self.totals.stored_bytes += pack.size
        for part in context.parts:
            if part.sent is None:
                self.totals.claims += 1
            else:
                part.progress.succeeded(part.sent)
        for tail, progress, _ in context.parts:
            if self._tails.get(tail.tp) is tail:
                self._archived(tail, tail.led.archive_end)
                if progress.stored.end >= tail.answered_end:
                    tail.waiting_since = None

    def _lost(self, error: Exception | None, context: _Context) -> None:
        """The pack is not stored, or its answer is lost: the same ranges are read again."""
        self.totals.failed_packs += 1
        log.warning("tail.pack_failed", rows=len(context.rows), error=str(error))
        for part in context.parts:
            if part.sent is None:
                part.tail.claims = True
            else:
                part.progress.failed(part.sent)
            part.tail.place = None


class _Answers(NamedTuple):
    """The second answers of the broker for one partition."""

    log_start: AnsweredOffset | SidetierError
    stable: AnsweredOffset | SidetierError | None
    high_watermark: AnsweredOffset | SidetierError

    def led_log(self) -> LedLog | SidetierError:
        """Return the second answer in the form of the rule."""
        answer = self.high_watermark
        if not isinstance(answer, AnsweredOffset):
            return answer
        return LedLog(answer.offset, Offset(0), answer.leader_epoch)

    def last_stable(self, otherwise: Offset) -> Offset:
        """Return the broker's last stable offset, if it was asked for and has answered."""
        return self.stable.offset if isinstance(self.stable, AnsweredOffset) else otherwise


def _is_same_log(known: TailPartition, entry: TailPartition) -> bool:
    return (known.leader_epoch, known.topic_id) == (entry.leader_epoch, entry.topic_id)


def _proves(row: TailRow, own: TailRow) -> bool:
    """Whether a stored row shows all that the claim shows."""
    return (row.topic_id, row.epochs) == (own.topic_id, own.epochs)


def _open_at_end(merged: MergedTail) -> tuple[OpenTransaction, ...] | None:
    """Return the transactions that are open at the end of a merged tail; None if unknown."""
    if not merged.slices or merged.slices[-1].end != merged.slices[-1].source.row.end:
        return None
    return merged.slices[-1].source.row.open


def _last_stable(read: TailRange) -> Offset:
    """Return the last stable offset of a log that ends with this range."""
    return min((each.first_offset for each in read.open), default=read.end)

"""One cycle of the tail's writer: ask, read, ask again, look again, and store what is committed.

`gates.committed_range` decides which bytes are committed, and `reader` obeys its order:

1. Ask the own broker for the high watermarks of all led partitions: one request.
2. Read whole batches from the stored end up to there.
3. Ask again for the partitions with data, in the same leader epochs.
4. Look again: file and topic id are those that were read.
5. Store the pack. Its create is the commit; only then the stored end moves.

A partition begins at the end of the merged tail (`begin`). A claim is stored once the broker has
answered in the new leader epoch, also if there is no data.

An error of one partition holds that partition alone. What is known of a partition changes only once
its pack is handed over.

At most `MAX_BYTES` are in memory: packs in flight, and the one that is being filled.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import structlog

from sidetier.archive.tail.inventory import TailInventory
from sidetier.archive.tail.merge import PackRef
from sidetier.archive.tail.pack import FULL_INDEX_BYTES, PackBuilder, TailRow
from sidetier.leadership.port import LogOffsetSource
from sidetier.segments.errors import (
    BrokerError,
    LeadershipError,
    SegmentError,
    SidetierError,
)
from sidetier.segments.offsets import BrokerId, Offset, TopicPartition
from sidetier.segments.producer_snapshot import OpenTransaction
from sidetier.uploader.clock import Clock
from sidetier.uploader.gates.committed_range import NotCommittedError
from sidetier.uploader.sending.throttle import AbandonedError
from sidetier.uploader.state.segment import Backoff
from sidetier.uploader.tail.begin import TailBegin, stable_end
from sidetier.uploader.tail.board import SafePartition, TailPartition
from sidetier.uploader.tail.led_tail import LedTail, SentPart
from sidetier.uploader.tail.packs import (
    PackJob,
    PackNumbers,
    PackSender,
    TailPlace,
    first_number,
)
from sidetier.uploader.tail.progress import Reached, SentRange
from sidetier.uploader.tail.ranges import TailRange, open_at
from sidetier.uploader.tail.reader import Candidate, CommittedReader
from sidetier.uploader.tail.readings import GapsOf, PackReadings
from sidetier.uploader.unexpected import describe
from sidetier.uploader.watching.disk import BatchPosition
from sidetier.wire.log_offsets import AnsweredOffset, OffsetKind

log: Final = structlog.get_logger()
MAX_PACK_BYTES: Final = 32 << 20
"""A pack of this many bytes is complete; its last batch may exceed it."""
MAX_PACK_ROWS: Final = 10_000
MAX_BYTES: Final = 64 << 20
"""Bytes of packs in flight, and of the one that is being filled."""
MAX_SENDING: Final = 4
"""Packs in flight, as long as there are not more groups."""
MIN_ROOM: Final = 1 << 20
"""No pack is begun for fewer bytes. After a failed pack, the next one has no more."""
LOG_START_SECONDS: Final = 600.0
"""How often partitions without new records are asked for their log start offsets."""
LOOK_AGAIN_SECONDS: Final = 600.0
"""How often packs that cannot be read are tried again, where they leave readers no tail."""
_LONGEST_HOLD: Final = 60.0
_LONGEST_STORE_HOLD: Final = 30.0


@dataclass(slots=True)
class CycleTotals:
    """Counts since the start of the process."""

    packs: int = 0
    stored_bytes: int = 0
    failed_packs: int = 0
    refused_ranges: int = 0
    claims: int = 0


class _Part(NamedTuple):
    """A range or a claim of the pack that is being filled, with what is reached after it."""

    tail: LedTail
    candidate: Candidate
    reached: Reached | None


@dataclass(frozen=True, slots=True)
class _Context:
    """Of a pack in flight: its group, its bytes, and what it has of each partition."""

    group: "_Group"
    size: int
    sent: tuple[SentPart, ...]


@dataclass(slots=True)
class _Group:
    """The packs of one store, encrypted or not.

    Attributes:
        numbers: Names the packs.
        packs: Number of packs in flight.
        size: Their bytes.
        hold: After a pack that failed. Until one is stored, small packs are sent one by one.
    """

    numbers: PackNumbers
    packs: int = 0
    size: int = 0
    hold: Backoff = field(default_factory=Backoff)


class TailCycle:
    """The state of the tail's writer, and its cycle. One thread uses it.

    Args:
        source: Asks the own broker.
        place_of: Where a topic is stored.
        inventory_of: Reads the live packs of a store.
        sender: Stores packs.
        broker: This broker.
        clock: The time.
        interval: Seconds between two cycles: the longest wait for packs in flight.
        throttle: Called with the number of bytes before each reading.
        background: Runs the reading of packs on another thread.
        gaps_of: Reads the recorded gaps of an archive.
        unexpected: Called with the kind of an error that no code expects.
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
        gaps_of: GapsOf = lambda *_: (),
        unexpected: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._reader = CommittedReader(source, throttle)
        self._place_of = place_of
        self._sender = sender
        self._broker = broker
        self._clock = clock
        self._interval = interval
        self._unexpected = unexpected
        self._unused_numbers = itertools.count(first_number(clock.wall()))
        self._readings = PackReadings(inventory_of, gaps_of, background, clock)
        self._followed: Mapping[TopicPartition, TailPartition] | None = None
        self._tails: dict[TopicPartition, LedTail] = {}
        self._starting: dict[TopicPartition, LedTail] = {}
        """Those whose begin is not known yet."""
        self._doubted: dict[TopicPartition, LedTail] = {}
        """Those of which readers join nothing, because of a pack that cannot be read."""
        self._inexact: dict[TopicPartition, LedTail] = {}
        """Those with transactions that no snapshot shows: their last stable offset is asked for."""
        self._asked: list[TailPartition] = []
        """All, in the order of `_tails`."""
        self._log_starts_at = clock.monotonic() + LOG_START_SECONDS
        self._places: dict[str, TailPlace] = {}
        self._numbers: dict[int, PackNumbers] = {}
        self._groups: dict[tuple[int, bool], _Group] = {}
        self._sharing = 1
        """Number of groups that share memory and packs in flight."""
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
        self._look_again()
        if not self._tails:
            return
        try:
            self._ask()
        except SidetierError:
            for tail in self._tails.values():
                self._note_silence(tail)
            raise
        now = self._clock.monotonic()
        self._begin_new(now)
        by_group: dict[int, tuple[_Group, list[LedTail]]] = {}
        # What waits longest comes first: bytes in memory are limited.
        for tail in sorted(self._with_work(now), key=lambda tail: tail.waiting_since or now):
            group = self._group(tail.tp.topic)
            by_group.setdefault(id(group), (group, []))[1].append(tail)
        in_flight = {id(group) for group in self._groups.values() if group.packs}
        self._sharing = max(1, len(in_flight | by_group.keys()))
        # A store that does not answer comes last.
        for group, members in sorted(by_group.values(), key=lambda each: each[0].packs):
            if group.hold.until <= now:
                self._store_group(group, members, now + self._interval)

    def settle(self, timeout: float) -> None:
        """Wait for the packs in flight, `timeout` seconds at most."""
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
            progress, waits = tail.progress, tail.waiting_since
            found[tp] = SafePartition(
                None if progress is None else progress.safe_up_to,
                -1 if progress is None else progress.stored.newest_ms,
                None if waits is None else int((since_1970 + waits) * 1000),
                tail.hold.error,
                None if tail.answer is None else tail.answer.offset,
            )
        self._safe = found
        return found

    def stores(self) -> Sequence[PackNumbers]:
        """Return the stores in use. From any thread."""
        return list(self._numbers.values())

    # -- what the broker answers ------------------------------------------------------------------

    def _ask(self) -> None:
        inexact = list(self._inexact.values())
        if inexact:
            # First: every transaction below it is decided below the high watermark, too.
            stable = self._reader.ask(OffsetKind.LAST_STABLE, [tail.led for tail in inexact])
            for tail, answer in zip(inexact, stable, strict=True):
                tail.last_stable = answer.offset if isinstance(answer, AnsweredOffset) else None
        ends = self._reader.ask(OffsetKind.HIGH_WATERMARK, self._asked)
        now = self._clock.monotonic()
        for tail, answer in zip(self._tails.values(), ends, strict=True):
            if isinstance(answer, AnsweredOffset) and answer.leader_epoch == tail.led.leader_epoch:
                if tail.waiting_since is not None and tail.answer != answer:
                    self._safe = None
                tail.answer, tail.answered_at = answer, now
                self._note_answer(tail, now)
            else:  # it does not lead in this epoch, or not yet
                self._note_silence(tail)
        if now >= self._log_starts_at:
            self._ask_log_starts()
            self._log_starts_at = now + LOG_START_SECONDS

    def _note_answer(self, tail: LedTail, now: float) -> None:
        if tail.progress is None or tail.answer is None:
            return
        if tail.all_is_safe:
            if tail.waiting_since is not None:
                tail.waiting_since = self._safe = None
        elif tail.waiting_since is None:
            tail.waiting_since, self._safe = now, None

    def _note_silence(self, tail: LedTail) -> None:
        """Note that the broker has not answered for a partition. Records may be waiting."""
        silent = self._clock.monotonic() - tail.answered_at
        if tail.answer is not None:
            tail.answer = self._safe = None
        if tail.waiting_since is None and silent > self._interval:
            tail.waiting_since, self._safe = tail.answered_at, None

    def _ask_log_starts(self) -> None:
        """Claim again where DeleteRecords has moved the log start above what the packs show."""
        ready = [tail for tail in self._tails.values() if tail.progress is not None]
        starts = self._reader.ask(OffsetKind.LOG_START, [tail.led for tail in ready])
        for tail, answer in zip(ready, starts, strict=True):
            if isinstance(answer, AnsweredOffset):
                known = max(tail.log_start, tail.led.archive_end)
                tail.claims = tail.claims or answer.offset > known

    def _with_work(self, now: float) -> Iterator[LedTail]:
        """Yield the partitions with records, or a claim, to store."""
        for tail in self._tails.values():
            if tail.answer is None or tail.hold.until > now:
                continue
            if tail.progress is None:
                has_records, may_claim = False, tail.is_late
            else:
                has_records, may_claim = tail.answer.offset > tail.progress.next.end, True
            if has_records or (tail.claims and may_claim):
                yield tail

    # -- which partitions -------------------------------------------------------------------------

    def _follow(self, led: Mapping[TopicPartition, TailPartition]) -> None:
        if led is self._followed:
            return
        self._followed, self._safe = led, None
        now = self._clock.monotonic()
        for tp in self._tails.keys() - led.keys():
            self._drop(tp)
        for tp, entry in led.items():
            tail = self._tails.get(tp)
            if tail is None or not tail.follow(entry):
                self._anew(entry, now)
        self._asked = [tail.led for tail in self._tails.values()]

    def _drop(self, tp: TopicPartition) -> None:
        for known in (self._tails, self._starting, self._inexact, self._doubted):
            known.pop(tp, None)

    def _anew(self, entry: TailPartition, now: float) -> None:
        """Begin a tail. Records may be waiting: where it ends is not known yet."""
        old = self._tails.get(entry.tp)
        since = None if old is None else old.waiting_since
        self._drop(entry.tp)
        new = LedTail(entry, answered_at=now, waiting_since=now if since is None else since)
        self._tails[entry.tp] = self._starting[entry.tp] = new

    def _look_again(self) -> None:
        """Begin the tails anew of which readers joined nothing, because of an unread pack."""
        now = self._clock.monotonic()
        due = [
            tail
            for tail in self._doubted.values()
            if tail.looks_again_at is not None and tail.looks_again_at <= now
        ]
        for tail in due:
            self._anew(tail.led, now)
        if due:
            self._safe, self._asked = None, [tail.led for tail in self._tails.values()]

    def _group(self, topic: str) -> _Group:
        place = self._place(topic)
        key = (id(place.store), place.encrypts)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(self._numbers_in(place))
        return group

    def _place(self, topic: str) -> TailPlace:
        place = self._places.get(topic)
        if place is None:
            place = self._places[topic] = self._place_of(topic)
            self._numbers_in(place)
        return place

    def _numbers_in(self, place: TailPlace) -> PackNumbers:
        numbers = self._numbers.get(id(place.store))
        if numbers is None:
            numbers = PackNumbers(place.store, place.layout, self._broker, self._unused_numbers)
            self._numbers[id(place.store)] = numbers
        return numbers

    # -- where a tail begins ----------------------------------------------------------------------

    def _begin_new(self, now: float) -> None:
        """Find where the tails of new partitions begin. One reading of each store's packs."""
        by_store: dict[int, tuple[TailPlace, list[LedTail]]] = {}
        for tail in [tail for tail in self._starting.values() if tail.hold.until <= now]:
            try:
                place = self._place(tail.tp.topic)
            except SidetierError as error:
                self._refuse(tail, str(error))
            else:
                by_store.setdefault(id(place.store), (place, []))[1].append(tail)
        for place, tails in by_store.values():
            for tail, begin in self._readings.take(place, tails):
                if isinstance(begin, TailBegin):
                    tail.begin = begin
                else:
                    self._failed(tail, begin)
        for tail in list(self._starting.values()):
            self._begin(tail, now)

    def _begin(self, tail: LedTail, now: float) -> None:
        """Begin once the packs were read and the broker has answered."""
        if tail.begin_now(now + LOOK_AGAIN_SECONDS):
            self._safe = None
            if tail.looks_again_at is not None:
                self._doubted[tail.tp] = tail
            self._note_answer(tail, now)
            del self._starting[tail.tp]

    # -- ranges -----------------------------------------------------------------------------------

    def _store_group(  # noqa: C901 - one loop that fills packs
        self, group: _Group, members: Iterable[LedTail], deadline: float
    ) -> None:
        """Fill packs, and send each as soon as it is full."""
        parts: list[_Part] = []
        size, in_index, room = 0, 0, self._room(group, deadline)
        for tail in members:
            if not room:
                return  # the next cycle goes on
            if tail.claims:
                parts.append(_Part(tail, Candidate(tail.led, tail.history), None))
                in_index += parts[-1].candidate.index_bytes
            at = None if tail.progress is None else tail.progress.next
            position = tail.position
            while True:
                is_full = len(parts) >= MAX_PACK_ROWS or in_index >= FULL_INDEX_BYTES
                if size >= room or is_full:
                    if not self._send(group, parts):
                        return
                    parts, size, in_index, room = [], 0, 0, self._room(group, deadline)
                    # Nothing behind a range that was refused.
                    if not room or (tail.progress is not None and tail.progress.next != at):
                        break
                if at is None:
                    break
                part = self._next_range(tail, at, position, room - size)
                if part is None:
                    break
                parts.append(part)
                in_index += part.candidate.index_bytes
                read, at = part.candidate.read, part.reached
                assert read is not None  # noqa: S101 - for mypy
                size, position = size + len(read.data), read.wanted.behind
        if parts:
            self._send(group, parts)

    def _room(self, group: _Group, deadline: float) -> int:
        """Return how many bytes the next pack may have, and wait for some until the deadline.

        One store that hangs leaves the others their share.
        """
        max_bytes, max_packs = MAX_BYTES // self._sharing, max(1, MAX_SENDING // self._sharing)
        self._take_finished()
        while group.packs:
            if group.hold.failures:
                max_packs = 1
            if group.packs < max_packs and max_bytes - group.size >= MIN_ROOM:
                break
            left = deadline - self._clock.monotonic()
            if left <= 0:
                return 0
            self._take_finished(left)
        if group.hold.until > self._clock.monotonic():
            return 0
        if group.hold.failures:
            return MIN_ROOM
        return min(MAX_PACK_BYTES, max(max_bytes - group.size, MIN_ROOM))

    def _next_range(
        self, tail: LedTail, at: Reached, position: BatchPosition | None, max_bytes: int
    ) -> _Part | None:
        """Read the next range of a partition, of one segment; None if there is none now."""
        answer = tail.answer
        assert answer is not None  # noqa: S101 - it has work
        try:
            read = self._reader.read(
                tail.led,
                tail.history,
                answer,
                at.end,
                max_bytes,
                partial(self._open_before, tail, at),
                position,
            )
        except AbandonedError:
            raise
        except Exception as error:  # noqa: BLE001 - it holds this partition
            self._failed(tail, error)
            return None
        if read is None:
            return None
        known, stable = self._transactions(tail, read, answer.offset)
        newest = max(at.newest_ms, read.max_timestamp)
        candidate = Candidate(tail.led, tail.history, read, stable)
        return _Part(tail, candidate, Reached(read.end, known, newest))

    def _open_before(
        self, tail: LedTail, at: Reached, start: Offset
    ) -> tuple[OpenTransaction, ...] | None:
        """Return the transactions that are open at an offset; None before the broker was asked for
        the last stable offset of a log without a snapshot.
        """
        known = at.open if start == at.end else None
        if known is None:
            known = open_at(tail.led.directory, start)
        if known is None:
            self._inexact[tail.tp] = tail
            return None if tail.last_stable is None else ()
        self._inexact.pop(tail.tp, None)
        tail.last_stable = None
        return known

    def _transactions(
        self, tail: LedTail, read: TailRange, high_watermark: Offset
    ) -> tuple[tuple[OpenTransaction, ...] | None, Offset]:
        """Return the transactions that are open after a range, None if there may be more, and the
        last stable offset.
        """
        stable = tail.last_stable
        if stable is None or tail.tp not in self._inexact:
            return read.open, stable_end(read.open, read.end)
        if read.end < high_watermark:
            # The markers of what is decided below the broker's offset may follow behind the range.
            return None, Offset(0)
        if stable >= read.wanted.start:
            return read.open, stable_end(read.open, read.end)  # none has begun below the range
        return None, stable

    def _send(self, group: _Group, parts: Sequence[_Part]) -> bool:
        """Ask again, look again, and send what is committed.

        Returns:
            Whether the broker has answered.
        """
        try:
            rows = self._reader.confirm([part.candidate for part in parts])
        except (BrokerError, LeadershipError) as error:
            log.warning("tail.unconfirmed", error=str(error))
            return False
        builder, sent = PackBuilder(), list[SentPart]()
        refused: dict[TopicPartition, tuple[LedTail, str]] = {}
        for part, row in zip(parts, rows, strict=True):
            if part.tail.tp in refused:
                continue
            try:
                sent.append(_added(builder, part, row))
            except (SegmentError, ValueError) as error:
                refused[part.tail.tp] = part.tail, str(error)
        if sent:
            context = _Context(group, builder.size, tuple(sent))
            self._sender.send(PackJob(group.numbers, builder.body(), context))
            # Handed over. Nothing is noted if an error comes before this.
            group.packs, group.size = group.packs + 1, group.size + builder.size
            now = self._clock.monotonic()
            for each in sent:
                each.note(now)
        for tail, reason in refused.values():
            self._refuse(tail, reason)
        return True

    def _failed(self, tail: LedTail, error: Exception) -> None:
        """Hold a partition after any error."""
        if isinstance(error, SidetierError | OSError):
            self._refuse(tail, str(error))
            return
        self._unexpected(type(error).__name__)
        if tail.hold.error != describe(error):
            log.error("tail.unexpected_error", task=str(tail.tp), exc_info=error)
        self._refuse(tail, describe(error))

    def _refuse(self, tail: LedTail, reason: str) -> None:
        """Note that nothing of a partition is stored now. It is read anew, from its offset on."""
        if tail.hold.error != reason:
            log.warning(
                "tail.refused", topic=tail.tp.topic, partition=tail.tp.partition, reason=reason
            )
        self.totals.refused_ranges += 1
        self._safe = None
        tail.position = None
        tail.hold.fail(reason, self._clock.monotonic(), _LONGEST_HOLD)

    # -- packs in flight --------------------------------------------------------------------------

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
            for tail in {id(each.tail): each.tail for each in context.sent}.values():
                tail.archived()

    def _stored(self, pack: PackRef, context: _Context) -> None:
        self.totals.packs += 1
        self.totals.stored_bytes += pack.size
        context.group.hold.clear()
        for each in context.sent:
            self.totals.claims += each.sent is None
            each.stored()

    def _lost(self, error: Exception | None, context: _Context) -> None:
        """The pack is not stored, or its answer is lost: the same ranges are read again."""
        self.totals.failed_packs += 1
        log.warning("tail.pack_failed", rows=len(context.sent), error=str(error))
        now = self._clock.monotonic()
        if context.group.hold.until <= now:  # of packs that fail together, one counts
            context.group.hold.fail(str(error), now, _LONGEST_STORE_HOLD)
        for each in context.sent:
            each.lost()


def _added(builder: PackBuilder, part: _Part, row: TailRow | str) -> SentPart:
    """Add a part to a pack. Nothing is added if an error is raised.

    Raises:
        NotCommittedError: It is not committed.
        ValueError: The row contradicts itself.
    """
    if isinstance(row, str):
        raise NotCommittedError(row)
    read, progress = part.candidate.read, part.tail.progress
    if read is None or part.reached is None:
        return SentPart(part.tail, builder.add(row), None, None, None)
    row = builder.add(row, read.data)
    sent = SentRange(read.wanted.start, part.reached)
    return SentPart(part.tail, row, progress, sent, read.wanted.behind)

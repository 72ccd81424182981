"""State machine of one partition that is read. No I/O, no threads, no clock.

Two kinds of threads carry out the actions of the machine, and report the results:

- A fetch thread calls `next_action`, makes the request without the lock, and reports it by
  `opened`, `snapshot_taken` or `range_fetched`.
- The thread that takes records calls `next_work`, scans or decodes without the lock, and reports it
  by `range_decoded` or `records_decoded`.

Both ask, because the memory budget and the other partitions decide when a partition may go on. The
owner holds one lock around every method. Only the `Decoder` is used without the lock: by the thread
that takes records, between `next_work` and its report.

A partition moves through the stages in this order::

    seek ──> OPENING ──opened──> READING ──range after range──> end of the archive ──> OPENING
                │                   │ the segment ends too early, or is damaged
                │                   └──> STUCK ──another segment has the offset──> READING
                └── gap, or an error that repeats ──> STOPPED ──seek, resume──> OPENING
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from sidetier.archive.errors import ArchiveReplacedError, DamagedArchiveError
from sidetier.archive.locate import SegmentPosition
from sidetier.archive.objects.log_check import cut_at
from sidetier.archive.objects.segment import StoredLog, Version
from sidetier.archive.partition_archive import ArchiveSnapshot
from sidetier.archive.reader.decoder import DecodedRecords, Decoder, FeedResult
from sidetier.archive.reader.memory import MemoryBudget
from sidetier.archive.reader.opening import (
    AtEnd,
    Bound,
    Halted,
    Opened,
    Opener,
    Opening,
    Stuck,
    Target,
)
from sidetier.archive.reader.results import Failed, Gap, ReachedEnd, Records, Taken
from sidetier.archive.reader.settings import IsolationLevel, ReaderSettings
from sidetier.archive.reader.time_search import FoundRecord
from sidetier.archive.reader.transactions import KnownTransactions
from sidetier.segments.arrow import Buffer
from sidetier.segments.errors import (
    BatchTooLargeError,
    ObjectNotFoundError,
    PreconditionFailedError,
    SidetierError,
)
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

if TYPE_CHECKING:
    from sidetier.archive.view import ArchiveView

MIN_RANGE: Final = 64 * 1024
MAX_CONCURRENT_RANGES: Final = 4
"""Maximum number of concurrent range requests of one partition."""
_FAILED_SNAPSHOT_AGE: Final = 1.0
"""Seconds. A snapshot that the store did not answer counts as taken, so that it is not asked for
again at once; it counts as this old.
"""


class Stage(Enum):
    """The event that a partition waits for."""

    OPENING = auto()
    """The position of its offset in the store, which is looked up once `due` has come."""
    READING = auto()
    """Its ranges."""
    STUCK = auto()
    """Another segment that covers its offset, or the reason why the offset is missing."""
    STOPPED = auto()
    """A call of `seek` or `resume`, after a gap or a permanent error."""


@dataclass(slots=True, eq=False)
class Range:
    """A requested range of a `.log`. `data` or `error` is set once the request has ended.

    `was_awaited` is True if the thread that takes records had to wait for it.
    """

    log: StoredLog
    start: int
    end: int
    data: Buffer | None = None
    error: SidetierError | None = None
    dropped: bool = False
    was_awaited: bool = False

    @property
    def size(self) -> int:
        """Requested size, in bytes."""
        return self.end - self.start

    @property
    def has_come(self) -> bool:
        """Whether the request has ended."""
        return self.data is not None or self.error is not None

    @property
    def is_last(self) -> bool:
        """Whether the range reaches the end of the `.log`."""
        return self.end >= self.log.size


# -- actions of the fetch threads ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Open:
    """Find the position of the target, in a snapshot that is at most `max_age` seconds old."""

    ticket: int
    target: Target
    max_age: float


@dataclass(frozen=True, slots=True)
class OpenElsewhere:
    """Find another segment that covers the missing offset."""

    ticket: int
    stuck: Stuck


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Compare the known state of the archive with the store."""

    max_age: float


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read a range."""

    range: Range


Action = Open | OpenElsewhere | TakeSnapshot | Fetch

# -- work of the thread that takes records ---------------------------------------------------------
# Not frozen: `DecodeRecords` is created once for each call of `poll`.


@dataclass(slots=True, eq=False)
class DecodeRange:
    """Scan a range that has come. `held` is its size in the budget, 0 once given back."""

    decoder: Decoder
    range: Range
    held: int

    def run(self) -> FeedResult | None:
        """Return what the decoder needs next; None if the range could not be fetched."""
        fetched = self.range
        if fetched.error is not None:
            return None
        data = fetched.data or b""
        # The range was requested within the listed size, so the object is shorter than its row.
        if len(data) < fetched.size:
            stored = fetched.start + len(data)
            return self.decoder.stop_here(cut_at(fetched.log.key, stored, fetched.log.size))
        return self.decoder.feed(data, is_last=fetched.is_last)


@dataclass(slots=True, eq=False)
class DecodeRecords:
    """Decode records, or return decoded ones. `stuck` is `decoder.stuck` before, and `position`
    the partition's position before.
    """

    decoder: Decoder
    stuck: Stuck | None
    position: Offset

    def run(self, most: int) -> DecodedRecords | BatchTooLargeError | None:
        """Return up to `most` records, None if there are none, or the error of the next batch."""
        try:
            return self.decoder.next_records(most)
        except BatchTooLargeError as error:
            return error


class PartitionReader:
    """Reads one partition from an offset on.

    Args:
        tp: The partition.
        opener: Makes the requests of the actions. The machine itself does not call it.
        settings: The reader's settings.
        budget: The memory budget of all partitions.
        bound: End of the wanted records; None if there is no end.

    Attributes:
        position: The next offset that the reader returns.
        due: Time before which nothing is requested, by the reader's clock.
        served: Number of the last action that a fetch thread took from this partition, among those
            of all partitions. The fetch threads set it.
    """

    # Without slots, access is slow beyond 30 attributes (SHARED_KEYS_MAX_SIZE of CPython 3.11), and
    # each `take` asks every partition.
    __slots__ = (
        "_answer",
        "_asked",
        "_budget",
        "_changes_seen",
        "_decoder",
        "_decoder_bytes",
        "_end_offset",
        "_ended",
        "_events",
        "_failing",
        "_generation",
        "_kept",
        "_limits",
        "_missing",
        "_overruns",
        "_passed",
        "_paused",
        "_planned",
        "_range_size",
        "_ranges",
        "_settings",
        "_snapshot_asked",
        "_stage",
        "_target",
        "_told_end",
        "_transactions",
        "_under_way",
        "_until",
        "_view",
        "_view_at",
        "_work",
        "due",
        "opener",
        "position",
        "served",
        "tp",
    )

    def __init__(
        self,
        tp: TopicPartition,
        opener: Opener,
        settings: ReaderSettings,
        budget: MemoryBudget,
        bound: Bound | None = None,
    ) -> None:
        self.tp: Final = tp
        self.opener: Final = opener
        self.position = Offset(0)
        self.due, self.served = 0.0, 0
        self._settings, self._budget = settings, budget
        self._until = None if bound is None else bound.until
        """End of the wanted offsets, exclusive; None if there is no end."""
        self._limits: dict[Version, int] = {} if bound is None else dict(bound.ends)
        """For segments that are wanted in part: the byte position where the wanted part ends."""

        self._stage = Stage.OPENING
        self._target = Target(Offset(0))
        self._passed: Failed | None = None
        """Damage that was passed on the way to the marker of an open transaction."""
        self._paused = False
        self._failing = False
        """The last request failed. Until one succeeds, only one request is made at a time."""
        self._generation = 0
        """Increases with every event that invalidates open requests."""
        self._asked = False
        """An `Open` or `OpenElsewhere` of this generation is in progress."""
        self._answer: Opening | SidetierError | None = None
        """The answer to it. It waits until the records before it are returned."""

        self._view: ArchiveView | None = None
        self._view_at = 0.0
        self._snapshot_asked = False
        self._changes_seen: int | None = None
        """How many changes of the archive this partition has processed."""

        self._ranges: deque[Range] = deque()
        """Requested ranges that were not decoded yet, in order."""
        self._planned: SegmentPosition | None = None
        """Where the next range begins."""
        self._range_size = 0
        self._under_way = 0
        self._overruns = False
        """Batches above the bound are read, because a transaction below it is not decided."""
        self._kept: FoundRecord | None = None
        """A range that was read by a search for a timestamp. Counts in the budget."""

        self._transactions: KnownTransactions | None = None
        self._decoder: Decoder | None = None
        self._work: DecodeRange | DecodeRecords | Taken | None = None
        """The present work of the thread that takes records. Reset after every other change, so
        that `end_interrupted_work` repairs what an exception (such as KeyboardInterrupt)
        interrupts.
        """
        self._decoder_bytes = 0
        self._missing = 0
        """Bytes that the decoder needs before it can process the bytes that it has."""
        self._events: deque[Taken] = deque()
        self._ended = False
        """The end was reached. `ReachedEnd` is returned after all records before it."""
        self._end_offset: Offset | None = None
        """Where reading continues after the end; None if an open transaction blocks it."""
        self._told_end: Offset | None = None

    # -- events: calls of the application ----------------------------------------------------------

    def seek(self, offset: Offset, now: float) -> None:
        """Read from this offset on. Drop fetched ranges, and the known transactions."""
        self.position = offset
        self._told_end = None
        self._passed = None
        self._events.clear()
        self._failing = False
        committed = self._settings.isolation is IsolationLevel.READ_COMMITTED
        self._transactions = KnownTransactions() if committed else None
        self._drop_decoder()
        self._open_at(Target(offset), now)
        self._range_size = self._settings.first_range
        self._overruns = False
        if self._until is not None and offset >= self._until:
            self._stop(ReachedEnd(self.tp, offset))

    def pause(self, now: float) -> None:
        """Drop the fetched ranges, and do nothing until `resume`."""
        self._paused = True
        self.seek(self.position, now)

    def resume(self, now: float) -> None:
        """Continue at the position."""
        self._paused = False
        self.seek(self.position, now)

    def keep(self, found: FoundRecord | None) -> None:
        """Keep the range that a search for a timestamp has read, if reading begins with it. Drop
        the one that was kept before.
        """
        if self._kept is not None:
            self._budget.give_back(len(self._kept.data))
            self._kept = None
        if (
            found is not None
            and found.offset == self.position
            and self._budget.fits(len(found.data))
        ):
            self._budget.take(len(found.data))
            self._kept = found

    def close(self) -> None:
        """Give all memory back. The partition does nothing afterwards."""
        self._paused = True
        if isinstance(self._work, DecodeRange):  # its report may never come
            self._give_back(self._work)
        self._drop_ranges()
        self._drop_decoder()
        self.keep(None)

    def view_extract(self, snapshot: ArchiveSnapshot) -> None:
        """Begin with the snapshot of an extract. Every change of the archive counts since then."""
        self._view, self._view_at = snapshot.view, snapshot.taken_at
        self.notice_changes_since(snapshot)

    def notice_changes_since(self, snapshot: ArchiveSnapshot) -> None:
        """Process the changes since this snapshot, by which the caller chose the offset."""
        self._changes_seen = len(snapshot.changes)

    # -- fetch threads: the next action, and the events that it ends with --------------------------

    def next_action(self, now: float, *, may_exceed: bool) -> Action | None:
        """Return the next request; None if there is none.

        Args:
            now: The reader's clock, in seconds.
            may_exceed: The partition may exceed its share and the budget by the smallest useful
                range, so that no partition waits forever.
        """
        if self._paused or self._stage is Stage.STOPPED or now < self.due:
            return None
        is_asking = self._asked or self._answer is not None
        if self._stage is Stage.OPENING and not is_asking:
            self._asked = True
            return Open(self._generation, self._target, self._settings.look_interval / 2)
        stuck = self._decoder.stuck if self._decoder is not None else None
        if self._stage is Stage.STUCK and stuck is not None and not is_asking:
            self._asked = True
            return OpenElsewhere(self._generation, stuck)
        if now - self._view_at > self._settings.most_view_age and self._needs_snapshot():
            self._snapshot_asked = True
            return TakeSnapshot(self._settings.most_view_age / 2)
        return self._next_fetch(may_exceed=may_exceed)

    def opened(
        self,
        ticket: int,
        answer: Opening | SidetierError,
        latest: ArchiveSnapshot | None,
        now: float,
    ) -> None:
        """Take the answer to `Open` or `OpenElsewhere`, and the archive's newest snapshot."""
        # Also for an outdated ticket: the changes of the archive count in any case.
        self._notice(latest, now)
        if ticket != self._generation:
            return  # a seek, or a change of the archive, has made the request pointless
        self._failing = isinstance(answer, SidetierError) and answer.retry
        self._answer = answer
        if isinstance(answer, Opened):
            if answer.limit is not None:
                version, end = answer.limit
                self._limits[version] = end
            # Ranges can be fetched before the answer's turn comes.
            self._plan(answer.segment_position)

    def snapshot_taken(self, latest: ArchiveSnapshot | None, now: float) -> None:
        """Take the archive's newest snapshot. The store may have failed to give a new one."""
        self._snapshot_asked = False
        self._notice(latest, now)
        self._view_at = max(self._view_at, now - _FAILED_SNAPSHOT_AGE)

    def range_fetched(
        self, fetched: Range, data: Buffer | None, error: SidetierError | None
    ) -> None:
        """Take the bytes of a range, or the error."""
        # Before the check: a dropped range was under way, too.
        self._under_way -= 1
        self._failing = error is not None and error.retry
        if fetched.dropped:
            self._budget.give_back(fetched.size)
        else:
            fetched.data, fetched.error = data, error

    # -- the thread that takes records: the next work, and the events that it ends with ------------

    def apply_answer(self, now: float) -> bool:
        """Process the answer to `Open` or `OpenElsewhere`, if all records and events before it are
        returned. Return whether there was one: then there may be next work, and a next action.
        """
        if self._answer is None or self._paused or self._events or self._ended:
            return False
        decoder = self._decoder
        if decoder is not None and decoder.has_batches:
            return False
        # Cleared before it is processed: the calls below may request another one.
        answer, self._answer, self._asked = self._answer, None, False
        if isinstance(answer, Opened):
            self._go_on(answer, now)
        elif isinstance(answer, AtEnd):
            self._reach_end(answer.offset, now, is_checked=True)
        elif isinstance(answer, Halted):
            self._halt(answer, now)
        elif answer.retry:
            self._wait_after(answer, now)
        else:
            self._stop(Failed(self.tp, self.position, answer))
        return True

    def next_work(self) -> DecodeRange | DecodeRecords | Taken | None:
        """Return the next work: a range to decode, or an event to return. None if there is none
        now. Then there may be an answer to apply.

        Call `work_recorded` once the returned event is recorded.
        """
        if self._paused:
            return None
        decoder = self._decoder
        if decoder is not None and decoder.has_batches:
            self._work = decode = DecodeRecords(decoder, decoder.stuck, self.position)
            return decode
        if self._events or self._ended:
            return self._next_event()
        # While an answer waits, the ranges begin at its position, which the decoder does not know.
        if decoder is None or self._answer is not None or not self.takeable():
            return None
        first = self._ranges[0]
        # Set before `popleft`: a KeyboardInterrupt in between finds the range in
        # the queue, and `_give_back` then leaves its bytes to `_drop_ranges`.
        self._work = scan = DecodeRange(decoder, first, first.size)
        self._ranges.popleft()
        return scan

    def work_recorded(self) -> None:
        """The thread that takes records has recorded the result of its work."""
        if self._events and self._events[0] is self._work:
            self._events.popleft()
        self._work = None

    def end_interrupted_work(
        self, clock: Callable[[], float], recorded: Taken | None = None
    ) -> None:
        """Read the range again whose result an exception (such as KeyboardInterrupt) has discarded:
        the decoder may have lost a part of it.

        Args:
            clock: The reader's clock.
            recorded: The result of the work, if the exception came after it was recorded.
        """
        work = self._work
        if work is None:
            return
        if isinstance(work, DecodeRange):
            self._give_back(work)
            # The decoder may have taken a part of the range.
            self.seek(self.position, clock())
        elif isinstance(work, DecodeRecords):
            if self._decoder is work.decoder:  # else the application has called `seek` since
                self.position = work.position
                if isinstance(recorded, Records):
                    self.position = recorded.next_offset
            self.seek(self.position, clock())
        elif recorded is not None:
            self.work_recorded()
        self._work = None

    def range_decoded(self, work: DecodeRange, result: FeedResult | None, now: float) -> None:
        """Take the decoder's next need after a range; None if the range could not be fetched."""
        fetched = work.range
        # The fetch thread refers to its last range until it gets the next one, which may take long.
        # The pool could not lend this memory again meanwhile.
        fetched.data = None
        # The decoder has its own references by now, which `_account` counts.
        self._give_back(work)
        if self._decoder is work.decoder:  # else the application has called `seek` meanwhile
            if fetched.error is not None:
                self._fetch_failed(work.decoder, fetched, fetched.error, now)
            elif result is not None:
                self._fed(work.decoder, result, now)
            self._account()
        self._work = None

    def records_decoded(
        self, work: DecodeRecords, decoded: DecodedRecords | BatchTooLargeError | None
    ) -> tuple[Records | None, bool]:
        """Take decoded records, or the error of the next batch.

        Returns:
            The records to return; None after a `seek` meanwhile, or if there are none. And whether
            there may be a next action. A thread that is woken for each batch in vain would cost
            more than the decoding. Call `work_recorded` once the records are recorded.
        """
        decoder = work.decoder
        if self._decoder is not decoder:
            return None, False
        if decoder.returned_to is not None:
            # Also without records: batches of which nothing is visible move the position, too.
            self.position = max(self.position, decoder.returned_to)
        if decoder.stuck is not work.stuck and decoder.stuck is not None:
            self._events.clear()  # events of later offsets occur again
            self._open_at(Target(decoder.stuck.offset), self.due)
            self._stage = Stage.STUCK
        if isinstance(decoded, BatchTooLargeError):
            self._events.clear()
            self._drop_decoder()
            self._stop(Failed(self.tp, self.position, decoded))
        held = self._decoder_bytes
        self._account()
        has_freed = self._decoder_bytes < held
        if not isinstance(decoded, DecodedRecords):
            return None, True
        self._told_end = None
        records = Records(self.tp, decoded.records, decoded.next_offset)
        return records, has_freed or not self.takeable()

    def waiting_begins(self) -> bool:
        """Note that no records can be taken now. Return whether this allows another action.

        Batches that are held for a transaction are dropped if no memory is left to read on.
        """
        if self._stage is Stage.READING and self._ranges and not self._ranges[0].has_come:
            self._ranges[0].was_awaited = True
        decoder = self._decoder
        blocked = decoder.blocked_at if decoder is not None else None
        if decoder is None or blocked is None or not self.may_yield():
            return False
        decoder.look_ahead(blocked)
        self._account()
        return True

    # -- questions of both -------------------------------------------------------------------------

    def takeable(self) -> bool:
        """Whether the thread that takes records can make progress."""
        if self._paused:
            return False
        decoder = self._decoder
        if decoder is not None and decoder.has_batches:
            return True
        if self._events or self._ended or self._answer is not None:
            return True
        # Not by `first_range_has_come`: with many partitions, each call counts.
        ranges = self._ranges
        return self._stage is Stage.READING and bool(ranges) and ranges[0].has_come

    @property
    def first_range_has_come(self) -> bool:
        """Whether the next range to decode has been fetched."""
        return bool(self._ranges) and self._ranges[0].has_come

    @property
    def has_remainder(self) -> bool:
        """Whether some decoded records have not been returned yet."""
        return self._decoder is not None and self._decoder.has_remainder

    def may_yield(self) -> bool:
        """Whether to drop batches held for a transaction, because no memory is left to read on."""
        decoder = self._decoder
        if decoder is None or decoder.looks_ahead or decoder.has_batches or self._ranges:
            return False
        if self._stage is not Stage.READING or self._under_way or self._budget.is_ample:
            return False
        return decoder.blocked_at is not None

    def goes_on(self) -> bool:
        """Whether the partition makes progress by itself, or once records are taken."""
        is_busy = self._under_way > 0 or self._work is not None
        return is_busy or self.takeable() or self.may_yield()

    def load(self) -> tuple[int, int]:
        """Sort key for the fetch threads: requests under way, then the turn of the last action."""
        return self._under_way + self._asked, self.served

    def is_active(self, now: float) -> bool:
        """Whether the partition needs a share of the budget."""
        if self._paused or self._stage is Stage.STOPPED:
            return self._decoder_bytes > 0
        return self._stage is not Stage.OPENING or self.due <= now or self._decoder_bytes > 0

    # -- which action is next ----------------------------------------------------------------------

    def _needs_snapshot(self) -> bool:
        """Whether an old snapshot is to be replaced."""
        if self._stage is not Stage.READING or self._snapshot_asked:
            return False
        # Every request names the version of the extract's object, so a change shows anyway.
        return self._view is None or not self._view.is_part

    def _next_fetch(self, *, may_exceed: bool) -> Fetch | None:
        # One probe at a time while the store fails. The others would fail as well, and hold memory.
        most = 1 if self._failing else MAX_CONCURRENT_RANGES
        at = self._next_segment_position() if self._under_way < most else None
        if at is None or not self._is_wanted(at):
            return None
        next_range = self._range_of_search(at)
        if next_range is None:
            size = self._size_at(at, may_exceed=may_exceed)
            if size is None:
                return None
            next_range = Range(at.log, at.position, at.position + size)
        self._budget.take(next_range.size)
        self._ranges.append(next_range)
        # At least 1, so that an empty object is read only once.
        self._planned = SegmentPosition(at.log, max(next_range.end, 1))
        self._range_size = min(self._range_size * 2, self._settings.largest_range)
        if next_range.size == 0:
            next_range.data = b""
        if next_range.has_come:
            return None
        self._under_way += 1
        return Fetch(next_range)

    def _range_of_search(self, at: SegmentPosition) -> Range | None:
        kept = self._kept
        if kept is None:
            return None
        self.keep(None)
        skipped = at.position - kept.start
        if kept.log.version != at.log.version or not 0 <= skipped < len(kept.data):
            return None
        end = kept.start + len(kept.data)
        return Range(at.log, at.position, end, data=kept.data[skipped:])

    def _size_at(self, at: SegmentPosition, *, may_exceed: bool) -> int | None:
        """Return the number of bytes to request; None while the budget has no room for them."""
        left = (at.log.size if self._overruns else self._limit(at.log)) - at.position
        if self._missing and not self._ranges:  # no batch can be decoded without them
            wanted = min(max(self._missing, MIN_RANGE), left)
            if self._budget.fits(wanted):
                return wanted
            least = min(self._missing, left)
            return least if may_exceed or self._budget.fits(least) else None
        share = self._budget.share
        # Half a share, so that the next range is fetched while this one is decoded.
        size = min(self._range_size, max(share // 2, MIN_RANGE), self._budget.total // 2, left)
        held = self._decoder_bytes + sum(fetched.size for fetched in self._ranges)
        if (not held or held + size <= share) and self._budget.fits(size):
            return size
        return min(size, MIN_RANGE) if may_exceed and not self._ranges else None

    def _next_segment_position(self) -> SegmentPosition | None:
        """Return where the next range begins: in the same segment, or at the start of the
        next one.
        """
        at, view = self._planned, self._view
        if at is None or view is None:
            return None
        # Position 0 also for an empty object, which is
        # requested once: its end must be seen by the decoder.
        if at.position < at.log.size or at.position == 0:
            return at
        following = view.after(at.log.base_offset)
        if following is None or following.base_offset >= view.end:
            return None
        return SegmentPosition(following, 0)

    def _limit(self, log: StoredLog) -> int:
        return min(self._limits.get(log.version, log.size), log.size)

    def _is_wanted(self, at: SegmentPosition) -> bool:
        """Whether to read here now. Above the bound, read only what is needed, in small ranges, one
        at a time.
        """
        if self._until is None:
            return True
        limit = self._limit(at.log)
        is_above = at.log.base_offset >= self._until or at.position >= limit < at.log.size
        if is_above and (self._ranges or self._under_way or self._work is not None):
            return False
        if is_above and not self._overruns:
            self._range_size = MIN_RANGE
        self._overruns = is_above
        return True

    # -- what follows from an event ----------------------------------------------------------------

    def _notice(self, latest: ArchiveSnapshot | None, now: float) -> None:
        """Process the changes of the archive since the last snapshot."""
        if latest is None:
            return
        self._view, self._view_at = latest.view, latest.taken_at
        seen = len(latest.changes) if self._changes_seen is None else self._changes_seen
        self._changes_seen = len(latest.changes)
        for change in latest.changes[seen:]:
            # With a bound, a change anywhere below it counts: the caller has planned that range.
            # Without one, records above the position were not returned, and are simply read again.
            if change.message is not None and change.first < max(self.position, self._until or 0):
                error = ArchiveReplacedError(change.message, change.first)
                self._events.clear()
                self._drop_decoder()
                self._stop(Failed(self.tp, self.position, error))
                return
            # The same records are stored in other segments now, or the change is above them.
            self.seek(self.position, now)

    def _next_event(self) -> Taken | None:
        """Return the next event. `work_recorded` then removes it from the queue."""
        if not self._events:
            self._ended = False
            if self._end_offset is not None:
                self.position = max(self.position, self._end_offset)
            if self._told_end == self.position:
                return None
            self._events.append(ReachedEnd(self.tp, self.position))
            self._told_end = self.position
        self._work = taken = self._events[0]
        if self._stage is Stage.STOPPED:
            self._drop_decoder()
        if isinstance(taken, Gap):
            self.position = max(self.position, taken.offsets.start)
        if isinstance(taken, ReachedEnd):
            self.position = max(self.position, taken.next_offset)
        if isinstance(taken, Failed):
            return Failed(taken.tp, self.position, taken.error)
        return taken

    def _fetch_failed(
        self, decoder: Decoder, fetched: Range, error: SidetierError, now: float
    ) -> None:
        if isinstance(error, ObjectNotFoundError | PreconditionFailedError):
            # The object was deleted or replaced: as if the segment ended here.
            self._fed(decoder, decoder.stop_here(error), now)
        elif error.retry:
            # The same range again. Ranges behind it are
            # dropped, because they must be decoded in order.
            self._plan(SegmentPosition(fetched.log, fetched.start))
            self._wait_after(error, now)
        else:
            self._stop(Failed(self.tp, self.position, error))

    def _wait_after(self, error: SidetierError, now: float) -> None:
        self._failing = True
        self.due = now + self._settings.failed_pause
        self._events.append(Failed(self.tp, self.position, error))

    def _fed(self, decoder: Decoder, result: FeedResult, now: float) -> None:
        if result is FeedResult.DONE:
            self._finish()
        elif result is FeedResult.DECIDED:
            self._read_decided(now)
        elif result is FeedResult.STUCK:
            self._get_stuck()
        elif result is FeedResult.NEXT_SEGMENT and not self._next_segment(decoder, now):
            return
        self._limit_held_batches(decoder, now)

    def _get_stuck(self) -> None:
        self._stage = Stage.STUCK
        self._asked = False

    def _next_segment(self, decoder: Decoder, now: float) -> bool:
        """Continue in the segment that begins at the next offset. Return False if there is none."""
        view = self._view
        if view is None:
            self._open_at(Target(decoder.offset, decoder.waiting_for), now)
            return False
        if decoder.offset >= view.end:
            self._reach_end(decoder.offset, now)
            return False
        log = view.holder(decoder.offset)
        # No segment begins at the next offset: the one that
        # covers it is the same as before, or there is a gap.
        if log is None or int(log.base_offset) != decoder.offset:
            decoder.stop_here(None)
            self._get_stuck()
            return True
        if decoder.looks_ahead:  # the transaction index and the snapshot may be enough
            self._open_at(Target(decoder.offset, decoder.waiting_for), now)
            return False
        start = SegmentPosition(log, 0)
        decoder.continue_at(start, decoder.offset, view.until(decoder.offset))
        self._plan(start)
        if self._transactions is not None:
            self._transactions.forget_below(self.position)
        return True

    def _reach_end(self, offset: Offset, now: float, *, is_checked: bool = False) -> None:
        """At the readable end: check for more segments, at once if the last snapshot is old.

        No batches of an open transaction are held meanwhile: they are read again once it is
        decided.
        """
        decoder = self._decoder
        blocked = decoder.blocked_at if decoder is not None else self._target.waiting_for
        if blocked is None and self._until is not None and offset >= self._until:
            self._finish()
            return
        if blocked is not None and self._passed is not None:
            # The marker may be among the lost records: waiting for it could take for ever.
            self._stop(_from(self._passed, blocked))
            return
        if decoder is not None and blocked is not None:
            decoder.look_ahead(blocked)
        every = self._settings.look_interval
        is_part = self._view is not None and self._view.is_part
        is_fresh = not is_part and (is_checked or now - self._view_at < every)
        self._open_at(Target(offset, blocked), self._view_at + every if is_fresh else now)
        self._ended = is_fresh
        self._end_offset = offset if blocked is None else None
        self._account()

    def _finish(self) -> None:
        """Every wanted record has arrived: queue `ReachedEnd` behind those not yet returned."""
        if self._until is not None:
            self._stop(ReachedEnd(self.tp, self._until))
        self._account()

    def _limit_held_batches(self, decoder: Decoder, now: float) -> None:
        """Keep batches held for an open transaction from filling the partition's share."""
        blocked = decoder.blocked_at
        known = self._transactions.known_below if self._transactions else Offset(0)
        if blocked is None or decoder.looks_ahead or self._stage is not Stage.READING:
            return
        if decoder.offset < known:
            # Transactions below `known` were read before; the missing marker is at or above it.
            decoder.look_ahead(blocked)
            self._open_at(Target(known, blocked), now)
        elif decoder.held_bytes > self._budget.share // 2:
            decoder.look_ahead(blocked)

    def _go_on(self, answer: Opened, now: float) -> None:
        decoder = self._decoder
        if self._is_decided_by(answer):
            self._read_decided(now)
            return
        if self._stage is Stage.STUCK and decoder is not None:
            decoder.continue_at(answer.segment_position, answer.offset, answer.until)
        else:
            decoder = Decoder(
                answer.segment_position,
                answer.offset,
                answer.until,
                self._settings,
                transactions=self._transactions,
                bound=self._until,
                waiting_for=self._target.waiting_for,
            )
            self._decoder = decoder
        if decoder.is_done:
            self._finish()
            return
        self._stage = Stage.READING
        self._plan(answer.segment_position)
        self._account()

    def _read_decided(self, now: float) -> None:
        """Read the records of the transaction that was waited for, and what follows them."""
        self._passed = None  # it is reported when reading gets there
        self._drop_decoder()
        self._open_at(Target(self.position), now)

    def _is_decided_by(self, answer: Opened) -> bool:
        """Whether the transactions of the skipped segments decide the one that is waited for."""
        waiting_for, known = self._target.waiting_for, self._transactions
        if waiting_for is None or known is None:
            return False
        for learnt in answer.learnt:
            known.learn_from_indexes(learnt, waiting_for)
        return bool(answer.learnt) and known.last_stable_offset > waiting_for

    def _halt(self, answer: Halted, now: float) -> None:
        """Process a gap or damage. If a transaction is open, its marker may come after it."""
        decoder = self._decoder
        blocked = self._target.waiting_for
        if self._stage is Stage.STUCK and decoder is not None:
            blocked = decoder.blocked_at
        end = _end_of(answer.taken)
        if blocked is None or end is None:
            self._stop(answer.taken)
            return
        if isinstance(answer.taken, Failed) and self._passed is None:
            self._passed = answer.taken
        if decoder is not None:
            decoder.look_ahead(blocked)
        self._open_at(Target(end, blocked), now)
        self._account()

    # -- steps that several events share -----------------------------------------------------------

    def _open_at(self, target: Target, due: float) -> None:
        """Find the target, and read from there on. Records that are decided already are still
        returned.
        """
        self._invalidate()
        self._stage, self._target, self.due = Stage.OPENING, target, due

    def _stop(self, taken: Taken) -> None:
        """Return `taken` after all decided records, then stop. No `ReachedEnd` follows it."""
        self._invalidate()
        self._stage = Stage.STOPPED
        self._events.append(taken)

    def _invalidate(self) -> None:
        """Drop the requests under way, their answers, and the fetched ranges."""
        self._generation += 1
        self._asked, self._answer = False, None
        self._ended = False
        self._drop_ranges()
        self.keep(None)
        self._planned = None

    def _plan(self, at: SegmentPosition) -> None:
        """Read from this position on. Keep requested ranges that begin exactly there."""
        head = self._ranges[0] if self._ranges else None
        # The answer was planned when it came, and ranges may have been fetched since.
        if head is not None and (head.log.version, head.start) == (at.log.version, at.position):
            return
        if head is None and self._planned == at:
            return
        self._drop_ranges()
        self._planned = at

    def _drop_decoder(self) -> None:
        """Drop the decoded records that were not returned."""
        self._decoder = None
        self._account()

    def _drop_ranges(self) -> None:
        """Drop requested ranges. The budget gets the bytes of pending requests back when they
        end.
        """
        for fetched in self._ranges:
            fetched.dropped = True
            if fetched.has_come:
                self._budget.give_back(fetched.size)
        self._ranges.clear()

    def _give_back(self, work: DecodeRange) -> None:
        """Return the bytes of a range that is being decoded to the budget, once."""
        if self._ranges and self._ranges[0] is work.range:
            return  # interrupted before the range left the queue: `_drop_ranges` returns them
        # No call in between: a KeyboardInterrupt would count the bytes twice, or forever.
        self._budget.used -= work.held
        work.held = 0

    def _account(self) -> None:
        """Update the budget with the bytes that the decoder refers to now."""
        decoder = self._decoder
        held = 0 if decoder is None else decoder.held_bytes
        self._budget.take(held - self._decoder_bytes)
        self._decoder_bytes = held
        is_idle = decoder is not None and not decoder.has_batches
        self._missing = decoder.missing if decoder is not None and is_idle else 0


def _from(failed: Failed, first: Offset) -> Failed:
    """Return damage that also hides the records from `first` on, whose outcome is lost."""
    error = failed.error
    if not isinstance(error, DamagedArchiveError):
        return failed
    offsets = OffsetRange(min(first, error.offsets.start), error.offsets.end)
    message = f"{error}; the outcome of the transaction from offset {first} on is unknown"
    return replace(failed, error=DamagedArchiveError(message, error.key, error.position, offsets))


def _end_of(taken: Gap | Failed) -> Offset | None:
    """Return the end of the missing offsets, if it is known."""
    if isinstance(taken, Gap):
        return taken.offsets.end
    error = taken.error
    return error.offsets.end if isinstance(error, DamagedArchiveError) else None

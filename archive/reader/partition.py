"""The state of one partition that is read, and its next step. No I/O, no threads.

The owner holds one lock around every method. Only the `chain` is driven without the lock, by the
thread that takes records.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from sidetier.archive.errors import ArchiveReplacedError
from sidetier.archive.locate import SegmentPosition
from sidetier.archive.objects.segment import StoredLog, Version
from sidetier.archive.partition_archive import ArchiveSnapshot
from sidetier.archive.reader.actions import (
    FetchStep,
    GoOnStep,
    LookStep,
    OpenStep,
    Range,
    Stage,
    Step,
    Target,
)
from sidetier.archive.reader.chain import Chain
from sidetier.archive.reader.committed import Transactions
from sidetier.archive.reader.memory import Budget
from sidetier.archive.reader.opening import Opened, Opener, Opening, Stuck
from sidetier.archive.reader.results import Failed, ReachedEnd, Taken
from sidetier.archive.reader.searching import Found
from sidetier.archive.reader.settings import Bound, IsolationLevel, ReaderSettings
from sidetier.archive.view import ArchiveView
from sidetier.segments.errors import SidetierError
from sidetier.segments.offsets import Offset, TopicPartition

LEAST_RANGE: Final = 64 * 1024
MOST_UNDER_WAY: Final = 4
"""Maximum number of concurrent range requests of one partition."""


@dataclass(slots=True, eq=False)
class Partition:
    """The state of one partition. `position` is the next offset that the reader returns."""

    tp: TopicPartition
    opener: Opener
    settings: ReaderSettings
    budget: Budget
    position: Offset
    bound: Bound | None = None
    """End of the wanted records; None if there is no end."""
    stage: Stage = Stage.OPENING
    target: Target = field(default_factory=lambda: Target(Offset(0)))
    due: float = 0.0
    paused: bool = False
    failing: bool = False
    """The last request failed. Until one succeeds, only one request is made at a time."""
    epoch: int = 0
    """Increases with every event that invalidates fetched ranges."""
    asked: bool = False
    """A request for the current `epoch` is in progress."""
    looking: bool = False
    answer: Opening | SidetierError | None = None
    view: ArchiveView | None = None
    looked_at: float = 0.0
    seen: int | None = None
    """How many changes of the archive this partition has processed."""
    ranges: deque[Range] = field(default_factory=deque)
    planned: SegmentPosition | None = None
    """Where the next range begins."""
    range_size: int = 0
    under_way: int = 0
    chain: Chain | None = None
    driven: bool = False
    """The thread that takes records is working on the chain, without the lock."""
    chain_bytes: int = 0
    missing: int = 0
    """Bytes that the chain needs before it can process the bytes that it has."""
    transactions: Transactions | None = None
    memo: Found | None = None
    """A range that was read by a search for a timestamp. Counts in the budget."""
    events: deque[Taken] = field(default_factory=deque)
    ended: bool = False
    """The end was reached. `ReachedEnd` is returned after all records before it."""
    end_offset: Offset | None = None
    """Where reading continues after the end; None if an open transaction blocks it."""
    told_end: Offset | None = None
    limits: dict[Version, int] = field(default_factory=dict)
    """For segments that are wanted in part: the byte position where the wanted part ends."""
    overruns: bool = False
    """Batches above the bound are read, because a transaction below it is not decided."""
    served: int = 0

    def __post_init__(self) -> None:
        if self.bound is not None:
            self.limits.update(self.bound.ends)

    @property
    def until(self) -> Offset | None:
        """End of the wanted offsets, exclusive; None if there is no end."""
        return None if self.bound is None else self.bound.until

    def restart(self, offset: Offset, now: float) -> None:
        """Read from this offset on. Drop fetched ranges, and the known transactions."""
        self.position = offset
        self.told_end = None
        self.events.clear()
        self.failing = False
        committed = self.settings.isolation is IsolationLevel.READ_COMMITTED
        self.transactions = Transactions() if committed else None
        self.drop_chain()
        self.open_at(Target(offset), now)
        self.range_size = self.settings.first_range
        self.overruns = False
        if self.until is not None and offset >= self.until:
            self.stop(ReachedEnd(self.tp, offset))

    def open_at(self, target: Target, due: float) -> None:
        """Find the target, and read from there on. Records that are decided already are still
        returned.
        """
        self.epoch += 1
        self.asked, self.answer = False, None
        self.ended = False
        self.stage, self.target, self.due = Stage.OPENING, target, due
        self.drop_ranges()
        self.remember(None)
        self.planned = None

    def stop(self, taken: Taken) -> None:
        """Return `taken` after all decided records, then stop. No `ReachedEnd` follows it."""
        self.epoch += 1
        self.asked, self.answer = False, None
        self.ended = False
        self.stage = Stage.STOPPED
        self.drop_ranges()
        self.remember(None)
        self.planned = None
        self.events.append(taken)

    def note_limit(self, answer: Opening | SidetierError) -> None:
        """Remember where the wanted part of a segment ends."""
        if isinstance(answer, Opened) and answer.limit is not None:
            version, end = answer.limit
            self.limits[version] = end

    def drop_chain(self) -> None:
        """Drop everything that was fetched and not returned."""
        self.chain = None
        self.account()

    def drop_ranges(self) -> None:
        """Drop requested ranges. The budget gets the bytes of pending requests back when they
        end.
        """
        for fetched in self.ranges:
            fetched.dropped = True
            if fetched.has_come:
                self.budget.give_back(fetched.size)
        self.ranges.clear()

    def pop_range(self) -> Range:
        """Remove and return the first range. Its bytes count in the budget until the caller gives
        them back.
        """
        return self.ranges.popleft()

    def account(self) -> None:
        """Update the budget with the bytes that the chain refers to now."""
        held = 0 if self.chain is None else self.chain.held_bytes
        self.budget.take(held - self.chain_bytes)
        self.chain_bytes = held
        idle = self.chain is not None and not self.chain.has_batches
        self.missing = self.chain.missing if self.chain is not None and idle else 0

    @property
    def held(self) -> int:
        """Bytes of the budget that this partition uses."""
        return self.chain_bytes + sum(fetched.size for fetched in self.ranges)

    def is_active(self, now: float) -> bool:
        """Whether the partition needs a share of the budget."""
        if self.paused or self.stage is Stage.STOPPED:
            return self.chain_bytes > 0
        return self.stage is not Stage.OPENING or self.due <= now or self.chain_bytes > 0

    def plan(self, segment_position: SegmentPosition) -> None:
        """Read from this position on. Keep requested ranges that begin exactly there."""
        head = self.ranges[0] if self.ranges else None
        if head is not None and (head.log.version, head.start) == (
            segment_position.log.version,
            segment_position.position,
        ):
            return
        if head is None and self.planned == segment_position:
            return
        self.drop_ranges()
        self.planned = segment_position

    def notice(self, look: ArchiveSnapshot, now: float) -> None:
        """Process a snapshot of the archive."""
        self.view, self.looked_at = look.view, look.looked_at
        seen = len(look.changes) if self.seen is None else self.seen
        self.seen = len(look.changes)
        for change in look.changes[seen:]:
            if change.message is not None and change.first < max(self.position, self.until or 0):
                error = ArchiveReplacedError(change.message, change.first)
                self.events.clear()
                self.drop_chain()
                self.stop(Failed(self.tp, self.position, error))
                return
            self.restart(self.position, now)

    def next_step(self, now: float, share: int, *, may_exceed: bool) -> Step | None:
        """Return what to do now; None for nothing.

        Args:
            now: The reader's clock, in seconds.
            share: The partition's share of the budget, in bytes.
            may_exceed: The partition may exceed its share and the budget by the smallest useful
                range, so that no partition waits for ever.
        """
        if self.paused or self.stage is Stage.STOPPED:
            return None
        if now < self.due:
            return None
        if self.stage is Stage.OPENING and not self._is_asking():
            self.asked = True
            return OpenStep(self.epoch, self.target, self.settings.look_interval / 2)
        stuck = self._stuck()
        if self.stage is Stage.STUCK and stuck is not None and not self._is_asking():
            self.asked = True
            return GoOnStep(self.epoch, stuck)
        return self._look_step(now) or self._fetch_step(share, may_exceed=may_exceed)

    def _is_asking(self) -> bool:
        return self.asked or self.answer is not None

    def _stuck(self) -> Stuck | None:
        return self.chain.stuck if self.chain is not None else None

    def _look_step(self, now: float) -> Step | None:
        old = now - self.looked_at > self.settings.most_view_age
        if self.stage is not Stage.READING or self.looking or not old:
            return None
        if self.view is not None and self.view.is_part:
            return None  # each read names the version that was seen, so a change shows anyway
        self.looking = True
        return LookStep()

    def _fetch_step(self, share: int, *, may_exceed: bool) -> Step | None:
        most = 1 if self.failing else MOST_UNDER_WAY
        segment_position = self._next_segment_position() if self.under_way < most else None
        if segment_position is None or not self._is_wanted(segment_position):
            return None
        next_range = self._remembered(segment_position) or self._range_at(
            segment_position, share, may_exceed=may_exceed
        )
        if next_range is None:
            return None
        self.budget.take(next_range.size)
        self.ranges.append(next_range)
        self.planned = SegmentPosition(
            segment_position.log, max(next_range.end, 1)
        )  # at least 1, so that an empty object is read only once
        self.range_size = min(self.range_size * 2, self.settings.largest_range)
        if next_range.size == 0:
            next_range.data = b""
        if next_range.has_come:
            return None
        self.under_way += 1
        return FetchStep(next_range)

    def remember(self, found: Found | None) -> None:
        """Keep a range that was read already, or drop the kept one."""
        kept = self.memo
        if kept is not None:
            self.budget.give_back(len(kept.data))
        if found is not None:
            self.budget.take(len(found.data))
        self.memo = found

    def _remembered(self, segment_position: SegmentPosition) -> Range | None:
        memo, self.memo = self.memo, None
        if memo is None:
            return None
        self.budget.give_back(len(memo.data))
        at = segment_position.position - memo.start
        if memo.log.version != segment_position.log.version or not 0 <= at < len(memo.data):
            return None
        end = memo.start + len(memo.data)
        return Range(segment_position.log, segment_position.position, end, data=memo.data[at:])

    def _range_at(
        self, segment_position: SegmentPosition, share: int, *, may_exceed: bool
    ) -> Range | None:
        size = self._size_at(segment_position, share, may_exceed=may_exceed)
        return (
            None
            if size is None
            else Range(
                segment_position.log, segment_position.position, segment_position.position + size
            )
        )

    def _size_at(
        self, segment_position: SegmentPosition, share: int, *, may_exceed: bool
    ) -> int | None:
        """Return the number of bytes to request; None while the budget has no room for them."""
        left = (
            segment_position.log.size if self.overruns else self._limit(segment_position.log)
        ) - segment_position.position
        if self.missing and not self.ranges:  # no batch can be decoded without them
            wanted = min(max(self.missing, LEAST_RANGE), left)
            if self.budget.fits(wanted):
                return wanted
            least = min(self.missing, left)
            return least if may_exceed or self.budget.fits(least) else None
        size = min(self.range_size, max(share // 2, LEAST_RANGE), self.budget.total // 2, left)
        if (not self.held or self.held + size <= share) and self.budget.fits(size):
            return size
        return min(size, LEAST_RANGE) if may_exceed and not self.ranges else None

    def _next_segment_position(self) -> SegmentPosition | None:
        """Return where the next range begins: in the same segment, or at the start of the
        next one.
        """
        segment_position, view = self.planned, self.view
        if segment_position is None or view is None:
            return None
        if segment_position.position < segment_position.log.size or segment_position.position == 0:
            return segment_position
        following = view.after(segment_position.log.base_offset)
        if following is None or following.base_offset >= view.end:
            return None
        return SegmentPosition(following, 0)

    def _limit(self, log: StoredLog) -> int:
        return min(self.limits.get(log.version, log.size), log.size)

    def _is_wanted(self, segment_position: SegmentPosition) -> bool:
        """Whether to read here now. Above the bound, read only what is needed, in small ranges, one
        at a time.
        """
        if self.until is None:
            return True
        limit = self._limit(segment_position.log)
        is_behind = (
            segment_position.log.base_offset >= self.until
            or segment_position.position >= limit < segment_position.log.size
        )
        if is_behind and (self.ranges or self.under_way or self.driven):
            return False
        if is_behind and not self.overruns:
            self.range_size = LEAST_RANGE
        self.overruns = is_behind
        return True

    def takeable(self) -> bool:
        """Whether the thread that takes records can make progress."""
        if self.paused:
            return False
        chain = self.chain
        if chain is not None and chain.has_batches:
            return True
        if self.events or self.ended or self.answer is not None:
            return True
        return self.stage is Stage.READING and bool(self.ranges) and self.ranges[0].has_come

    def may_yield(self) -> bool:
        """Whether to drop batches held for a transaction, because no memory is left to read on."""
        chain = self.chain
        if chain is None or chain.looks_ahead or chain.has_batches or self.ranges:
            return False
        if self.stage is not Stage.READING or self.under_way or self.budget.is_ample:
            return False
        return chain.blocked_at is not None

    def waits(self) -> Iterator[Range]:
        """Yield the range that the thread that takes records waits for, if any."""
        if self.stage is Stage.READING and self.ranges and not self.ranges[0].has_come:
            yield self.ranges[0]


def opened_segment_position(answer: Opening | SidetierError) -> SegmentPosition | None:
    """Return where reading continues, if it does."""
    return answer.segment_position if isinstance(answer, Opened) else None

"""An assigned partition: its source, its present pipeline, and the position that was handed out."""

from dataclasses import dataclass, field

from sidetier.archive.errors import ArchiveReplacedError
from sidetier.archive.reader.pipeline import Open, Pipeline, Refresh
from sidetier.archive.reader.results import Failed
from sidetier.archive.reader.run import Wanted
from sidetier.archive.reader.settings import IsolationLevel, ReaderSettings
from sidetier.archive.reader.source import Source
from sidetier.archive.reader.transactions import KnownTransactions
from sidetier.archive.segment_bytes import MemoryBudget, Range
from sidetier.segments.offsets import Offset, TopicPartition


@dataclass(slots=True, eq=False)
class HandOut:
    """One call of `take`. `is_returned` is True once its caller has its results."""

    is_returned: bool = False


_NONE = HandOut(is_returned=True)

Progress = tuple[Offset, Offset | None]
"""The next offset, and the offset for which `ReachedEnd` was returned last."""


@dataclass(slots=True, eq=False)
class Partition:
    """One assigned partition. The owner holds a lock around every method.

    Attributes:
        until: End of the wanted offsets, exclusive; None if there is no end.
        pipeline: Reads it now. Another one replaces it at a seek, or when the archive changes.
        is_paused: Nothing is read or returned.
        served: Number of the last request that was made for it, among those for all partitions.
    """

    tp: TopicPartition
    source: Source
    settings: ReaderSettings
    until: Offset | None
    pipeline: Pipeline = field(init=False)
    is_paused: bool = False
    served: int = 0
    _hand_out: HandOut = _NONE
    """The last `take` that has asked the pipeline for results."""
    _before: Progress = (Offset(0), None)
    """The progress before it."""
    _changes_seen: int = 0

    @property
    def settled(self) -> Progress:
        """The progress behind the results that callers of `take` have received."""
        if self._hand_out.is_returned:
            return self.pipeline.position, self.pipeline.told_end
        return self._before

    def is_part_of(self, hand_out: HandOut) -> bool:
        """Whether this `take` has asked the pipeline for results."""
        return self._hand_out is hand_out

    def touch(self, hand_out: HandOut) -> None:
        """Note that a `take` asks the pipeline for results. It may end by an exception anywhere."""
        if self._hand_out is not hand_out:
            # Two statements, and no call in between: an exception leaves `settled` as it was.
            self._before = self.settled
            self._hand_out = hand_out

    def seek(self, offset: Offset, now: float, found: Range | None = None) -> None:
        """Read from this offset on, with the archive's changes from now on."""
        self._begin((offset, None), now, found)

    def restart(self, now: float) -> None:
        """Read again from where the handed out results end."""
        self._begin(self.settled, now)

    def notice_changes(self, now: float) -> None:
        """Begin again if the source has changed since the offset was chosen."""
        changes = self.source.changes
        seen, self._changes_seen = self._changes_seen, len(changes)
        position = self.settled[0]
        for change in changes[seen:]:
            # With a bound, a change anywhere below it counts: the caller has planned that range.
            # Without one, records above the position were not returned, and are simply read again.
            if change.message is not None and change.first < max(position, self.until or 0):
                error = ArchiveReplacedError(change.message, change.first)
                self.restart(now)
                self.pipeline.fail(Failed(self.tp, position, error))
                return
        if changes[seen:]:
            # The same records are stored in other segments now, or the change is above them.
            self.restart(now)

    def expect_changes(self) -> None:
        """Count changes of the source from now on."""
        self._changes_seen = len(self.source.changes)

    def _begin(self, progress: Progress, now: float, found: Range | None = None) -> None:
        committed = self.settings.isolation is IsolationLevel.READ_COMMITTED
        wanted = Wanted(self.settings, self.until, KnownTransactions() if committed else None)
        position, told_end = progress
        self.pipeline = Pipeline(self.tp, wanted, position, now, told_end, found)
        self._hand_out = _NONE

    # -- fetch threads -----------------------------------------------------------------------------

    def next_request(
        self, now: float, budget: MemoryBudget, *, may_exceed: bool
    ) -> Open | Refresh | Range | None:
        """Return the next request; None if there is none now."""
        if self.is_paused:
            return None
        return self.pipeline.next_request(now, budget, may_exceed=may_exceed)

    def next_time(self, now: float) -> float | None:
        """Return the time of the next request, if no event comes before; None if there is none."""
        return None if self.is_paused else self.pipeline.next_time(now)

    @property
    def held_bytes(self) -> int:
        """Bytes that the pipeline holds, without those that are being fetched."""
        run = self.pipeline.run
        return 0 if run is None else run.held_bytes

    def is_active(self, now: float) -> bool:
        """Whether the partition needs a share of the budget."""
        run = self.pipeline.run
        if run is None or self.is_paused:
            return False
        return run.decoder is not None or self.pipeline.due <= now

    @property
    def load(self) -> tuple[int, int]:
        """Sort key for the fetch threads: requests under way, then the turn of the last one."""
        run = self.pipeline.run
        return 0 if run is None else run.requests, self.served

    @property
    def waits_for_memory(self) -> bool:
        """Whether the next range has no room, and only other partitions can make some."""
        run = self.pipeline.run
        if run is None or run.ahead is None or not run.ahead.waits_for_memory:
            return False
        return not self.takeable

    @property
    def takeable(self) -> bool:
        """Whether the thread that takes records can make progress."""
        return not self.is_paused and self.pipeline.takeable

    @property
    def has_remainder(self) -> bool:
        """Whether some decoded records have not been returned yet."""
        run = self.pipeline.run
        return run is not None and run.decoder is not None and run.decoder.has_remainder

    def note_wait(self) -> None:
        """Note that `take` has waited for what the partition has now."""
        run = self.pipeline.run
        if run is not None and run.head is not None:
            run.head.was_awaited = True

    def may_yield(self, budget: MemoryBudget) -> bool:
        """Whether to drop batches held for a transaction, because no memory is left to read on."""
        run = self.pipeline.run
        return run is not None and not self.is_paused and run.may_yield(budget)

    def look_ahead(self) -> None:
        """Drop these batches. They are read again once the transaction is decided."""
        if self.pipeline.run is not None:
            self.pipeline.run.look_ahead()

    def goes_on(self, budget: MemoryBudget) -> bool:
        """Whether the partition makes progress by itself, or once records are taken."""
        run = self.pipeline.run
        return self.takeable or (run is not None and (run.requests > 0 or self.may_yield(budget)))

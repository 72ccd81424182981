"""An assigned partition: its source, its present pipeline, and the position that was handed out."""

from dataclasses import dataclass, field

from sidetier.archive.errors import ArchiveReplacedError
from sidetier.archive.reader.pipeline import Open, Pipeline, Refresh
from sidetier.archive.reader.results import Failed
from sidetier.archive.reader.run import Wanted
from sidetier.archive.reader.settings import IsolationLevel, ReaderSettings
from sidetier.archive.reader.source import Source
from sidetier.archive.reader.transactions import KnownTransactions
from sidetier.archive.segment_bytes import MemoryBudget, Range, ReadBytes
from sidetier.segments.offsets import Offset, TopicPartition


@dataclass(slots=True, eq=False)
class HandOut:
    """Results that a `take` gathers at once. `is_returned` is False until they are complete, and
    again after an exception has kept them from its caller.
    """

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
    """The last one for which the pipeline was asked for results."""
    _before: Progress = (Offset(0), None)
    """The progress before it."""
    _changes_seen: int = field(init=False)
    _replaced: ArchiveReplacedError | None = None
    """Records that were handed out are no longer this partition's history. It stays so: the source
    may have been chosen for that history.
    """

    def __post_init__(self) -> None:
        self._changes_seen = len(self.source.changes)

    @property
    def settled(self) -> Progress:
        """The progress behind the results that callers of `take` have received."""
        if self._hand_out.is_returned:
            return self.pipeline.position, self.pipeline.reported_end
        return self._before

    def has_lost_results(self, hand_out: HandOut) -> bool:
        """Whether an earlier `take` than this one was ended by an exception after it had asked the
        pipeline for results.
        """
        return self._hand_out is not hand_out and not self._hand_out.is_returned

    def touch(self, hand_out: HandOut) -> None:
        """Note that a `take` asks the pipeline for results. It may end by an exception anywhere.

        A partition that has lost results must be restarted before.
        """
        if self._hand_out is not hand_out:
            # Two statements, and no call in between: an exception leaves `settled` as it was.
            self._before = self.settled
            self._hand_out = hand_out

    def seek(self, offset: Offset, now: float, found: ReadBytes | None = None) -> None:
        """Read from this offset on."""
        self._begin((offset, None), now, found)
        self._hand_out = _NONE

    def restart(self, due: float) -> None:
        """Read again from where the handed out results end, from this time on.

        The `take` that has asked the pipeline may still be ended by an exception.
        """
        self._begin(self.settled, due)

    def pause(self, now: float, *, is_paused: bool) -> None:
        """Read nothing, or begin again where the handed out results end: also to report the end."""
        self.is_paused = is_paused
        self._begin((self.settled[0], None), now)

    def notice_changes(self, now: float) -> None:
        """Begin again if the source has changed since the partition was assigned."""
        changes = self.source.changes
        unseen, self._changes_seen = changes[self._changes_seen :], len(changes)
        # With a bound, a change anywhere below it counts: the caller has planned that range.
        # Without one, records above the position were not returned, and are simply read again.
        end = max(self.settled[0], self.until or 0)
        for change in unseen:
            if change.message is not None and change.first < end and self._replaced is None:
                self._replaced = ArchiveReplacedError(change.message, change.first)
        if unseen:
            # If it is not replaced, the same records are stored in other segments now.
            self.restart(now)

    def _begin(self, progress: Progress, due: float, found: ReadBytes | None = None) -> None:
        committed = self.settings.isolation is IsolationLevel.READ_COMMITTED
        wanted = Wanted(self.settings, self.until, KnownTransactions() if committed else None)
        position, reported_end = progress
        pipeline = Pipeline(self.tp, wanted, position, due, reported_end, found)
        if self._replaced is not None:
            pipeline.fail(Failed(self.tp, position, self._replaced))
        self.pipeline = pipeline

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

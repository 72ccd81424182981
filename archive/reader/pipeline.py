"""The path of one partition's records, from a source to `take`. No I/O, no threads, no clock.

::

    Source ──Opening──> ReadAhead ──ranges──> Decoder ──batches──> isolation ──records──> take
       ^                                         │
       └── Target, Stuck: ask the source again ──┘

A `Run` reads from one opening up to the point where the source must be asked again: the segments
end, a segment ends too early, a transaction is decided. A `Pipeline` is a chain of runs, from one
position on. It decides what follows the ending of a run: another run, or a result.

Three rules keep this simple:

- Nothing is invalidated in place. A `seek`, a pause and a change of the archive replace the
  pipeline by a new one. What the old one held is dropped, and so is what its requests bring.
- A position moves when results are handed out. `Pipeline.position` is behind the results that it
  has returned; `Partition.settled` is behind those that the caller of `take` has received.
- An exception (KeyboardInterrupt, a bug) may leave a pipeline in any state. Nobody repairs it: the
  next `take` replaces it by a new one at the settled position. What has to survive that belongs to
  the `Partition`: records of another history are reported until it is assigned again.

Two kinds of threads call these objects. The owner holds one lock around every method.

- A fetch thread asks for an `Open`, a `Refresh` or a `Range`, makes the request without the lock,
  and reports the result by `opened`, `refreshed`, or in the range.
- The thread that takes records asks `step` for a `Range` to scan, or for a `Decoder` that has
  records, works without the lock, and reports the result by `scanned` or `decoded`.
"""

from dataclasses import dataclass, replace
from typing import Final

from sidetier.archive.errors import DamagedArchiveError
from sidetier.archive.reader.decoder import DecodedRecords, Decoder, FeedResult
from sidetier.archive.reader.results import Failed, Gap, ReachedEnd, Records, Taken
from sidetier.archive.reader.run import Ending, Outcome, Run, Wanted
from sidetier.archive.reader.source import AtEnd, Halted, Opening, Stuck, Target
from sidetier.archive.segment_bytes import MAX_CONCURRENT_RANGES, MemoryBudget, Range, ReadBytes
from sidetier.segments.errors import BatchTooLargeError, SidetierError
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

_FAILED_REFRESH_AGE: Final = 1.0
"""Seconds. After a refresh that failed, the source counts as known as of this long ago, so that it
is not asked again at once.
"""


@dataclass(frozen=True, slots=True)
class Open:
    """Open a run, knowing the source as of `max_age` seconds ago."""

    run: Run
    max_age: float


@dataclass(frozen=True, slots=True)
class Refresh:
    """Look for changes of the source, unless that was done less than `max_age` seconds ago."""

    max_age: float


class Pipeline:
    """Reads one partition from a position on, until it is replaced.

    Args:
        tp: The partition.
        wanted: What to read.
        position: First wanted offset.
        due: Time before which nothing is requested, by the reader's clock.
        reported_end: The offset for which `ReachedEnd` was returned last.
        found: Bytes that were read already, if reading begins in them.

    Attributes:
        position: The next offset to return.
        run: The present run; None once the pipeline has stopped: after a gap, a permanent error, or
            the bound.
    """

    def __init__(
        self,
        tp: TopicPartition,
        wanted: Wanted,
        position: Offset,
        due: float,
        reported_end: Offset | None = None,
        found: ReadBytes | None = None,
    ) -> None:
        self.position, self.due, self.reported_end = position, due, reported_end
        self._tp, self._wanted = tp, wanted
        self._passed: Failed | None = None
        """Damage that was passed on the way to the marker of an open transaction."""
        self._failing = False
        """The last request failed. Until one succeeds, only one is made at a time."""
        self._as_of: float | None = None
        self._is_refreshing = False
        self.run: Run | None = Run(Target(position), wanted, found=found)
        if wanted.until is not None and position >= wanted.until:
            self.run.ending = Outcome.DONE

    # -- fetch threads -----------------------------------------------------------------------------

    def next_request(
        self, now: float, budget: MemoryBudget, *, may_exceed: bool
    ) -> Open | Refresh | Range | None:
        """Return the next request; None if there is none now."""
        run, settings = self.run, self._wanted.settings
        if run is None or now < self.due:
            return None
        if not run.is_asked:
            if run.ending is not None:
                return None
            run.is_asked = True
            return Open(run, settings.look_interval / 2)
        is_old = self._as_of is not None and now >= self._as_of + settings.max_view_age
        if is_old and not self._is_refreshing and run.decoder is not None:
            self._is_refreshing = True
            return Refresh(settings.max_view_age / 2)
        max_requests = 1 if self._failing else MAX_CONCURRENT_RANGES
        return run.next_range(budget, max_requests, may_exceed=may_exceed)

    def next_time(self, now: float) -> float | None:
        """Return the time of the next request, if no event comes before; None if there is none."""
        run = self.run
        if run is None:
            return None
        if now < self.due:
            return self.due
        if self._as_of is None or self._is_refreshing or run.decoder is None:
            return None
        return self._as_of + self._wanted.settings.max_view_age

    def opened(self, run: Run, opening: Opening | SidetierError) -> None:
        """Take the answer to `Open`."""
        self.ended(opening if isinstance(opening, SidetierError) else None)
        if not isinstance(opening, SidetierError | Halted):
            self._as_of = opening.as_of
        run.opened(opening)

    def refreshed(self, as_of: float | None, now: float) -> None:
        """Note the time of the source's knowledge. It may be unchanged, after an error."""
        self._is_refreshing = False
        self._as_of = None if as_of is None else max(as_of, now - _FAILED_REFRESH_AGE)

    def ended(self, error: SidetierError | None) -> None:
        """Note that a request has ended. While the source fails, one at a time is a probe; others
        would fail as well, and hold memory.
        """
        self._failing = error is not None and error.retry

    def fail(self, failed: Failed) -> None:
        """Return this instead of records."""
        if self.run is not None:
            self.run.ending = Halted(failed)

    # -- the thread that takes records -------------------------------------------------------------

    def step(self, now: float) -> Decoder | Range | Taken | None:
        """Return the next work, or the next result; None if there is none now."""
        run = self.run
        if run is None:
            return None
        if run.decoder is not None and run.decoder.has_batches:
            return run.decoder
        if run.ending is not None:
            return self._follow(run, run.ending, now)
        return run.head

    def decoded(
        self, decoder: Decoder, got: DecodedRecords | BatchTooLargeError | None
    ) -> Records | None:
        """Take decoded records, or the error of the next batch. Return the records, if any."""
        run = self.run
        if run is None or run.decoder is not decoder:
            return None
        run.decoded(decoder, got if isinstance(got, BatchTooLargeError) else None)
        # Also without records: batches of which nothing is visible move the position, too.
        self._move(decoder.returned_to)
        if not isinstance(got, DecodedRecords):
            return None
        self.reported_end = None
        return Records(self._tp, got.records, got.next_offset)

    def scan(self, fetched: Range) -> FeedResult | None:
        """Pass a range to the decoder, without the lock: only this thread replaces runs."""
        return None if self.run is None else self.run.scan(fetched)

    def scanned(self, fetched: Range, result: FeedResult | None, share: int) -> None:
        """Take the result of `scan`."""
        if self.run is not None:
            self.run.scanned(fetched, result, share)
            if self._wanted.transactions is not None and result is FeedResult.NEXT_SEGMENT:
                self._wanted.transactions.forget_below(self.position)

    @property
    def takeable(self) -> bool:
        """Whether `step` returns something, or continues after an ending."""
        run = self.run
        return run is not None and (
            run.ending is not None or run.has_batches or run.head is not None
        )

    @property
    def decoder_bytes(self) -> int:
        """Bytes that the decoder refers to."""
        return 0 if self.run is None else self.run.decoder_bytes

    # -- what follows an ending --------------------------------------------------------------------

    def _follow(self, run: Run, ending: Ending, now: float) -> Taken | None:
        """Replace the run, or stop. Return the result, if any."""
        if isinstance(ending, AtEnd):
            return self._at_end(run, ending, now)
        if isinstance(ending, Halted):
            return self._halted(run, ending.taken, now)
        if isinstance(ending, SidetierError):
            return self._failed(run, ending, now)
        if ending is Outcome.DONE:
            return self._done()
        if isinstance(ending, Stuck):
            # What is held for an open transaction is read again, once that is decided.
            self._begin(ending, now, run.blocked_at)
        elif isinstance(ending, Target):
            self._begin(ending, now, ending.waiting_for)
        else:
            self._passed = None  # it is reported when reading gets there
            self._begin(Target(self.position), now)
        return None

    def _at_end(self, run: Run, end: AtEnd, now: float) -> Taken | None:
        """Check for more segments: at once if the last check is old, and otherwise later.

        No batches of an open transaction are held meanwhile: they are read again once it is
        decided.
        """
        blocked, every = run.blocked_at, self._wanted.settings.look_interval
        if blocked is None and self._wanted.until is not None and end.offset >= self._wanted.until:
            return self._done()
        if blocked is not None and self._passed is not None:
            # The marker may be among the lost records: waiting for it could take for ever.
            return self._stop(_from(self._passed, blocked))
        # Not by a later refresh: the run has read only what was known when it was opened.
        as_of = end.as_of
        if as_of is None or (run.decoder is not None and now - as_of >= every):
            self._begin(Target(end.offset, blocked), now, blocked)
            return None
        self._begin(Target(end.offset, blocked), as_of + every, blocked)
        if blocked is None:
            self._move(end.offset)
        if self.reported_end == self.position:
            return None
        self.reported_end = self.position
        return ReachedEnd(self._tp, self.position)

    def _halted(self, run: Run, taken: Gap | Failed, now: float) -> Taken | None:
        """Process a gap or damage. If a transaction is open, its marker may come after it."""
        blocked, end = run.waiting_for, _end_of(taken)
        if blocked is None or end is None:
            return self._stop(taken)
        if isinstance(taken, Failed) and self._passed is None:
            self._passed = taken
        self._begin(Target(end, blocked), now, blocked)
        return None

    def _failed(self, run: Run, error: SidetierError, now: float) -> Taken:
        failed = Failed(self._tp, self.position, error)
        if not error.retry:
            return self._stop(failed)
        again, blocked = run.start, run.blocked_at
        if run.decoder is not None:
            # What is held for an open transaction is read again once that is decided, and not after
            # each failure: a store that fails often would never get there.
            again = Target(self.position if blocked is None else run.decoder.offset, blocked)
        self._begin(again, now + self._wanted.settings.failed_pause, blocked)
        return failed

    def _done(self) -> Taken:
        """Every wanted record has arrived."""
        return self._stop(
            ReachedEnd(self._tp, max(self._wanted.until or self.position, self.position))
        )

    def _begin(self, start: Target | Stuck, due: float, waiting_for: Offset | None = None) -> None:
        self.due = due
        self.run = Run(start, self._wanted, waiting_for)

    def _stop(self, taken: Taken) -> Taken:
        """Return the last result of this pipeline."""
        if isinstance(taken, Gap):
            self._move(taken.offsets.start)
        elif isinstance(taken, Failed):
            taken = replace(taken, next_offset=self.position)
        else:
            self._move(taken.next_offset)
        self.run = None
        return taken

    def _move(self, offset: Offset | None) -> None:
        if offset is not None and offset > self.position:
            self.position = offset


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

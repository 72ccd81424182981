"""Drive one partition from its fetched ranges to the records that the reader returns.

One thread at a time drives a partition. It holds the lock except while it scans and decodes.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from sidetier.archive.locate import SegmentPosition
from sidetier.archive.reader.actions import Range, Stage, Target
from sidetier.archive.reader.chain import Chain, Verdict, Wanted
from sidetier.archive.reader.opening import AtEnd, Halted, Opened, Opening
from sidetier.archive.reader.partition import Partition
from sidetier.archive.reader.results import (
    Failed,
    Gap,
    ReachedEnd,
    ReadingObserver,
    Records,
    Taken,
)
from sidetier.segments.errors import (
    BatchTooLargeError,
    DamagedSegmentError,
    ObjectNotFoundError,
    PreconditionFailedError,
    SidetierError,
)
from sidetier.segments.offsets import Offset


@dataclass(frozen=True, slots=True)
class FetchBuffer:
    """Takes records from partitions.

    Attributes:
        lock: Guards all partitions, and wakes the threads that make requests.
        observer: Receives events.
        clock: The reader's clock, in seconds.
        share: Returns each partition's share of the memory budget, in bytes.
    """

    lock: threading.Condition
    observer: ReadingObserver
    clock: Callable[[], float]
    share: Callable[[], int]

    def take(self, partition: Partition, most: int) -> Taken | None:
        """Drive a partition until it has something to return; None if it has nothing for now."""
        while True:
            with self.lock:
                if not partition.takeable():
                    return None
                chain = partition.chain
                ready = chain if chain is not None and chain.has_batches else None
                if ready is None and (partition.events or partition.ended):
                    return self._event(partition)
                next_range = self._settle(partition) if ready is None else None
                partition.driven = ready is not None or next_range is not None
            if ready is not None:
                records = self._records(partition, ready, most)
                if records is not None:
                    return records
            elif next_range is not None:
                self._feed(partition, chain, next_range)

    def _settle(self, partition: Partition) -> Range | None:
        """Process the partition's answer, or return its first range if it has arrived."""
        if partition.answer is not None:
            self._answered(partition)
            return None
        return partition.pop_range() if partition.takeable() else None

    def _records(self, partition: Partition, chain: Chain, most: int) -> Records | None:
        before = chain.stuck
        batch, failure = None, None
        try:
            batch = chain.next_batch(most)
        except BatchTooLargeError as error:
            failure = error
        with self.lock:
            partition.driven = False
            if partition.chain is not chain:
                return None
            if chain.handed is not None:
                partition.position = max(partition.position, chain.handed)
            if chain.stuck is not before and chain.stuck is not None:
                partition.events.clear()  # events of later offsets occur again
                partition.open_at(Target(chain.stuck.offset), partition.due)
                partition.stage = Stage.STUCK
            if failure is not None:
                partition.events.clear()
                partition.drop_chain()
                partition.stop(Failed(partition.tp, partition.position, failure))
            held = partition.chain_bytes
            partition.account()
            # Wake a request thread only if there is work for it: a wake-up for each batch would
            # cost more than the decoding.
            if partition.chain_bytes < held or not partition.takeable() or batch is None:
                self.lock.notify()
        if batch is None:
            return None
        partition.told_end = None
        self.observer.decoded(partition.tp, batch.records.num_rows)
        return Records(partition.tp, batch.records, batch.next_offset)

    def _event(self, partition: Partition) -> Taken | None:
        if partition.events:
            taken = partition.events.popleft()
            if partition.stage is Stage.STOPPED:
                partition.drop_chain()
            if isinstance(taken, Gap):
                partition.position = max(partition.position, taken.first)
            if isinstance(taken, ReachedEnd):
                partition.position = max(partition.position, taken.next_offset)
            if isinstance(taken, Failed):
                taken = Failed(taken.tp, partition.position, taken.error)
            return taken
        partition.ended = False
        if partition.end_offset is not None:
            partition.position = max(partition.position, partition.end_offset)
        if partition.told_end == partition.position:
            return None
        partition.told_end = partition.position
        return ReachedEnd(partition.tp, partition.position)

    def _feed(self, partition: Partition, chain: Chain | None, one: Range) -> None:
        self.observer.prefetch(partition.tp, hit=not one.waited)
        verdict = None
        if chain is not None and one.error is None:
            verdict = _fed(chain, one)
        with self.lock:
            partition.driven = False
            partition.budget.give_back(one.size)
            self.lock.notify()
            if chain is None or partition.chain is not chain:
                return
            if one.error is not None:
                self._range_failed(partition, chain, one, one.error)
            elif verdict is not None:
                self._judged(partition, chain, verdict)
            partition.account()

    def _range_failed(
        self, partition: Partition, chain: Chain, one: Range, error: SidetierError
    ) -> None:
        if isinstance(error, ObjectNotFoundError | PreconditionFailedError):
            self._judged(partition, chain, chain.get_stuck(error))
        elif error.retry:
            partition.plan(SegmentPosition(one.log, one.start))
            self._pause(partition, error)
        else:
            partition.stop(Failed(partition.tp, partition.position, error))

    def _pause(self, partition: Partition, error: SidetierError) -> None:
        partition.failing = True
        partition.due = self.clock() + partition.settings.failed_pause
        partition.events.append(Failed(partition.tp, partition.position, error))

    def _judged(self, partition: Partition, chain: Chain, verdict: Verdict) -> None:
        if verdict is Verdict.DONE:
            self._done(partition)
        elif verdict is Verdict.DECIDED:
            partition.drop_chain()
            partition.open_at(Target(partition.position), self.clock())
        elif verdict is Verdict.STUCK:
            partition.stage = Stage.STUCK
            partition.asked = False
        elif verdict is Verdict.NEXT_LOG and not self._next_log(partition, chain):
            return
        self._mind_memory(partition, chain)

    def _next_log(self, partition: Partition, chain: Chain) -> bool:
        """Continue in the segment that begins at the next offset. Return False if there is none."""
        view = partition.view
        if view is None:
            partition.open_at(Target(chain.offset, chain.waiting_for), self.clock())
            return False
        if chain.offset >= view.end:
            self._end(partition, chain.offset)
            return False
        log = view.holder(chain.offset)
        if log is None or int(log.base_offset) != chain.offset:
            chain.get_stuck(None)
            partition.stage = Stage.STUCK
            partition.asked = False
            return True
        if chain.looks_ahead:  # the transaction index and the snapshot may be enough
            partition.open_at(Target(chain.offset, chain.waiting_for), self.clock())
            return False
        segment_position = SegmentPosition(log, 0)
        chain.go_on(segment_position, chain.offset, view.until(chain.offset))
        partition.plan(segment_position)
        if partition.transactions is not None:
            partition.transactions.forget_below(partition.position)
        return True

    def _end(self, partition: Partition, offset: Offset, *, looked: bool = False) -> None:
        """At the readable end: check for more segments, at once if the last snapshot is old.

        No batches of an open transaction are held meanwhile: they are read again once it is
        decided.
        """
        chain = partition.chain
        blocked = chain.blocked_at if chain is not None else partition.target.waiting_for
        if blocked is None and partition.until is not None and offset >= partition.until:
            self._done(partition)
            return
        if chain is not None and blocked is not None:
            chain.look_ahead(blocked)
        now, every = self.clock(), partition.settings.look_interval
        is_part = partition.view is not None and partition.view.is_part
        is_fresh = not is_part and (looked or now - partition.looked_at < every)
        partition.open_at(Target(offset, blocked), partition.looked_at + every if is_fresh else now)
        partition.ended = is_fresh
        partition.end_offset = offset if blocked is None else None
        partition.account()

    def _done(self, partition: Partition) -> None:
        """Everything wanted has arrived: queue `ReachedEnd` behind the records not yet returned."""
        if partition.until is not None:
            partition.stop(ReachedEnd(partition.tp, partition.until))
        partition.account()

    def _mind_memory(self, partition: Partition, chain: Chain) -> None:
        """Keep batches held for an open transaction from filling the partition's share."""
        blocked = chain.blocked_at
        known = partition.transactions.known_below if partition.transactions else Offset(0)
        if blocked is None or chain.looks_ahead or partition.stage is not Stage.READING:
            return
        if chain.offset < known:
            # Transactions below `known` were read before; the missing marker is at or above it.
            chain.look_ahead(blocked)
            partition.open_at(Target(known, blocked), self.clock())
        elif chain.held_bytes > self.share() // 2:
            chain.look_ahead(blocked)

    def relieve(self, partition: Partition) -> bool:
        """Drop batches that are held for a transaction if no memory is left to read on.

        The caller holds the lock.
        """
        chain = partition.chain
        blocked = chain.blocked_at if chain is not None else None
        if chain is None or blocked is None or not partition.may_yield():
            return False
        chain.look_ahead(blocked)
        partition.account()
        return True

    def _answered(self, partition: Partition) -> None:
        answer = partition.answer
        partition.answer, partition.asked = None, False
        if isinstance(answer, SidetierError):
            if answer.retry:
                self._pause(partition, answer)
            else:
                partition.stop(Failed(partition.tp, partition.position, answer))
        elif answer is not None:
            self._opened(partition, answer)
        self.lock.notify()

    def _opened(self, partition: Partition, answer: Opening) -> None:
        chain = partition.chain
        stuck = partition.stage is Stage.STUCK
        if isinstance(answer, Opened):
            if self._is_decided(partition, answer):
                partition.drop_chain()
                partition.open_at(Target(partition.position), self.clock())
                return
            if stuck and chain is not None:
                chain.go_on(answer.segment_position, answer.offset, answer.until)
            else:
                partition.chain = Chain(
                    answer.segment_position,
                    answer.offset,
                    answer.until,
                    transactions=partition.transactions,
                    wanted=Wanted(
                        partition.settings.decoded_columns,
                        partition.until,
                        partition.settings.max_batch_bytes,
                    ),
                    waiting_for=partition.target.waiting_for,
                )
            if partition.chain is not None and partition.chain.is_done:
                self._done(partition)
                return
            partition.stage = Stage.READING
            partition.plan(answer.segment_position)
            partition.account()
        elif isinstance(answer, AtEnd):
            self._end(partition, answer.offset, looked=True)
        else:
            self._halted(partition, answer)

    def _is_decided(self, partition: Partition, answer: Opened) -> bool:
        """Whether the transactions of the skipped segments decide the one that is waited for."""
        waiting_for, known = partition.target.waiting_for, partition.transactions
        if waiting_for is None or known is None:
            return False
        for learnt in answer.learnt:
            known.take_in(learnt, waiting_for)
        return bool(answer.learnt) and known.stable > waiting_for

    def _halted(self, partition: Partition, answer: Halted) -> None:
        """Process a gap or damage. If a transaction is open, its marker may come after it."""
        chain = partition.chain
        stuck = partition.stage is Stage.STUCK
        blocked = chain.blocked_at if stuck and chain is not None else partition.target.waiting_for
        end = _end_of(answer.taken)
        if blocked is None or end is None:
            partition.stop(answer.taken)
            return
        if chain is not None:
            chain.look_ahead(blocked)
        partition.open_at(Target(end, blocked), self.clock())
        partition.account()


def _fed(chain: Chain, one: Range) -> Verdict:
    data = one.data or b""
    if len(data) < one.size:
        return chain.get_stuck(
            DamagedSegmentError(
                f"{one.log.key}: only {one.start + len(data)} of {one.log.size} bytes are there"
            )
        )
    return chain.feed(data, is_last=one.is_last)


def _end_of(taken: Gap | Failed) -> Offset | None:
    """Return the end of the missing offsets, if it is known."""
    if isinstance(taken, Gap):
        return taken.end
    end = getattr(taken.error, "end", None)
    return end if end is None else Offset(end)

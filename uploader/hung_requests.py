"""Requests that a store does not answer.

A thread that hangs in the kernel cannot be ended. So hung requests are counted, and the number of
further requests to the same store is limited until it answers.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import structlog

from sidetier.segments.offsets import TopicPartition
from sidetier.storage.store_calls import StoreCall, StoreCalls
from sidetier.uploader.led_partitions import LedPartitions
from sidetier.uploader.state.events import Event, StoreSilent
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.stores import PlaceOf
from sidetier.uploader.workers import SharedPool

log: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Hung:
    """A hung request.

    Attributes:
        call: The request.
        topic_partition: The partition that it is made for; None if it concerns the whole cluster,
            or a partition that has left this broker.
        attempt: Number of the attempt when the hang was noticed.
    """

    call: StoreCall
    topic_partition: TopicPartition | None
    attempt: int


class HungRequests:
    """Holds back the partitions of hung requests. Only the daemon's thread uses it.

    A partition makes no further request and starts no upload while one of its requests hangs. Its
    store gets one request at a time until it answers. So the worker pools limit the number of hung
    threads, and after the first hang is known, at most one more request of each pool can hang.

    Args:
        calls: The store requests under way.
        pools: The worker threads that make requests for partitions.
        partitions: The partitions that this broker leads or follows now.
        place_of: Where a topic is archived.
    """

    def __init__(
        self,
        calls: StoreCalls,
        pools: Iterable[SharedPool[Event]],
        partitions: LedPartitions,
        place_of: PlaceOf,
    ) -> None:
        self._calls = calls
        self._pools = tuple(pools)
        self._partitions = partitions
        self._place_of = place_of
        self._hung: list[_Hung] = []
        self._held: dict[TopicPartition, Partition] = {}

    @property
    def count(self) -> int:
        """Number of requests that hung at the last check."""
        return len(self._hung)

    @property
    def of_partitions(self) -> int:
        """Number of hung requests that are made for partitions."""
        return sum(hung.topic_partition is not None for hung in self._hung)

    @property
    def reason(self) -> str | None:
        """Why the store counts as unreachable; None while every request is answered."""
        if not self._hung:
            return None
        oldest = self._hung[0].call
        others = f", and {self.count - 1} more" if self.count > 1 else ""
        return (
            f"{_described(oldest)} has not been answered for {self._calls.seconds(oldest):.0f} s"
            f"{others}"
        )

    def check(self) -> list[tuple[Partition, StoreSilent]]:
        """Check which requests hang now.

        Returns:
            An event for each partition whose oldest hung request has changed; with the reason None
            if its requests no longer hang.
        """
        known = {hung.call: hung for hung in self._hung}
        calls = self._calls.hung()
        for call in calls:
            if call not in known:
                self._begins(known.setdefault(call, self._attributed(call)))
        for call in known.keys() - calls:
            self._ends(known[call])
        # In the order of `hung()`, the oldest first: `reason` names the first.
        self._hung = [known[call] for call in calls]
        return self._changes()

    def _attributed(self, call: StoreCall) -> _Hung:
        of_threads = (pool.partition_on(call.thread) for pool in self._pools)
        return _Hung(call, next(filter(None, of_threads), None), call.attempt)

    def _begins(self, hung: _Hung) -> None:
        if hung.topic_partition is not None:
            self._place_of(hung.topic_partition.topic).gate.hangs()
        log.warning("store.request_hangs", **self._facts(hung))

    def _ends(self, hung: _Hung) -> None:
        log.warning("store.request_returned", **self._facts(hung))

    def _facts(self, hung: _Hung) -> dict[str, object]:
        call, tp = hung.call, hung.topic_partition
        named = {} if tp is None else {"topic": tp.topic, "partition": tp.partition}
        return {
            **named,
            "operation": call.operation,
            "key": call.key,
            "store": call.store,
            "attempt": hung.attempt,
            "seconds": round(self._calls.seconds(call), 1),
        }

    def _changes(self) -> list[tuple[Partition, StoreSilent]]:
        reasons: dict[TopicPartition, str] = {}
        for hung in self._hung:
            if hung.topic_partition is not None:
                reason = f"the store: {_described(hung.call)} has not been answered in time"
                reasons.setdefault(hung.topic_partition, reason)
        changes: list[tuple[Partition, StoreSilent]] = []
        for tp, held in list(self._held.items()):
            # The partition may have left and come back as another object, with a state of its own.
            if tp not in reasons or self._partitions.get(tp) is not held:
                del self._held[tp]
                changes.append((held, StoreSilent(None)))
        for tp, reason in reasons.items():
            partition = self._partitions.get(tp)
            if partition is not None and partition.unanswered != reason:
                self._held[tp] = partition
                changes.append((partition, StoreSilent(reason)))
        return changes


def _described(call: StoreCall) -> str:
    return f"{call.operation} {call.key} at {call.store}"

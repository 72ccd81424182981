"""Read the committed records of single partitions of a running cluster, up to a known end."""

import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple, Protocol

import structlog

from sidetier.mirror.copy.batches import SourceBatch, select_batches
from sidetier.segments.arrow.decode import decode
from sidetier.segments.errors import MirrorError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.segments.records import Record
from sidetier.wire.cluster import Cluster, Leader
from sidetier.wire.fetch_session import FetchPosition
from sidetier.wire.record_requests import FetchedPartition, receive_fetched_partition, send_fetch
from sidetier.wire.requests import EARLIEST, LATEST, list_offsets

_FETCH_BYTES: Final = 8 << 20
_WAIT_SECONDS: Final = 0.25
_PATIENCE_SECONDS: Final = 90.0
"""Seconds. Longer than the default transaction timeout of a worker that was killed."""
_COLUMNS: Final = ("offset", "timestamp", "key", "value", "headers")
_CHECK_SECONDS: Final = 0.5

log = structlog.get_logger("sidetier.mirror")


class LogOffsets(NamedTuple):
    """Log start offset, last stable offset and high watermark of a partition."""

    start: Offset
    last_stable: Offset
    end: Offset


class PartitionLog(Protocol):
    """Reads the committed records of partitions."""

    def offsets(self, tp: TopicPartition) -> LogOffsets | None:
        """Return the current log offsets, or None if the topic does not exist."""
        ...

    def read(self, tp: TopicPartition, start: int, end: int) -> Iterator[Record]:
        """Yield the records that a read-committed consumer gets in [`start`, `end`).

        Waits for transactions that are open below `end`.

        Raises:
            MirrorError: A transaction stays open for too long.
            BrokerError: A broker refuses a request, or none answers.
        """
        ...


class ClusterLog:
    """The partitions of a running cluster. Implements `PartitionLog`; not thread-safe."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        patience: float = _PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._patience = patience
        self._clock = clock

    def offsets(self, tp: TopicPartition) -> LogOffsets | None:
        """Send a Metadata and three ListOffsets requests; the log start comes first."""
        if tp.topic not in self._cluster.metadata([tp.topic]).topics:
            return None
        start, end = (list_offsets(self._cluster, {tp: at})[tp].offset for at in (EARLIEST, LATEST))
        stable = list_offsets(self._cluster, {tp: LATEST}, isolation=IsolationLevel.READ_COMMITTED)
        return LogOffsets(start, stable[tp].offset, end)

    def read(self, tp: TopicPartition, start: int, end: int) -> Iterator[Record]:
        """Fetch from the partition's leader, and decode one batch at a time."""
        position, deadline = Offset(start), self._clock() + self._patience
        while position < end:
            fetched = self._fetch(tp, position)
            selection = select_batches(
                fetched.records, position, fetched.aborted, until=Offset(end)
            )
            for batch in selection.batches:
                yield from _records_in(batch, tp)
            now = self._clock()
            if selection.next_offset > position:
                deadline = now + self._patience
            elif now > deadline:
                raise MirrorError(
                    f"{tp}: a transaction at offset {position} has been open for more than "
                    f"{self._patience:.0f} s, so later records cannot be read; try again once it "
                    "has ended"
                )
            position = selection.next_offset

    def _fetch(self, tp: TopicPartition, position: Offset) -> FetchedPartition:
        def attempt() -> FetchedPartition:
            connection = self._cluster.connection(Leader(tp))
            send_fetch(
                connection,
                [FetchPosition(tp, position, _FETCH_BYTES)],
                isolation=IsolationLevel.READ_COMMITTED,
                max_wait=_WAIT_SECONDS,
                max_bytes=_FETCH_BYTES,
            )
            return receive_fetched_partition(connection)

        return self._cluster.retrying(attempt)


def _records_in(batch: SourceBatch, tp: TopicPartition) -> Iterator[Record]:
    decoded = decode(
        batch.data, columns=_COLUMNS, first=batch.start, end=batch.end, name=str(tp)
    ).records
    for row in decoded.to_pylist():
        headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
        yield Record(row["offset"], row["timestamp"], row["key"], row["value"], headers)


def wait_for_open_transactions(
    cluster: Cluster, partitions: Collection[TopicPartition], stop: threading.Event
) -> None:
    """Wait until read-committed consumers see all that the partitions hold now, or `stop` is set.

    The transaction of a killed worker stays open until the coordinator aborts it, and hides records
    that other workers have committed after it. The broker's `transaction.max.timeout.ms` limits the
    wait.

    Raises:
        BrokerError: A partition no longer exists, or no broker answers.
    """
    ends = list_offsets(cluster, dict.fromkeys(partitions, LATEST))
    is_logged = False
    while partitions and not stop.is_set():
        stable = list_offsets(
            cluster, dict.fromkeys(partitions, LATEST), isolation=IsolationLevel.READ_COMMITTED
        )
        partitions = [tp for tp in partitions if stable[tp].offset < ends[tp].offset]
        if not partitions:
            return
        if not is_logged:
            log.info("mirror.waits_for_transactions", partitions=[str(tp) for tp in partitions])
            is_logged = True
        stop.wait(_CHECK_SECONDS)

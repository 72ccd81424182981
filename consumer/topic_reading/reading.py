"""Read loop over one topic, and the port for its sources of records.

One source reads the archive alone (`archive_source`), the other one reads Kafka with it
(`tiered_source`).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from sidetier.archive.errors import DamagedArchiveError
from sidetier.archive.positions import Bounded, PartitionRange, plan_ranges
from sidetier.archive.reader.results import Failed, Gap, ReachedEnd, Records, Taken
from sidetier.config.model import Config
from sidetier.consumer.sources import Mode
from sidetier.consumer.topic_reading.archive_source import open_archive_source
from sidetier.consumer.topic_reading.filters import filtered
from sidetier.consumer.topic_reading.request import TopicReadRequest
from sidetier.segments.errors import ArchiveError
from sidetier.segments.offsets import TopicPartition

TopicRecords = tuple[TopicPartition, pa.RecordBatch]


class TopicSource(Bounded, Protocol):
    """Reads partitions of one topic."""

    def assign(self, starts: dict[TopicPartition, int]) -> None:
        """Start reading these partitions, each at the given offset."""
        ...

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Continue a partition at another offset."""
        ...

    def finish(self, tp: TopicPartition) -> None:
        """Stop reading a partition; `take` may still return a few of its records."""
        ...

    def take(self, most: int, timeout: float) -> list[Taken]:
        """Return at most `most` records; wait up to `timeout` seconds for the first."""
        ...

    @property
    def skipped(self) -> int:
        """Number of offsets that the source skipped without reporting them in `take`."""
        ...


_AT_ONCE: Final = 10_000
_WAIT_SECONDS: Final = 1.0

Note = Callable[[str], None]


@dataclass(slots=True)
class PartitionReading:
    """Range and position of one partition.

    Attributes:
        first: First offset to read.
        end: End offset, exclusive; None to read without an end.
        position: Next offset to read.
        records: Records that were returned.
        missing: Offsets that were skipped because their records are lost.
    """

    tp: TopicPartition
    first: int
    end: int | None
    position: int
    records: int = 0
    missing: int = 0

    @property
    def is_done(self) -> bool:
        """Whether the partition is at its end."""
        return self.end is not None and self.position >= self.end


class TopicReading:
    """Reads all ranges to their ends; `on_note` receives warnings."""

    def __init__(
        self,
        source: TopicSource,
        request: TopicReadRequest,
        ranges: Sequence[PartitionRange],
        on_note: Note,
    ) -> None:
        self.partitions = {
            planned.tp: PartitionReading(planned.tp, planned.start, planned.end, planned.start)
            for planned in ranges
        }
        self._source = source
        self._request = request
        self._on_note = on_note
        self._left = request.limit
        self._open: set[TopicPartition] = set()

    @property
    def total(self) -> int | None:
        """Number of offsets to read; None if the end is open."""
        if self._request.follow:
            return None
        return sum((partition.end or 0) - partition.first for partition in self.partitions.values())

    @property
    def records(self) -> int:
        """Number of records that were returned."""
        return sum(partition.records for partition in self.partitions.values())

    @property
    def has_gaps(self) -> bool:
        """Whether offsets were skipped that should have records."""
        return (
            any(partition.missing for partition in self.partitions.values())
            or self._source.skipped > 0
        )

    def batches(
        self, on_progress: Callable[[int, int], None] = lambda _done, _records: None
    ) -> Iterator[TopicRecords]:
        """Yield records until every partition is at its end, or the record limit is reached.

        The records of each partition are in order. A position moves when the next records are asked
        for. `on_progress` is called often, with the number of offsets that were passed and of
        records that were returned.

        Raises:
            SidetierError: Reading cannot continue; for a gap, the text explains how to continue.
        """
        starts = {c.tp: c.first for c in self.partitions.values() if not c.is_done}
        if not starts or self._left == 0:
            return
        self._open = set(starts)
        self._source.assign(starts)
        while self._open and self._left != 0:
            is_filtered = self._left is None or bool(self._request.filters)
            most = _AT_ONCE if is_filtered else min(_AT_ONCE, self._left or 0)
            for taken in self._source.take(most, _WAIT_SECONDS):
                yield from self._taken(taken)
            on_progress(sum(c.position - c.first for c in self.partitions.values()), self.records)

    def _taken(self, taken: Taken) -> Iterator[TopicRecords]:
        if taken.tp not in self._open:
            return
        read = self.partitions[taken.tp]
        if isinstance(taken, Records):
            yield from self._records(read, taken)
        elif isinstance(taken, ReachedEnd):
            self._ended(read, taken.next_offset)
        elif isinstance(taken, Gap):
            self._gap(read, *taken.offsets, taken.detail)
        else:
            self._failed(read, taken)

    def _records(self, read: PartitionReading, taken: Records) -> Iterator[TopicRecords]:
        rows, next_offset = taken.records, int(taken.next_offset)
        if read.end is not None and next_offset > read.end:
            offsets = rows.column("offset").to_numpy()
            rows = rows.slice(0, int(np.searchsorted(offsets, read.end)))
            next_offset = read.end
        if self._request.filters:
            rows = filtered(rows, self._request.filters)
        if self._left is not None and rows.num_rows >= self._left:
            rows = rows.slice(0, self._left)
            next_offset = rows.column("offset")[-1].as_py() + 1 if self._left else read.position
        if rows.num_rows:
            yield read.tp, rows
        read.records += rows.num_rows
        read.position = next_offset
        if self._left is not None:
            self._left -= rows.num_rows
        self._close_if_done(read)

    def _ended(self, read: PartitionReading, next_offset: int) -> None:
        if self._request.follow:
            read.position = max(read.position, next_offset)
            return
        if read.end is not None and next_offset < read.end:
            self._on_note(
                f"{read.tp}: offsets [{next_offset}, {read.end}) are left out: a transaction "
                f"that begins at {next_offset} is not decided yet; --isolation read_uncommitted "
                "shows them"
            )
        read.position = max(read.position, min(next_offset, read.end or next_offset))
        self._finish(read)

    def _gap(self, read: PartitionReading, first: int, end: int, detail: str) -> None:
        last = end if read.end is None else min(end, read.end)
        if not self._request.skip_gaps:
            raise ArchiveError(
                f"{detail}\n--from {end} continues after them, --on-gap skip skips every gap"
            )
        self._on_note(f"skipped: {detail}")
        read.missing += max(last - max(first, read.position), 0)
        read.position = last
        if not self._close_if_done(read):
            self._source.seek(read.tp, end)

    def _failed(self, read: PartitionReading, failed: Failed) -> None:
        error = failed.error
        if isinstance(error, DamagedArchiveError):
            self._gap(read, *error.offsets, str(error))
        elif error.retry and self._request.follow:
            self._on_note(f"{error}; tried again")
        else:
            raise error

    def _close_if_done(self, read: PartitionReading) -> bool:
        if read.is_done:
            self._finish(read)
        return read.is_done

    def _finish(self, read: PartitionReading) -> None:
        self._open.discard(read.tp)
        self._source.finish(read.tp)


@contextmanager
def open_reading(
    config: Config, request: TopicReadRequest, on_note: Note = lambda _: None
) -> Iterator[TopicReading]:
    """Open what the request reads, and plan the range of each partition; closed on exit.

    Args:
        config: Its `storage`, and for modes with Kafka its `broker`.
        request: What to read.
        on_note: Receives what a reader should know, such as a skipped gap.

    Raises:
        ConfigurationError: The topic or a partition does not exist, or the range is empty.
        SidetierError: The archive or Kafka cannot be read.
    """
    with _open(config, request) as source:
        ranges = plan_ranges(
            source,
            request.topic,
            request.begin,
            request.end,
            time.time_ns() // 1_000_000,
            partitions=request.partitions,
            follow=request.follow,
            on_note=on_note,
        )
        yield TopicReading(source, request, ranges, on_note)


def _open(config: Config, request: TopicReadRequest) -> AbstractContextManager[TopicSource]:
    if request.mode is Mode.TIERED_STORAGE_ONLY:
        return open_archive_source(config, request)
    from sidetier.consumer.topic_reading.tiered_source import open_tiered_source  # noqa: PLC0415 -- needs librdkafka

    return open_tiered_source(config, request)

"""Records of one topic from the archive alone, without a broker."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, NoReturn

from sidetier.archive.access import ArchiveAccess, open_archive, require_directory
from sidetier.archive.inventory.cluster import list_partitions
from sidetier.archive.objects.layout import check_note, read_note
from sidetier.archive.reader.reader import ArchiveReader
from sidetier.archive.reader.results import Taken
from sidetier.archive.reader.settings import IsolationLevel, ReaderSettings
from sidetier.archive.topics import cluster_prefixes, not_archived
from sidetier.config.model import Config
from sidetier.consumer.topic_reading.request import TopicReadRequest
from sidetier.segments.offsets import OffsetRange, TopicPartition

_AT_ONCE: Final = 16


class ArchiveTopicSource:
    """Reads one topic of an archive."""

    skipped = 0
    """Always 0: `take` reports every gap."""

    def __init__(self, archive: ArchiveAccess, reader: ArchiveReader, topic: str) -> None:
        self._archive = archive
        self._reader = reader
        self._topic = topic

    def partitions(self) -> Sequence[int]:
        """Return the partitions of the topic that have an archive or a tail, in rising order.

        Sends a listing for each entropy prefix, in parallel.
        """
        store, layout = self._archive.store(self._topic), self._archive.layout

        def listed(prefix: str) -> list[int]:
            partitions = list_partitions(store, layout, prefix, self._topic)
            return [partition.topic_partition.partition for partition in partitions]

        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="list") as pool:
            partitions = {
                partition
                for batch in pool.map(listed, cluster_prefixes(store, layout))
                for partition in batch
            }
        partitions |= self._reader.partitions_with_tail(self._topic)
        if not partitions:
            self._refuse()
        return sorted(partitions)

    def bounds(self, tp: TopicPartition) -> OffsetRange:
        """Return the range that can be read, end exclusive."""
        bounds = self._reader.bounds(tp)
        if bounds is None:
            self._refuse(tp.partition)
        return OffsetRange(bounds.start_offset, bounds.next_offset)

    def offset_for_time(self, tp: TopicPartition, timestamp_ms: int) -> int | None:
        """Return the first offset of this time or later; None if there is none."""
        return self._reader.offset_for_time(tp, timestamp_ms)

    def assign(self, starts: dict[TopicPartition, int]) -> None:
        """Start reading these partitions, each at the given offset."""
        for tp, offset in starts.items():
            self._reader.assign(tp, offset)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Continue a partition at another offset."""
        self._reader.seek(tp, offset)

    def finish(self, tp: TopicPartition) -> None:
        """Stop reading a partition."""
        self._reader.unassign(tp)

    def take(self, most: int, timeout: float) -> list[Taken]:
        """Return at most `most` records; wait up to `timeout` seconds for the first."""
        return self._reader.take(most, timeout)

    def _refuse(self, partition: int | None = None) -> NoReturn:
        """Raise: nothing is archived under these settings. The error names wrong entropy bits."""
        layout, url = self._archive.layout, self._archive.url(self._topic)
        store = self._archive.store(self._topic)
        note = read_note(store, layout)
        if note is not None:
            check_note(note, layout, None)
        raise not_archived(store, layout, url, self._topic, partition)


@contextmanager
def open_archive_source(config: Config, request: TopicReadRequest) -> Iterator[ArchiveTopicSource]:
    """Open the archive of a topic, and close it at the end.

    Raises:
        ConfigurationError: The directory does not exist, or a secret cannot be read.
    """
    require_directory(config.storage.target(request.topic).url)
    settings = ReaderSettings(
        isolation=IsolationLevel(request.isolation),
        with_tail=request.with_tail,
        max_batch_bytes=request.max_batch_bytes,
        columns=tuple(dict.fromkeys(("offset", *request.columns, *request.filters.columns))),
    )
    with open_archive(config.cluster.name, config.storage, connections=_AT_ONCE) as archive:
        reader = ArchiveReader(archive, settings)
        try:
            yield ArchiveTopicSource(archive, reader, request.topic)
        finally:
            reader.close()

"""`sidetier ls`: list partitions and segments on the store."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import click

from sidetier.archive.objects.layout import check_note, read_note
from sidetier.archive.topics import cluster_prefixes
from sidetier.cli import exits
from sidetier.cli.archive_listing import (
    NO_WATERMARK,
    ArchiveEnd,
    LogFacts,
    StoredPartition,
    StoredSegmentFiles,
    list_partitions,
    list_segments,
    not_archived,
    read_archive_end,
    read_log_facts,
)
from sidetier.cli.arguments import PARTITION, checked_topic
from sidetier.cli.invocation import configuration_options, invocation
from sidetier.cli.ls_view import (
    PartitionRow,
    PartitionsResult,
    SegmentsResult,
    partition_row,
    segment_row,
)
from sidetier.cli.output import OutputFormat, emit, output_option
from sidetier.cli.stores import EveryStore, layout_of, open_every_store, with_short_timeouts
from sidetier.segments.offsets import TopicPartition

if TYPE_CHECKING:
    from sidetier.config.model import Config
    from sidetier.segments.keys import ArchiveLayout
    from sidetier.storage.port import RemoteStorage

_AT_ONCE: Final = 16
"""Maximum number of concurrent requests."""

T = TypeVar("T")
V = TypeVar("V")


@click.command(name="ls")
@click.argument("topic", required=False, callback=checked_topic)
@click.argument("partition", required=False, type=PARTITION)
@click.option(
    "--quick", is_flag=True, help="Omit columns that cost a request for each partition or segment."
)
@configuration_options
@output_option
@click.pass_context
def command(
    context: click.Context,
    topic: str | None,
    partition: int | None,
    *,
    quick: bool,
    output: OutputFormat,
) -> None:
    """List the partitions on the store, or the segments of one partition.

    NOT COMMITTED counts stored segments above the offset that is archived up to: readers do not see
    them yet. Requests on S3: one listing for every 1,000 objects, at least one for each entropy
    prefix (32 with 5 bits; one for a single partition), and without --quick one more for each
    partition, or for each segment of a named partition.

    \b
    Example:
      sidetier ls orders 3 --config /etc/sidetier/sidetier.yaml

    Exit codes: 0 no problem; 2 nothing is archived of the named topic or partition; 3 something is
    missing or cannot be parsed.
    """  # noqa: D301 -- \b is click's marker and must be one character
    config = invocation(context).load().config
    result: PartitionsResult | SegmentsResult
    with (
        open_every_store(with_short_timeouts(config), connections=_AT_ONCE) as stores,
        _pool() as pool,
    ):
        lister = _Look(config, layout_of(config), stores, pool, quick=quick)
        if topic is not None and partition is not None:
            result = lister.segments(TopicPartition(topic, partition))
            has_problem = result.problem is not None
        else:
            result = lister.partitions(topic)
            has_problem = result.has_problems
        if topic is not None and result.is_empty:
            url = config.storage.target(topic).url
            raise not_archived(stores.of_topic(topic), lister.layout, url, topic, partition)
    emit(result, output)
    context.exit(exits.FINDINGS if has_problem else exits.OK)


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=_AT_ONCE, thread_name_prefix="ls")


@dataclass(frozen=True, slots=True)
class _Look:
    """Lists the stores, with several requests at the same time."""

    config: "Config"
    layout: "ArchiveLayout"
    stores: EveryStore
    pool: ThreadPoolExecutor
    quick: bool

    def partitions(self, topic: str | None) -> PartitionsResult:
        """List all partitions, or those of one topic."""
        rows = [
            row
            for store in self.stores.by_endpoint.values()
            for row in self._in_store(store, topic)
        ]
        rows.sort(key=lambda row: (row.topic, row.partition))
        return PartitionsResult(self.layout.cluster, rows)

    def _in_store(self, store: "RemoteStorage", topic: str | None) -> Iterator[PartitionRow]:
        self._check(store)

        def listed(prefix: str) -> list[StoredPartition]:
            return list(list_partitions(store, self.layout, prefix, topic))

        prefixes = cluster_prefixes(store, self.layout)
        partitions = [
            partition
            for prefix_partitions in self._map(listed, prefixes)
            for partition in prefix_partitions
        ]
        partitions = [
            partition
            for partition in partitions
            if self.stores.of_topic(partition.topic_partition.topic) is store
        ]
        read = partial(self._watermark_of, store)
        for stored, mark in zip(partitions, self._map(read, partitions), strict=True):
            yield partition_row(self._as_of(mark, stored, store), mark, quick=self.quick)

    def _as_of(
        self, mark: ArchiveEnd, stored: StoredPartition, store: "RemoteStorage"
    ) -> StoredPartition:
        """List the partition again if a sidecar has moved `offset.wm` beyond the first listing."""
        if mark.watermark is None or mark.watermark.base_offset in stored.bases:
            return stored
        tp = stored.topic_partition
        prefix = self.layout.partition_prefix(tp).removesuffix(f"{tp}/")
        again = list_partitions(store, self.layout, prefix, tp.topic)
        return next((partition for partition in again if partition.topic_partition == tp), stored)

    def _watermark_of(self, store: "RemoteStorage", stored: StoredPartition) -> ArchiveEnd:
        if self.quick:
            return ArchiveEnd(problem=None if stored.has_watermark else NO_WATERMARK)
        return read_archive_end(store, self.layout, stored.topic_partition)

    def segments(self, tp: TopicPartition) -> SegmentsResult:
        """List the segments of one partition."""
        store = self.stores.of_topic(tp.topic)
        self._check(store)
        # read first: a sidecar may move it during the listing
        archive_end = read_archive_end(store, self.layout, tp)
        segments = list(list_segments(store, self.layout, tp))

        def facts(segment: StoredSegmentFiles) -> LogFacts:
            if self.quick:
                return LogFacts()
            return read_log_facts(store, self.layout, tp, segment.base_offset)

        rows = [
            segment_row(segment, log_facts, archive_end)
            for segment, log_facts in zip(segments, self._map(facts, segments), strict=True)
        ]
        url = self.config.storage.target(tp.topic).url
        return SegmentsResult(tp, f"{url}/{self.layout.partition_prefix(tp)}", archive_end, rows)

    def _map(self, function: Callable[[T], V], items: Iterable[T]) -> Iterator[V]:
        return self.pool.map(function, items)

    def _check(self, store: "RemoteStorage") -> None:
        """Refuse other entropy bits: the listing would be empty, although the store has objects."""
        note = read_note(store, self.layout)
        if note is not None:
            check_note(note, self.layout, None)

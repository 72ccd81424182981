"""`sidetier ls`: partitions and segments on the store."""

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
"""Requests that are made at the same time."""

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

    ABOVE counts stored segments above the offset that is archived up to: readers do not see them
    yet. Requests on S3: one listing for every 1,000 objects, at least one for each entropy prefix
    (32 with 5 bits; one for a single partition), and without --quick one more for each partition,
    or for each segment of a named partition.

    \b
    Example:
      sidetier ls orders 3 --config /etc/sidetier/sidetier.yaml

    Exit codes: 0 all is well, 2 nothing is archived of the topic or partition that was named, 3
    something is missing or does not parse.
    """  # noqa: D301 -- \b is click's mark, and must be one character
    config = invocation(context).load().config
    result: PartitionsResult | SegmentsResult
    with (
        open_every_store(with_short_timeouts(config), connections=_AT_ONCE) as stores,
        _pool() as pool,
    ):
        look = _Look(config, layout_of(config), stores, pool, quick=quick)
        if topic is not None and partition is not None:
            result = look.segments(TopicPartition(topic, partition))
            found = result.problem is not None
        else:
            result = look.partitions(topic)
            found = result.has_problems
        if topic is not None and result.is_empty:
            url = config.storage.target(topic).url
            raise not_archived(stores.of_topic(topic), look.layout, url, topic, partition)
    emit(result, output)
    context.exit(exits.FINDINGS if found else exits.OK)


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=_AT_ONCE, thread_name_prefix="ls")


@dataclass(frozen=True, slots=True)
class _Look:
    """Asks the stores, many requests at once."""

    config: "Config"
    layout: "ArchiveLayout"
    stores: EveryStore
    pool: ThreadPoolExecutor
    quick: bool

    def partitions(self, topic: str | None) -> PartitionsResult:
        """All of them, or one topic's."""
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
        found = [one for some in self._map(listed, prefixes) for one in some]
        found = [one for one in found if self.stores.of_topic(one.topic_partition.topic) is store]
        read = partial(self._watermark_of, store)
        for stored, mark in zip(found, self._map(read, found), strict=True):
            yield partition_row(self._as_of(mark, stored, store), mark, quick=self.quick)

    def _as_of(
        self, mark: ArchiveEnd, stored: StoredPartition, store: "RemoteStorage"
    ) -> StoredPartition:
        """What is stored, listed again where the watermark has moved beyond what was listed."""
        if mark.watermark is None or mark.watermark.base_offset in stored.bases:
            return stored
        tp = stored.topic_partition
        prefix = self.layout.partition_prefix(tp).removesuffix(f"{tp}/")
        again = list_partitions(store, self.layout, prefix, tp.topic)
        return next((one for one in again if one.topic_partition == tp), stored)

    def _watermark_of(self, store: "RemoteStorage", stored: StoredPartition) -> ArchiveEnd:
        if self.quick:
            return ArchiveEnd(problem=None if stored.has_watermark else NO_WATERMARK)
        return read_archive_end(store, self.layout, stored.topic_partition)

    def segments(self, tp: TopicPartition) -> SegmentsResult:
        """Those of one partition."""
        store = self.stores.of_topic(tp.topic)
        self._check(store)
        mark = read_archive_end(store, self.layout, tp)  # first: it may move while we list
        segments = list(list_segments(store, self.layout, tp))

        def facts(segment: StoredSegmentFiles) -> LogFacts:
            if self.quick:
                return LogFacts()
            return read_log_facts(store, self.layout, tp, segment.base_offset)

        rows = [
            segment_row(segment, said, mark)
            for segment, said in zip(segments, self._map(facts, segments), strict=True)
        ]
        url = self.config.storage.target(tp.topic).url
        return SegmentsResult(tp, f"{url}/{self.layout.partition_prefix(tp)}", mark, rows)

    def _map(self, function: Callable[[T], V], items: Iterable[T]) -> Iterator[V]:
        return self.pool.map(function, items)

    def _check(self, store: "RemoteStorage") -> None:
        """Under another number of bits nothing would be found, and that would be no answer."""
        note = read_note(store, self.layout)
        if note is not None:
            check_note(note, self.layout, None)

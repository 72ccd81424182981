"""`sidetier ls`: list partitions and segments on the store."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from sidetier.archive.inventory.overview import (
    REQUESTS,
    PartitionOverview,
    SegmentOverview,
    SegmentsOverview,
    list_archive,
    list_segments,
)
from sidetier.archive.topics import not_archived
from sidetier.cli import exits, kernel
from sidetier.cli.arguments import PARTITION, size_text, time_text, topic_name
from sidetier.cli.options import CommandOptions, argument, option, options
from sidetier.cli.output import Columns, Table, table_of
from sidetier.cli.stores import open_every_store
from sidetier.segments.offsets import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionsResult:
    """The listed partitions, sorted."""

    cluster: str
    partitions: Sequence[PartitionOverview]

    @property
    def exit_code(self) -> int:
        """FINDINGS for a problem."""
        has_problem = any(partition.problem for partition in self.partitions)
        return exits.FINDINGS if has_problem else exits.OK

    def as_json(self) -> object:
        """Return the partitions, with sizes in bytes."""
        return {"cluster": self.cluster, "partitions": [asdict(row) for row in self.partitions]}

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each partition, and totals. Problems add a PROBLEM column."""
        if not self.partitions:
            return (Table((), footer=f"the archive of cluster {self.cluster} is empty"),)
        segments = sum(partition.segments for partition in self.partitions)
        size = size_text(sum(partition.size_bytes for partition in self.partitions))
        footer = f"{len(self.partitions)} partitions, {segments} segments, {size}"
        return (table_of(self.partitions, _PARTITION_COLUMNS, footer, optional=("PROBLEM",)),)


_PARTITION_COLUMNS: Final[Columns[PartitionOverview]] = {
    "TOPIC": lambda partition: partition.topic,
    "PARTITION": lambda partition: partition.partition,
    "SEGMENTS": lambda partition: partition.segments,
    "SIZE": lambda partition: size_text(partition.size_bytes),
    "FIRST OFFSET": lambda partition: partition.first_offset,
    "ARCHIVED UP TO": lambda partition: partition.next_offset,
    "LAST SEGMENT": lambda partition: partition.watermark,
    "NOT COMMITTED": lambda partition: partition.segments_above_watermark,
    "PROBLEM": lambda partition: partition.problem,
}


@dataclass(frozen=True, slots=True)
class SegmentsResult:
    """The segments of one partition."""

    overview: SegmentsOverview

    @property
    def exit_code(self) -> int:
        """FINDINGS for a problem."""
        return exits.OK if self.overview.problem is None else exits.FINDINGS

    def as_json(self) -> object:
        """Return the segments and the content of `offset.wm`."""
        overview, watermark = self.overview, self.overview.end.watermark
        return {
            **overview.topic_partition._asdict(),
            "uri": overview.uri,
            "watermark": None if watermark is None else watermark.base_offset,
            "next_offset": overview.end.next_offset,
            "problem": overview.problem,
            "segments": [asdict(segment) for segment in overview.segments],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each segment. The footer shows the archive end offset."""
        overview, watermark = self.overview, self.overview.end.watermark
        size = size_text(sum(segment.size_bytes or 0 for segment in overview.segments))
        footer = f"{len(overview.segments)} segments, {size} below {overview.uri}; "
        if watermark is None:
            footer += "no offset.wm"
        elif overview.end.next_offset is None:
            footer += f"last committed segment {watermark.base_offset}"
        else:
            footer += f"archived up to {overview.end.next_offset}"
        if overview.problem is not None:
            footer += f"\nproblem: {overview.problem}"
        return (table_of(overview.segments, _SEGMENT_COLUMNS, footer),)


_SEGMENT_COLUMNS: Final[Columns[SegmentOverview]] = {
    "BASE OFFSET": lambda segment: segment.base_offset,
    "NEXT OFFSET": lambda segment: segment.next_offset,
    "SIZE": lambda segment: size_text(segment.size_bytes),
    "LAST RECORD (UTC)": lambda segment: time_text(segment.max_timestamp_ms),
    "FILES": lambda segment: " ".join(segment.files),
    "COMMITTED": lambda segment: (
        "below start" if segment.below_start else "no" if segment.above_watermark else "yes"
    ),
}


@options
class LsOptions(CommandOptions):
    """Options of `sidetier ls`."""

    topic: str | None = argument(parse=topic_name)
    partition: int | None = argument(type=PARTITION)
    quick: bool = option(
        "--quick", help="Omit columns that cost a request for each partition or segment."
    )


@kernel.command("ls")
def command(options: LsOptions) -> PartitionsResult | SegmentsResult:
    """List the partitions on the store, or the segments of one partition.

    NOT COMMITTED counts stored segments above the offset that is archived up to: readers do not see
    them yet. In the list of segments, COMMITTED is "below start" for a leftover below the start of
    the archive, which is not part of it.

    Requests on S3: one listing for every 1,000 objects, at least one for each entropy prefix (32
    with 5 bits; one for a single partition), and without --quick one more for each partition, or
    for each segment of a named partition.

    \b
    Example:
      sidetier ls orders 3 --config /etc/sidetier/sidetier.yaml

    Exit codes: 0 no problem; 2 nothing is archived of the named topic or partition; 3 something is
    missing or cannot be parsed.
    """  # noqa: D301 -- \b is click's marker and must be one character
    config = options.call.load(needs_log_dirs=False).config.with_short_timeouts()
    topic, partition, quick = options.topic, options.partition, options.quick
    result: PartitionsResult | SegmentsResult
    with open_every_store(config, connections=REQUESTS) as archive:
        if topic is not None and partition is not None:
            overview = list_segments(archive, TopicPartition(topic, partition), quick=quick)
            is_empty, result = overview.is_empty, SegmentsResult(overview)
        else:
            partitions = list_archive(archive, topic, quick=quick)
            is_empty, result = not partitions, PartitionsResult(archive.layout.cluster, partitions)
        if topic is not None and is_empty:
            url = archive.url(topic)
            raise not_archived(archive.store(topic), archive.layout, url, topic, partition)
    return result

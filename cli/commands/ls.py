"""`sidetier ls`: list partitions and segments on the store."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

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
from sidetier.cli.arguments import PARTITION, size_text, topic_name
from sidetier.cli.options import CommandOptions, argument, option, options
from sidetier.cli.output import Cell, Table
from sidetier.cli.stores import open_every_store
from sidetier.segments.offsets import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionsResult:
    """The listed partitions, sorted."""

    cluster: str
    partitions: Sequence[PartitionOverview]

    @property
    def has_problems(self) -> bool:
        """Whether any partition has a problem."""
        return any(partition.problem for partition in self.partitions)

    @property
    def exit_code(self) -> int:
        """FINDINGS for a problem."""
        return exits.FINDINGS if self.has_problems else exits.OK

    def as_json(self) -> object:
        """Return the partitions, with sizes in bytes."""
        return {"cluster": self.cluster, "partitions": [asdict(row) for row in self.partitions]}

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each partition, and totals. Problems add a PROBLEM column."""
        columns = (
            "TOPIC",
            "PARTITION",
            "SEGMENTS",
            "SIZE",
            "FIRST OFFSET",
            "ARCHIVED UP TO",
            "LAST SEGMENT",
            "NOT COMMITTED",
            "PROBLEM",
        )
        if not self.partitions:
            return (Table((), footer=f"the archive of cluster {self.cluster} is empty"),)
        segments = sum(partition.segments for partition in self.partitions)
        size = size_text(sum(partition.size_bytes for partition in self.partitions))
        footer = f"{len(self.partitions)} partitions, {segments} segments, {size}"
        width = len(columns) if self.has_problems else len(columns) - 1
        cells = [_partition_cells(partition)[:width] for partition in self.partitions]
        return (Table(columns[:width], cells, footer=footer),)


def _partition_cells(partition: PartitionOverview) -> Sequence[Cell]:
    return (
        partition.topic,
        partition.partition,
        partition.segments,
        size_text(partition.size_bytes),
        partition.first_offset,
        partition.next_offset,
        partition.watermark,
        partition.segments_above_watermark,
        partition.problem,
    )


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
        columns = ("BASE OFFSET", "NEXT OFFSET", "SIZE", "LAST RECORD (UTC)", "FILES", "COMMITTED")
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
        return (Table(columns, [_segment_cells(row) for row in overview.segments], footer=footer),)


def _segment_cells(segment: SegmentOverview) -> Sequence[Cell]:
    return (
        segment.base_offset,
        segment.next_offset,
        size_text(segment.size_bytes),
        _time_text(segment.max_timestamp_ms),
        " ".join(segment.files),
        "below start" if segment.below_start else "no" if segment.above_watermark else "yes",
    )


def _time_text(milliseconds: int | None) -> str | None:
    if milliseconds is None or milliseconds < 0:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError):
        return str(milliseconds)  # a producer can send any timestamp


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

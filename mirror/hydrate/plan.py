"""The plan of a hydrate: the archived segments to place. Every later step reads its file."""

import json
import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from sidetier.archive.objects.codec import JsonCodec
from sidetier.archive.view import ArchiveView
from sidetier.mirror.hydrate.consistent_cut import TransactionReport
from sidetier.segments.errors import ConfigurationError, MalformedObjectError
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

PLAN_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """An archived `.log`: base offset, key, the planned version (ETag), and size in bytes."""

    base_offset: int
    key: str
    etag: str
    size: int


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """The planned content of one partition.

    Attributes:
        topic: The topic.
        partition: The partition number.
        start: The log start offset, inclusive. It can be inside the first segment.
        end: The log end offset, exclusive. It is a batch border.
        archive_end: The partition is archived up to this offset, exclusive. It is above `end` if a
            cut leaves archived records out.
        segments: By ascending base offset; empty if the partition stays empty.
        gaps: Recorded gaps between `start` and `end`; these records are lost.
        last_timestamp_ms: The largest timestamp of the last archived segment; records after it were
            never archived. None if unknown.
        above_end: Base offsets of stored segments above `archive_end`. They are not restored: no
            sidecar has committed them, or `offset.wm` is an earlier version of itself.
    """

    topic: str
    partition: int
    start: int
    end: int
    archive_end: int
    segments: tuple[PlannedSegment, ...] = ()
    gaps: tuple[OffsetRange, ...] = ()
    last_timestamp_ms: int | None = None
    above_end: tuple[int, ...] = ()

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """Bytes of all `.log` files, before a cut inside the last one."""
        return sum(segment.size for segment in self.segments)

    @property
    def segments_with_ends(self) -> Iterator[tuple[PlannedSegment, int]]:
        """The segments, each with the offset up to which its records are planned, exclusive."""
        ends = [*(segment.base_offset for segment in self.segments[1:]), self.end]
        return zip(self.segments, ends, strict=bool(self.segments))

    @property
    def is_start_inside_segment(self) -> bool:
        """Whether the log start is above the first segment's base offset."""
        return bool(self.segments) and self.start > self.segments[0].base_offset


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    """How a topic is created, and the configs that are set at the end.

    `replication_factor` and `configs` come from the lost cluster; None if no snapshot has them.
    """

    partitions: int
    replication_factor: int | None = None
    configs: Mapping[str, str] | None = None

    @property
    def factor(self) -> int:
        """Number of replicas of the topic: one if no snapshot has it and none was given."""
        return self.replication_factor or 1


@dataclass(frozen=True, slots=True)
class PreparedTopic:
    """A topic as it was created on the new cluster: its id, and the broker of each partition."""

    topic_id: str | None
    brokers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HydratePlan:
    """The input of all steps of a hydrate.

    The step that creates the topics sets `kafka_cluster_id` and `prepared`.
    """

    plan_id: str
    cluster: str
    """The name of the archived cluster."""
    topics: Mapping[str, PlannedTopic]
    partitions: tuple[PlannedPartition, ...]
    until_ms: int | None = None
    planned_ms: int | None = None
    """Time at which the plan was made, in ms since 1970; None in plans of earlier versions."""
    is_whole_cluster: bool = False
    """Whether every archived topic is planned, not only selected ones."""
    kafka_cluster_id: str | None = None
    prepared: Mapping[str, PreparedTopic] = field(default_factory=dict)
    transactions: TransactionReport | None = None
    """What the plan leaves out so that no transaction is half restored; None if that was not
    requested.
    """
    version: int = PLAN_VERSION

    @property
    def size(self) -> int:
        """Bytes of all `.log` files."""
        return sum(partition.size for partition in self.partitions)

    @property
    def has_whole_transactions(self) -> bool:
        """Whether it is proven that no committed transaction is restored in part."""
        return (
            self.transactions is not None
            and self.transactions.is_proven
            and not any(partition.gaps for partition in self.partitions)
        )

    def of_topic(self, topic: str) -> list[PlannedPartition]:
        """Return the partitions of a topic."""
        return [partition for partition in self.partitions if partition.topic == topic]


def new_plan_id() -> str:
    """Return a new plan id of 32 hexadecimal digits."""
    return uuid.uuid4().hex


def plan_partition(
    tp: TopicPartition,
    view: ArchiveView | None,
    gaps: Iterable[OffsetRange] = (),
    end: Offset | None = None,
    last_timestamp_ms: int | None = None,
    above_end: Iterable[int] = (),
) -> PlannedPartition:
    """Plan one partition from its archive.

    Args:
        tp: The partition.
        view: Its archive; None if nothing is archived, and the partition stays empty.
        gaps: Recorded gaps, in any order; they may overlap.
        end: The planned end, exclusive, a batch border; None for the archive's end.
        last_timestamp_ms: See `PlannedPartition`.
        above_end: See `PlannedPartition`.
    """
    if view is None:
        return PlannedPartition(tp.topic, tp.partition, 0, 0, 0)
    whole = PlannedPartition(
        tp.topic,
        tp.partition,
        view.start,
        view.end,
        view.end,
        tuple(
            PlannedSegment(log.base_offset, log.key, log.row.etag, log.size) for log in view.logs
        ),
        gaps_between(gaps, view.start, view.end),
        last_timestamp_ms,
        tuple(above_end),
    )
    return end_at(whole, view.end if end is None else end)


def end_at(plan: PlannedPartition, end: int) -> PlannedPartition:
    """Return the partition with a lower end, a batch border, but not below its start."""
    cut = min(max(end, plan.start), plan.end)
    segments = tuple(segment for segment in plan.segments if segment.base_offset < cut)
    # Without segments the log is empty and begins at the archive's start, so it has no gaps.
    gaps = gaps_between(plan.gaps, plan.start, cut) if segments else ()
    return replace(plan, end=cut, segments=segments, gaps=gaps)


def gaps_between(gaps: Iterable[OffsetRange], start: int, end: int) -> tuple[OffsetRange, ...]:
    """Return the parts of the gaps in [`start`, `end`), sorted, and merged if they touch."""
    merged: list[OffsetRange] = []
    for gap in sorted(gaps):
        lower, upper = Offset(max(gap.start, start)), Offset(min(gap.end, end))
        if lower >= upper:
            continue
        if merged and lower <= merged[-1].end:
            merged[-1] = OffsetRange(merged[-1].start, max(merged[-1].end, upper))
        else:
            merged.append(OffsetRange(lower, upper))
    return tuple(merged)


def check_partition(plan: PlannedPartition) -> None:
    """Check that a plan's offsets can be those of a log.

    Raises:
        ConfigurationError: They cannot: the plan file was damaged or edited.
    """
    bases = [segment.base_offset for segment in plan.segments]
    rising = all(lower < upper for lower, upper in pairwise(bases))
    inside = not bases or (bases[0] <= plan.start <= plan.end and bases[-1] < plan.end)
    if not rising or not inside or not 0 <= plan.start <= plan.end <= plan.archive_end:
        raise ConfigurationError(
            f"the plan of {plan.topic_partition} is damaged: offsets {plan.start} to {plan.end}, "
            f"segments {bases[:3]}...; make a new plan"
        )


_CODEC: Final = JsonCodec(HydratePlan, "a hydrate plan", PLAN_VERSION, remedy="Make a new plan")


def encode_plan(plan: HydratePlan) -> bytes:
    """Encode a plan as the bytes of a plan file."""
    return json.dumps(asdict(plan), separators=(",", ":"), sort_keys=True).encode() + b"\n"


def decode_plan(data: bytes, name: str) -> HydratePlan:
    """Decode a plan file; `name` is for error messages.

    Raises:
        ConfigurationError: The bytes are not a plan, or have an unknown version.
    """
    try:
        plan = _CODEC.decode(data, name)
    except MalformedObjectError as error:
        raise ConfigurationError(str(error)) from None
    for partition in plan.partitions:
        check_partition(partition)
    return plan


def read_plan(path: Path) -> HydratePlan:
    """Read a plan file.

    Raises:
        ConfigurationError: The file does not exist or does not parse.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ConfigurationError(
            f"{path}: there is no such plan; `sidetier hydrate plan {path}` makes one"
        ) from None
    return decode_plan(data, str(path))


def write_plan(path: Path, plan: HydratePlan) -> None:
    """Replace the plan file atomically: a kill leaves the old file or the new one."""
    replace_file(path, encode_plan(plan))


def replace_file(path: Path, data: bytes) -> None:
    """Write a file durably and atomically: a kill leaves the former content or `data`.

    The file is readable for all. If run as root, it gets the owner of the directory, which is the
    broker's user.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            # `mkstemp` has made it readable for its owner only.
            os.fchmod(file.fileno(), 0o644)
            if os.geteuid() == 0:
                owner = path.parent.stat()
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            # Before the rename, which could become durable before the bytes.
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_prepared(plan: HydratePlan) -> None:
    """Check that the plan's topics were created.

    Raises:
        ConfigurationError: They were not created.
    """
    if not plan.prepared:
        raise ConfigurationError(
            "the topics of this plan were not created yet: run `sidetier hydrate prepare` first, "
            "while the new cluster is running"
        )


def check_cluster(plan: HydratePlan, cluster_id: str | None) -> None:
    """Check that the plan's topics were created, and on this cluster.

    Args:
        plan: The plan.
        cluster_id: The cluster id that the brokers return.

    Raises:
        ConfigurationError: The topics were not created, or on another cluster.
    """
    check_prepared(plan)
    if cluster_id != plan.kafka_cluster_id:
        raise ConfigurationError(
            f"these brokers belong to Kafka cluster {cluster_id}, but the topics of this plan were "
            f"created on {plan.kafka_cluster_id}: check --bootstrap-server"
        )


def with_prepared(
    plan: HydratePlan, cluster_id: str | None, prepared: Mapping[str, PreparedTopic]
) -> HydratePlan:
    """Return the plan after its topics were created."""
    return replace(plan, kafka_cluster_id=cluster_id, prepared=dict(prepared))

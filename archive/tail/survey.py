"""What archive and tail have of each partition of a cluster: archived up to, and safe up to.

Requests: those of `TailInventory.read` for each store, two for each partition that has a tail, and
one listing of the recorded gaps for each of their topics.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.inventory.stored_partition import NO_WATERMARK, StoredPartition
from sidetier.archive.objects.gaps import recorded_gaps
from sidetier.archive.objects.starts import read_earliest_start
from sidetier.archive.objects.watermark import Watermark
from sidetier.archive.tail.inventory import TailContents, TailInventory
from sidetier.archive.tail.merge import (
    ArchivedPart,
    LeftOut,
    MergedTail,
    PackedRow,
    PackRef,
    Reason,
    merge,
    newest_topic_id,
)
from sidetier.archive.tail.needed_rows import Kept, Need, need_of
from sidetier.segments.errors import ArchiveError, SegmentError
from sidetier.segments.offsets import BrokerId, Offset, OffsetRange, TopicPartition

_AT_ONCE: Final = 16
_LOST: Final = frozenset(
    {Reason.GAP, Reason.UNPROVEN, Reason.DIVERGED, Reason.STALE, Reason.UNREAD}
)
"""Reasons to leave out records that are nowhere else: neither archived nor in the tail."""


@dataclass(frozen=True, slots=True)
class PartitionTail:
    """The archive and the tail of one partition.

    Attributes:
        tp: The partition.
        watermark: The content of `offset.wm`; None without an archive.
        archived: What is archived; None if it cannot be read.
        rows: The rows of all live packs.
        merged: The merged tail; None if it cannot be merged.
        problem: Why it cannot be merged, or is left empty.
    """

    tp: TopicPartition
    watermark: Watermark | None
    archived: ArchivedPart | None
    rows: Sequence[PackedRow]
    merged: MergedTail | None
    problem: str | None = None

    @property
    def archived_up_to(self) -> Offset | None:
        """The archive end offset; None if nothing is archived, or it is unknown."""
        if self.watermark is None:
            return None
        return self.watermark.next_offset if self.merged is None else self.merged.start

    @property
    def has_records(self) -> bool:
        """Whether the tail has records that are not archived."""
        return self.merged is not None and bool(self.merged.slices)

    @property
    def safe_up_to(self) -> Offset | None:
        """End of what archive and tail have without a gap, exclusive."""
        return self.merged.end if self.has_records and self.merged else self.archived_up_to

    @property
    def offsets(self) -> int:
        """Number of offsets of the tail. Some may have no record: markers, and compaction."""
        return self.merged.end - self.merged.start if self.has_records and self.merged else 0

    @property
    def size(self) -> int:
        """Bytes to read for the tail."""
        slices = () if self.merged is None else self.merged.slices
        return sum(part.source.row.size for part in slices)

    @property
    def stale_offsets(self) -> int:
        """Number of offsets whose records were committed, and that the newest leader does not have.
        No other object has them.
        """
        left_out = () if self.merged is None else self.merged.left_out
        stale = sorted(out.offsets for out in left_out if out.reason is Reason.STALE)
        count, reached = 0, Offset(0)
        for start, end in stale:
            count += max(0, end - max(start, reached))
            reached = max(reached, end)
        return count

    @property
    def not_read(self) -> Sequence[LeftOut]:
        """Ranges of packs whose records are neither archived nor part of the tail."""
        left_out = () if self.merged is None else self.merged.left_out
        return [out for out in left_out if out.reason in _LOST]

    @property
    def gap(self) -> OffsetRange | None:
        """Offsets that are neither archived nor in a pack, and end the tail."""
        return None if self.merged is None else self.merged.gap


@dataclass(frozen=True, slots=True)
class BrokerTail:
    """The live packs of one broker in one store.

    Attributes:
        packs: Their number.
        size: Their bytes.
        live_bytes: Bytes of the ranges that cleaning keeps.
        newest_ms: When the newest was stored, by the store's clock.
    """

    broker: BrokerId
    url: str
    packs: int
    size: int
    live_bytes: int
    newest_ms: int


@dataclass(frozen=True, slots=True)
class TailSurvey:
    """The tails of a cluster.

    Attributes:
        partitions: By topic and number.
        brokers: The brokers that have live packs, for each store.
        problems: Packs and index objects that cannot be read: the reason, by key.
    """

    partitions: tuple[PartitionTail, ...]
    brokers: tuple[BrokerTail, ...]
    problems: Mapping[str, str]


def all_topics(_: str) -> bool:
    """Select every topic."""
    return True


def survey(
    access: ArchiveAccess,
    *,
    selects: Callable[[str], bool] = all_topics,
    partitions: Collection[TopicPartition] | None = None,
    named: Collection[str] = (),
    accept_unread: bool = False,
) -> TailSurvey:
    """Read the live packs of all stores, and merge the tail of each partition.

    Args:
        access: The archive of the cluster.
        selects: Whether a topic is wanted, by its name.
        partitions: Only these partitions; None for all.
        named: Only the partitions of these names, such as `orders-3`; none for all.
        accept_unread: Whether records count that a pack which cannot be read may show to be stale.

    Raises:
        StorageError: A request failed.
    """
    tails: list[PartitionTail] = []
    brokers: list[BrokerTail] = []
    problems: dict[str, str] = {}
    for endpoint, store in access.by_endpoint.items():
        inventory = TailInventory(store, access.layout, refuses_plain=endpoint.refuses_plain)
        contents = inventory.read(partitions=partitions)
        wanted = {
            tp: rows
            for tp, rows in contents.rows.items()
            if access.provider.endpoint(tp.topic) == endpoint
            and selects(tp.topic)
            and (partitions is None or tp in partitions)
            and (not named or str(tp) in named)
        }
        found = read_partitions(access, wanted, () if accept_unread else contents.unread)
        tails += found
        brokers += _brokers(endpoint.url, contents, found)
        problems |= contents.problems
    return TailSurvey(tuple(sorted(tails, key=lambda tail: tail.tp)), tuple(brokers), problems)


def read_partitions(
    access: ArchiveAccess,
    rows: Mapping[TopicPartition, Sequence[PackedRow]],
    unread: Sequence[PackRef] = (),
) -> list[PartitionTail]:
    """Read what is archived of the partitions, and merge their tails. Raises StorageError."""

    def merged(tp: TopicPartition) -> PartitionTail:
        return _merged(access.partition(tp), rows[tp], gaps[tp], unread)

    by_topic: dict[str, list[TopicPartition]] = defaultdict(list)
    for tp in rows:
        by_topic[tp.topic].append(tp)

    def gaps_of(topic: str) -> dict[TopicPartition, list[OffsetRange]]:
        return recorded_gaps(access.store(topic), access.layout, by_topic[topic])

    with ThreadPoolExecutor(_AT_ONCE, "tail-survey") as helpers:
        gaps: dict[TopicPartition, list[OffsetRange]] = {}
        for found in helpers.map(gaps_of, by_topic):
            gaps |= found
        return list(helpers.map(merged, rows))


def archived_part(
    partition: StoredPartition, gaps: Sequence[OffsetRange], rows: Iterable[PackedRow]
) -> tuple[Watermark | None, ArchivedPart]:
    """Read what is archived of a partition; two requests.

    Raises:
        ArchiveError, SegmentError: An object of the archive does not parse.
        StorageError: A request failed.
    """
    end = partition.end()
    if end.watermark is None and end.problem == NO_WATERMARK:
        # An archive that has not begun may have its start recorded.
        topic_id = newest_topic_id(rows)
        start = read_earliest_start(partition.store, partition.layout, partition.tp, topic_id)
        return None, ArchivedPart(start, topic_id=topic_id)
    if end.watermark is None or end.next_offset is None:
        raise ArchiveError(end.problem or "the archive end offset is unknown")
    epochs = partition.epochs().epoch_history
    return end.watermark, ArchivedPart(end.next_offset, epochs, end.watermark.topic_id, gaps)


def _merged(
    partition: StoredPartition,
    rows: Sequence[PackedRow],
    gaps: Sequence[OffsetRange],
    unread: Sequence[PackRef],
) -> PartitionTail:
    watermark: Watermark | None = None
    archived: ArchivedPart | None = None
    try:
        watermark, archived = archived_part(partition, gaps, rows)
        merged = merge(archived, rows, unread)
    except (ArchiveError, SegmentError) as error:
        return PartitionTail(partition.tp, watermark, archived, rows, None, str(error))
    return PartitionTail(partition.tp, watermark, archived, rows, merged, merged.unread)


def _brokers(
    url: str, contents: TailContents, tails: Iterable[PartitionTail]
) -> Iterable[BrokerTail]:
    """Count the packs of each broker. The rows of partitions that are not wanted count as live."""
    known = {tail.tp: tail for tail in tails}
    live: dict[BrokerId, int] = defaultdict(int)
    for tp, rows in contents.rows.items():
        tail, kept = known.get(tp), Kept()
        archived = None if tail is None else tail.archived
        for pack, row in sorted(rows, key=lambda source: -source.stored_in.number):
            is_needed = archived is None or need_of(row, archived) is not Need.ARCHIVED
            if pack is not None and is_needed and kept.add(row):
                live[pack.broker] += row.size
    packs: dict[BrokerId, list[PackRef]] = defaultdict(list)
    for pack in contents.packs:
        packs[pack.broker].append(pack)
    for broker, mine in sorted(packs.items()):
        yield BrokerTail(
            broker,
            url,
            len(mine),
            sum(pack.size for pack in mine),
            live[broker],
            max(pack.modified_ms for pack in mine),
        )

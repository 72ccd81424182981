"""Move the archive of a deleted or recreated topic out of the way of a new archive.

Records above its archive end offset may be in tail packs alone, and nothing promotes them once the
archive is moved. So they are promoted first. A kill after that leaves a longer archive, which the
next call moves.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sidetier.archive.access import ArchiveAccess, require_fencing
from sidetier.archive.inventory.cluster import ListedPartition, list_partitions
from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.archive.objects.layout import LayoutNote, check_stored_note, other_cluster
from sidetier.archive.objects.quarantine import MovePlan, retired_name
from sidetier.archive.objects.watermark import StoredWatermark
from sidetier.archive.progress import Amount, OnProgress, ProgressCounter, ignore_progress
from sidetier.archive.tail.merge import below_start, newest_topic_id
from sidetier.archive.tail.needed_rows import Need, need_of
from sidetier.archive.tail.retired import retired_parts
from sidetier.archive.tail.survey import PartitionTail, survey
from sidetier.archive.topics import cluster_prefixes, not_archived
from sidetier.config.storage import StorageConfig
from sidetier.leadership.topic_identity import TopicIdentity, ask_identity
from sidetier.segments.errors import (
    ArchiveError,
    BrokerError,
    ConfigurationError,
    SidetierError,
)
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind, parse_partition_directory
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.port import ObjectSummary, RemoteStorage
from sidetier.uploader.archive.quarantine.mover import MoveContext
from sidetier.uploader.archive.quarantine.retirement import is_there, plan_retirement, retire
from sidetier.uploader.promote import promote
from sidetier.uploader.stores import PlaceOf

if TYPE_CHECKING:
    from sidetier.wire.cluster import Cluster
    from sidetier.wire.settings import ClientSettings

CONNECTIONS: Final = 16
"""Maximum number of concurrent requests to the store."""
_REASON: Final = "by sidetier retire"


@dataclass(frozen=True, slots=True)
class RetireRequest:
    """Which archive is moved.

    Attributes:
        topic: Name of the topic.
        partitions: Numbers of partitions; empty for all.
        dry_run: Move nothing.
        force: Also move the archive of the current topic.
    """

    topic: str
    partitions: tuple[int, ...] = ()
    dry_run: bool = False
    force: bool = False


@dataclass(frozen=True, slots=True)
class Promotion:
    """How records that only tail packs have are stored in an archive before it is moved.

    Attributes:
        place_of: Where topics are archived, and the writers of their archives.
        directory: Where segments are made.
        parallel: Partitions that are stored at the same time.
    """

    place_of: PlaceOf
    directory: Path
    parallel: int


@dataclass(frozen=True, slots=True)
class RetiredPartition:
    """One partition.

    Attributes:
        topic_id: Id of the archived topic, as Kafka writes ids; None if it is not known.
        segments: Number of its segments.
        size_bytes: Size of its objects.
        target: Prefix of the keys to which it is moved.
        left: Why it was not moved.
        problem: What failed.
        promoted_offsets: Offsets that were promoted from tail packs before, or would be.
    """

    topic: str
    partition: int
    topic_id: str | None
    segments: int
    size_bytes: int
    target: str | None = None
    left: str | None = None
    problem: str | None = None
    promoted_offsets: int = 0


def retire_archive(
    archive: ArchiveAccess,
    storage: StorageConfig,
    request: RetireRequest,
    brokers: "ClientSettings | None",
    on_progress: OnProgress = ignore_progress,
    promotion: Promotion | None = None,
) -> list[RetiredPartition]:
    """Move the archive to `retired/`. The next call finishes an interrupted move.

    Open the archive with `CONNECTIONS` connections, and with permission to delete objects.

    Args:
        archive: The archive.
        storage: Its configuration; only `fencing` is read.
        request: What is moved.
        brokers: The archived cluster, which knows the id of the current topic. None to ask no
            broker, and to move everything named.
        on_progress: Called after each copied object.
        promotion: How the tails are promoted first. An archive stays if that is not possible, and
            if packs have records that cannot be promoted. None to leave them in the packs.

    Raises:
        ConfigurationError: Nothing is archived under the given names, the brokers are not known to
            be those of the archived cluster, or the store has no conditional writes.
        SidetierError: The store or the brokers do not answer. Later errors are in the result.
    """
    topic, store, layout = request.topic, archive.store(request.topic), archive.layout
    require_fencing(storage, store, archive.url(topic))
    note = check_stored_note(store, layout, None)
    with ExitStack() as stack:
        identity = None
        if brokers is not None and not request.force:
            from sidetier.wire.cluster import Cluster  # noqa: PLC0415 -- kio: not in the daemon

            cluster = stack.enter_context(Cluster(brokers))
            identity = partial(_identity, cluster, topic, note, layout)
            identity()  # brokers of another cluster are refused before anything is moved
        pool = stack.enter_context(ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="retire"))
        retirement = _Retirement(store, layout, pool, identity)
        stored = retirement.stored(topic, request.partitions)
        if promotion is not None:
            stored = retirement.with_tails(archive, stored, topic, request.partitions)
        _check_names(archive, retirement, stored, topic, request.partitions)
        if request.dry_run:
            return [retirement.look(partition) for partition in stored]
        if promotion is not None and retirement.promote(archive, promotion, stored):
            now = {each.topic_partition: each for each in retirement.stored(topic, ())}
            stored = [now.get(each.topic_partition, each) for each in stored]
        return retirement.run(stored, on_progress)


def _identity(
    cluster: "Cluster", topic: str, note: LayoutNote | None, layout: ArchiveLayout
) -> TopicIdentity:
    """Ask the brokers about the topic.

    Raises:
        BrokerError: No broker answers, or it refuses.
        ConfigurationError: They are not known to be the brokers of the archived cluster.
    """
    identity = ask_identity(cluster, topic)
    reason = other_cluster(note, layout, identity.cluster_id)
    if reason is not None:
        raise ConfigurationError(
            f"{reason}. With --force the archive is moved all the same, and with --offline no "
            "broker is asked"
        )
    return identity


def _check_names(
    archive: ArchiveAccess,
    retirement: "_Retirement",
    stored_partitions: Sequence[ListedPartition],
    topic: str,
    partitions: Sequence[int],
) -> None:
    """Refuse a named topic or partition that has no archive.

    An archive that was retired before is accepted, so that the command can be repeated.
    """
    store, layout = retirement.store, retirement.layout
    present = {stored.topic_partition for stored in stored_partitions}
    requested = [TopicPartition(topic, number) for number in partitions]
    checked: list[TopicPartition | None] = [*requested] if requested or present else [None]
    for tp in checked:
        if tp in present or retirement.was_retired(topic, tp):
            continue
        url = archive.url(topic)
        raise not_archived(store, layout, url, topic, tp.partition if tp else None)


def _lost(tail: PartitionTail) -> str | None:
    """Return what only packs have at offsets for which the archive has other records, or none. Once
    the archive is moved, cleaning does not recognize it any more.
    """
    if tail.archived is None:
        return None
    start = None if tail.watermark is None else tail.watermark.start_offset
    archived = replace(tail.archived, gaps=(*tail.archived.gaps, *below_start(start)))
    lost = [
        source.row
        for source in tail.rows
        if not source.row.is_claim and need_of(source.row, archived) is Need.LOST
    ]
    if not lost:
        return None
    return (
        f"the cluster has lost the records from offset {min(row.start for row in lost)} on, or "
        "deleted them before they were archived; cleaning moves them to quarantine within an hour "
        "or two: try again then"
    )


@dataclass(frozen=True, slots=True)
class _Retirement:
    store: RemoteStorage
    layout: ArchiveLayout
    pool: ThreadPoolExecutor
    identity: Callable[[], TopicIdentity] | None
    """Asks the brokers about the topic; None to move every archive."""
    tails: dict[TopicPartition, PartitionTail] = field(default_factory=dict)
    """What packs have of the topic, above the archives."""
    promoted: dict[TopicPartition, int] = field(default_factory=dict)
    """Numbers of promoted offsets."""
    unpromoted: dict[TopicPartition, str] = field(default_factory=dict)
    """Why a promotion has failed."""

    def with_tails(
        self,
        archive: ArchiveAccess,
        stored: Sequence[ListedPartition],
        topic: str,
        partitions: Sequence[int],
    ) -> list[ListedPartition]:
        """Read the tails of the topic, and return the partitions with those that only packs have.

        Partitions without an archive count only if the brokers say that the topic does not have
        them: otherwise their packs may be of the current topic. Those whose archive was retired
        before do not count: their packs are not cleaned yet.
        """
        self.tails.update(
            (tail.tp, tail) for tail in survey(archive, selects=topic.__eq__).partitions
        )
        known = {each.topic_partition for each in stored}
        others = {
            tp
            for tp, tail in self.tails.items()
            if tp not in known
            and tail.watermark is None
            and (tail.has_records or tail.problem is not None)
            and (not partitions or tp.partition in partitions)
        }
        current = self.identity() if others and self.identity is not None else None
        added = [
            tp
            for tp in others
            if current is not None
            and not current.has(tp.partition)
            and not self._is_retired(self.tails[tp])
        ]
        return sorted(
            [*stored, *map(ListedPartition, added)], key=lambda each: each.topic_partition
        )

    def _is_retired(self, tail: PartitionTail) -> bool:
        topic_id = newest_topic_id(tail.rows)
        return topic_id is not None and bool(
            retired_parts(self.store, self.layout, tail.tp, topic_id)
        )

    def promote(
        self, archive: ArchiveAccess, promotion: Promotion, stored: Iterable[ListedPartition]
    ) -> bool:
        """Promote the tails of the partitions that are moved. Return whether there were some."""
        due = [
            self.tails.pop(each.topic_partition)
            for each in stored
            if each.topic_partition in self.tails and self.look(each).promoted_offsets
        ]
        for done in promote(
            archive, promotion.place_of, due, promotion.directory, parallel=promotion.parallel
        ):
            if done.problem is None:
                self.promoted[done.tail.tp] = done.tail.offsets
            else:
                self.unpromoted[done.tail.tp] = done.problem
        return bool(due)

    def stored(self, topic: str, partitions: Sequence[int]) -> list[ListedPartition]:
        """Return the stored partitions among those requested.

        A partition that is named counts as stored even if only gap records are left of it.
        """
        stored = {
            stored_partition.topic_partition: stored_partition
            for prefix in cluster_prefixes(self.store, self.layout)
            for stored_partition in list_partitions(self.store, self.layout, prefix, topic)
        }
        if not partitions:
            return [stored[tp] for tp in sorted(stored)]
        named = sorted({TopicPartition(topic, number) for number in partitions})
        return [
            stored.get(tp, ListedPartition(tp))
            for tp in named
            if tp in stored or is_there(self.store, self.layout, tp)
        ]

    def was_retired(self, topic: str, tp: TopicPartition | None) -> bool:
        """Return whether an archive of the partition, or of any of the topic's, was retired."""
        if tp is not None:
            prefix = self.layout.retired_prefix(tp)
            return next(iter(self.store.list_objects(prefix)), None) is not None
        root = self.layout.retired_prefix(TopicPartition(topic, 0)).removesuffix("0/")
        names = (
            path.removesuffix("/").rpartition("/")[2] for path in self.store.list_directories(root)
        )
        parsed = map(parse_partition_directory, names)
        return any(
            directory is not None and directory.topic_partition.topic == topic
            for directory in parsed
        )

    def look(self, stored: ListedPartition) -> RetiredPartition:
        """Return the row that `run` would produce for the partition."""
        return self._judge(stored)[1]

    def _judge(self, stored: ListedPartition) -> tuple[StoredWatermark | None, RetiredPartition]:
        """Return the partition's `offset.wm`, and what the command would do."""
        try:
            mark = StoredPartition(self.store, self.layout, stored.topic_partition).watermark()
            # Asked for each partition: a topic may be created again while others are moved.
            current = None if self.identity is None else self.identity()
        except (ArchiveError, BrokerError) as error:
            return None, self._row(stored, None, problem=str(error))
        reason_to_leave = self._why_not(stored, mark, current) or self._why_not_yet(stored, mark)
        if reason_to_leave is not None:
            return mark, self._row(stored, mark, left=reason_to_leave)
        plan = plan_retirement(self.layout, stored.topic_partition, mark, _REASON)
        return mark, self._row(stored, mark, plan)

    def run(
        self, partitions: Sequence[ListedPartition], on_progress: OnProgress
    ) -> list[RetiredPartition]:
        """Move the partitions one after the other, copying many objects at the same time."""
        surveyed = [(stored, self.look(stored)) for stored in partitions]
        total = Amount(
            sum(row.segments for _, row in surveyed if row.target),
            sum(row.size_bytes for _, row in surveyed if row.target),
        )
        counter = ProgressCounter(total, on_progress)
        return [self._retired(stored, row, counter) for stored, row in surveyed]

    def _retired(
        self, stored: ListedPartition, row: RetiredPartition, counter: ProgressCounter
    ) -> RetiredPartition:
        if row.target is None:
            return row

        def moved(row: ObjectSummary) -> None:
            counter.add(row.size, row.key.endswith(FileKind.LOG.value))

        move_context = MoveContext(self.store, self.layout, self.pool.map, moved)
        try:
            # again: earlier moves took time, and a sidecar may have written since
            mark, row = self._judge(stored)
            if row.target is None:
                return row
            plan = retire(move_context, stored.topic_partition, mark, _REASON)
        except SidetierError as error:
            return replace(row, target=None, problem=str(error))
        if plan is None:
            return replace(row, target=None, left="nothing is archived")
        return replace(row, target=plan.target)

    def _why_not(
        self, stored: ListedPartition, mark: StoredWatermark | None, current: TopicIdentity | None
    ) -> str | None:
        # A move that was begun is finished in any case.
        is_move_begun = mark is not None and mark.watermark.pending is not None
        if current is None or is_move_begun or not current.has(stored.topic_partition.partition):
            return None
        archived_topic_id = mark.watermark.topic_id if mark else None
        if archived_topic_id is None:
            return (
                "left: it has no topic id, so it may belong to the current topic; --force moves it"
            )
        if current.topic_id is None:
            return "left: the brokers report no topic id (Kafka before 2.8); --force moves it"
        if archived_topic_id == current.topic_id:
            return "left: it belongs to the current topic; --force moves it"
        return None

    def _tail(self, stored: ListedPartition, mark: StoredWatermark | None) -> PartitionTail | None:
        """Return the tail that is promoted before the move."""
        if mark is None:
            # Without an answer of the brokers, its packs may be of the current topic.
            is_known = self.identity is not None
        else:
            is_known = mark.watermark.topic_id is not None and mark.watermark.pending is None
        if not is_known:
            return None
        return self.tails.get(stored.topic_partition)

    def _why_not_yet(self, stored: ListedPartition, mark: StoredWatermark | None) -> str | None:
        problem, tail = self.unpromoted.get(stored.topic_partition), self._tail(stored, mark)
        if tail is not None:
            left_out = [f"offsets {out.offsets}: {out.text}" for out in tail.not_read]
            problem = tail.problem or "; ".join(left_out[:1]) or _lost(tail)
        if problem is None:
            return None
        return (
            f"left: only tail packs have some of its records, and they cannot be promoted: "
            f"{problem}. --without-tail moves it all the same, and leaves them in the packs"
        )

    def _row(
        self,
        stored: ListedPartition,
        mark: StoredWatermark | None,
        plan: MovePlan | None = None,
        *,
        left: str | None = None,
        problem: str | None = None,
    ) -> RetiredPartition:
        tp = stored.topic_partition
        tail = self._tail(stored, mark) if plan is not None else None
        topic_id, target = mark.watermark.topic_id if mark else None, plan.target if plan else None
        if mark is None and tail is not None and tail.merged is not None:
            # Its archive begins with the promotion.
            topic_id = tail.merged.topic_id
            target = f"{self.layout.retired_prefix(tp)}{retired_name(topic_id, None)}/"
        return RetiredPartition(
            tp.topic,
            tp.partition,
            topic_id,
            len(stored.bases),
            stored.size,
            target,
            left,
            problem,
            self.promoted.get(tp, 0) if tail is None else tail.offsets,
        )

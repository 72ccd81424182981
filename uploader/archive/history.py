"""Reading an archive, and asking whether it and the leader's log are one history.

Where they are not, nothing is written, and what is stored is set aside or left, by configuration:

- a fork (an unclean election): `uploader.on_divergence`, quarantine or halt;
- another topic of the same name: `uploader.on_recreated`, halt or retire.

A false alarm must move nothing. So a fork must be seen twice, some time apart and the same, in the
epoch that the cluster's metadata tells, by a log whose checkpoint ends with that epoch; a broker
must have named that epoch as the leader's since it was first seen; and the stored batches must
contradict the log.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from sidetier.archive.objects.quarantine import MoveKind, MovePlan, read_pending_plan
from sidetier.archive.objects.segment import last_stored_epoch
from sidetier.config.uploader import OnDivergence, OnRecreated
from sidetier.segments.epoch_history import EpochHistory, with_earlier_epochs
from sidetier.segments.errors import ArchiveConflictError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import BaseOffset, LeaderEpoch, Offset, TopicPartition
from sidetier.segments.properties import parse_partition_metadata
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import RemoteStorage
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.archive.archive_state import ArchiveState, Leader
from sidetier.uploader.archive.places import Place
from sidetier.uploader.archive.quarantine.mover import MoveContext, carry_out
from sidetier.uploader.archive.quarantine.quarantine import (
    SuspectedDivergence,
    plan_quarantine,
    quarantine,
)
from sidetier.uploader.archive.quarantine.retirement import retire
from sidetier.uploader.archive.reading import ReadArchive, read_only
from sidetier.uploader.errors import (
    DivergedError,
    DivergenceBelowError,
    DivergenceSuspectedError,
    OrphanSegmentError,
    RecreatedError,
    UnfinishedMoveError,
)
from sidetier.uploader.gates.divergence import (
    LocalHistory,
    latest_divergence,
    read_history,
    why_unproven,
)
from sidetier.uploader.gates.remembered_epochs import RememberedEpochs
from sidetier.uploader.running.clock import SYSTEM_CLOCK
from sidetier.uploader.watching.disk import read_text

log: Final = structlog.get_logger()

CONFIRM_SECONDS: Final = 2.0
"""A fork must still be the same so long after it was first seen."""
_ROUNDS: Final = 4
_NO_EPOCH: Final = LeaderEpoch(-1)
_TAKEN_PLACE: Final = "another topic of this name has taken its place"


Moving = Callable[[TopicPartition, str | None], None]
"""Hears, on the thread that does it, what of a partition's archive is being set aside, and None
when that has come to an end.
"""


@dataclass(frozen=True, slots=True)
class HistoryCheck:
    """A led partition as it is now. `told` when the leader epoch is the cluster's own word, and
    `named_at` when the broker was asked that said so last, in monotonic seconds;
    `uploading` while segments of it are under way; `read` is how its archive is read; `epochs` are
    the leader epochs of its log that the sidecar remembers.
    """

    topic_partition: TopicPartition
    leader: Leader
    directory: str | None
    active: BaseOffset | None
    told: bool
    named_at: float
    uploading: bool = False
    read: ReadArchive = read_only
    epochs: RememberedEpochs = field(default_factory=RememberedEpochs)


@dataclass(frozen=True, slots=True)
class _FirstLook:
    """When a fork was first seen, in which epoch, and where at the latest."""

    seen: float
    evidence: tuple[LeaderEpoch, LeaderEpoch, str]
    latest: Offset


class Histories:
    """Reads archives for the deciding thread's requests; each partition on one thread at a time."""

    def __init__(
        self,
        on_divergence: OnDivergence,
        on_recreated: OnRecreated,
        now: Callable[[], float],
        metrics: Metrics,
        moving: Moving = lambda _, __: None,
        wall: Callable[[], float] = SYSTEM_CLOCK.wall,
    ) -> None:
        self._on_divergence = on_divergence
        self._on_recreated = on_recreated
        self._now = now
        self._wall = wall
        self._metrics = metrics
        self._moving = moving
        self._first: dict[TopicPartition, _FirstLook] = {}
        self._closer: dict[TopicPartition, _FirstLook] = {}
        """Of what the watermark does not tell; a reading of that, without a fork, is no news."""

    def doubt(self, look: HistoryCheck, epoch_history: EpochHistory) -> str | None:
        """Why nothing may be moved of an archive that Pinterest's uploader has filled, though it
        contradicts the log; None where the cluster's own leader shows it.
        """
        if self._on_divergence == "halt":
            return "uploader.on_divergence is halt"
        told = look.leader.leader_epoch if look.told else _NO_EPOCH
        return why_unproven(_NO_EPOCH, told, LocalHistory(epoch_history, None))

    def load(self, place: Place, look: HistoryCheck) -> ArchiveState:
        """The archive, of one history with the log; what had to be set aside has been.

        One request where nothing is amiss.

        Raises:
            DivergedError: they have parted, and it is not proven yet or not to be mended.
            RecreatedError: it belongs to another topic of the same name.
            ArchiveConflictError: another sidecar is at work.
            SegmentGoneError: the partition's directory is gone.
        """
        for _ in range(_ROUNDS):
            archive = self._read(place, look)
            watermark = archive.watermark
            if watermark is None or archive.next_offset is None:
                return archive
            if watermark.pending is not None:
                self._finish(place, look, archive, watermark.pending)
                continue
            if look.directory is None:
                return archive
            local = read_history(
                look.directory,
                look.active,
                archive.next_offset,
                look.epochs,
                watermark.leader_epoch,
            )
            latest = latest_divergence(watermark, archive.next_offset, local)
            if latest is not None:
                latest = self._look_closer(place, look.topic_partition, archive, local)
            if latest is None:
                self._first.pop(look.topic_partition, None)
                return archive
            reason = (
                f"{look.directory}: this log left the stored history at offset {latest} or below "
                f"(an unclean election), but the archive reaches {archive.next_offset}"
            )
            self._part(
                place,
                SuspectedDivergence(
                    look.topic_partition, archive, local, latest, look.leader, reason
                ),
                look,
                self._first,
            )
        raise ArchiveConflictError(f"{look.topic_partition}: others keep moving this archive")

    def _look_closer(
        self, place: Place, tp: TopicPartition, archive: ArchiveState, local: LocalHistory
    ) -> Offset | None:
        """By the last stored record's own epoch: a sidecar that had not heard of a later leader may
        have stored what that one wrote, and then the watermark's epoch is too low.
        """
        watermark = archive.watermark
        if watermark is None or archive.next_offset is None:
            return None
        noted = last_stored_epoch(place.store, place.layout, tp, watermark.base_offset)
        newest = replace(watermark, leader_epoch=max(noted, watermark.leader_epoch))
        return latest_divergence(newest, archive.next_offset, local)

    def strayed(
        self, place: Place, look: HistoryCheck, archive: ArchiveState, error: DivergedError
    ) -> ArchiveState:
        """A closer look than at the watermark has found what is not of this log: segments above it,
        or what is stored below it. Set that aside, if it is proven, and read the archive anew.

        Raises:
            DivergedError: it is not proven yet, or not to be mended.
        """
        if look.directory is None or archive.next_offset is None:
            raise error
        local = read_history(look.directory, look.active, archive.next_offset, look.epochs)
        latest, written = archive.next_offset, None
        if isinstance(error, OrphanSegmentError):
            written = error.leader_epoch
        elif isinstance(error, DivergenceBelowError):
            found = error.found
            latest = min(latest, found.offset)
            written = found.newest if found.newest > look.leader.leader_epoch else found.archived
            # A segment may have told it: the log start has moved on, and with it the checkpoint.
            told = EpochHistory(((found.local, found.offset),))
            local = replace(local, epoch_history=with_earlier_epochs(local.epoch_history, told))
        parting = SuspectedDivergence(
            look.topic_partition,
            archive,
            local,
            latest,
            look.leader,
            str(error),
            told_beside=isinstance(error, DivergenceBelowError),
        )
        self._part(place, parting, look, self._closer, written)
        return self.load(place, look)

    def fits(self, tp: TopicPartition) -> None:
        """A closer look has found nothing: what was suspected before is forgotten."""
        self._closer.pop(tp, None)

    # -- a fork -----------------------------------------------------------------------------------

    def _part(
        self,
        place: Place,
        parting: SuspectedDivergence,
        look: HistoryCheck,
        looks: dict[TopicPartition, _FirstLook],
        written: LeaderEpoch | None = None,
    ) -> None:
        """Quarantine, or raise why not (yet). `written` is the epoch of what is stored, by default
        that of the watermark.
        """
        if self._on_divergence == "halt":
            raise DivergedError(
                f"{parting.reason}; uploader.on_divergence is halt, so nothing is written until "
                "the archive from there on has been set aside"
            )
        watermark = parting.archive.watermark
        epoch = watermark.leader_epoch if watermark is not None else _NO_EPOCH
        told = look.leader.leader_epoch if look.told else _NO_EPOCH
        doubt = why_unproven(epoch if written is None else written, told, parting.local)
        if doubt is not None:
            looks.pop(look.topic_partition, None)
            raise DivergedError(f"{parting.reason}; nothing is moved: {doubt}")
        why = parting.reason if looks is self._closer else ""
        latest = self._confirm(look, parting, looks, (epoch, why))
        shop = MoveContext(place.store, place.layout)
        plan = plan_quarantine(shop, replace(parting, latest=latest))
        self._quarantine(shop, plan, parting.archive, look)

    def _confirm(
        self,
        look: HistoryCheck,
        parting: SuspectedDivergence,
        looks: dict[TopicPartition, _FirstLook],
        told: tuple[LeaderEpoch, str],
    ) -> Offset:
        """Where they have parted at the latest, once that was seen twice, by a leader that a broker
        has named in between. `told` is what the archive tells: the watermark's epoch, and why.

        Where the leader's epoch starts is no part of the evidence: retention moves it.
        """
        evidence = (look.leader.leader_epoch, *told)
        first = looks.get(look.topic_partition)
        if first is None or first.evidence != evidence:
            first = _FirstLook(self._now(), evidence, parting.latest)
            log.warning(
                "archive.fork_suspected",
                topic=look.topic_partition.topic,
                partition=look.topic_partition.partition,
                divergence_offset=parting.latest,
                leader_epoch=look.leader.leader_epoch,
            )
        first = replace(first, latest=min(first.latest, parting.latest))
        looks[look.topic_partition] = first
        if self._now() - first.seen < CONFIRM_SECONDS or look.uploading:
            raise DivergenceSuspectedError(f"{parting.reason}; a second look will tell")
        if look.named_at < first.seen:
            raise DivergenceSuspectedError(
                f"{parting.reason}; a second look will tell, once a broker has named this one as "
                f"the leader in epoch {look.leader.leader_epoch} since"
            )
        return first.latest

    def _quarantine(
        self, shop: MoveContext, plan: MovePlan, archive: ArchiveState, look: HistoryCheck
    ) -> None:
        told = {
            "topic": look.topic_partition.topic,
            "partition": look.topic_partition.partition,
            "fork_offset": plan.next_offset,
            "next_offset": archive.next_offset,
            "leader_epoch": look.leader.leader_epoch,
        }
        log.error("archive.forked", reason=plan.reason, **told)
        what = f"what the cluster has thrown away, from offset {plan.next_offset} on"
        with self._told(look.topic_partition, f"{what}, is being moved to {plan.target}"):
            done = quarantine(shop, plan, archive, look.leader)
        self._first.pop(look.topic_partition, None)
        self._closer.pop(look.topic_partition, None)
        self._metrics.quarantine()
        log.error("archive.quarantined", target=done.target, **told)

    @contextmanager
    def _told(self, tp: TopicPartition, what: str) -> Iterator[None]:
        self._moving(tp, what)
        try:
            yield
        finally:
            self._moving(tp, None)

    def _finish(
        self, place: Place, look: HistoryCheck, archive: ArchiveState, pending: str
    ) -> None:
        """A move that was begun is finished before anything else."""
        shop = MoveContext(place.store, place.layout)
        plan = read_pending_plan(place.store, pending)
        if plan.kind is MoveKind.RETIRE:
            if self._on_recreated != "retire":
                raise UnfinishedMoveError(
                    f"{pending}: `sidetier retire` has begun to move this archive away, and was "
                    "not finished: run it again"
                )
            self._retire(look.topic_partition, lambda: _carry_on(shop, plan, archive))
            return
        if not look.told:
            raise UnfinishedMoveError(
                f"{pending}: a quarantine was begun and not finished: the sidecar of the "
                "partition's leader finishes it"
            )
        self._quarantine(shop, plan, archive, look)

    # -- another topic ----------------------------------------------------------------------------

    def _read(self, place: Place, look: HistoryCheck) -> ArchiveState:
        try:
            return look.read(place.archive_writer, look.topic_partition, look.leader)
        except RecreatedError as error:
            if self._on_recreated != "retire":
                raise
            if not (self._is_newer(place, look, error) or _is_being_retired(place, look, error)):
                raise
            tp, shop, mark = (
                look.topic_partition,
                MoveContext(place.store, place.layout),
                error.mark,
            )
            self._retire(tp, lambda: retire(shop, tp, mark, _TAKEN_PLACE))
            return look.read(place.archive_writer, look.topic_partition, look.leader)

    def _is_newer(self, place: Place, look: HistoryCheck, error: RecreatedError) -> bool:
        """Whether our topic was created after the archive was written last, by the store's clock: a
        broker that has not heard that its topic is gone must not retire the archive of the topic
        that came after.
        """
        created = _created_ms(look)
        if created is None:
            return False
        ahead = store_clock_ahead_ms(place.store, place.layout, look.topic_partition, self._wall)
        return created + ahead > error.mark.modified_ms

    def _retire(self, tp: TopicPartition, move: Callable[[], MovePlan | None]) -> None:
        with self._told(tp, "the archive of an earlier topic of this name is being moved away"):
            done = move()
        self._metrics.quarantine()
        log.error(
            "archive.retired",
            topic=tp.topic,
            partition=tp.partition,
            target=done.target if done else None,
        )


def _carry_on(shop: MoveContext, plan: MovePlan, archive: ArchiveState) -> MovePlan:
    if archive.watermark is not None:
        carry_out(shop, plan, archive.watermark, archive.etag)
    return plan


def _is_being_retired(place: Place, look: HistoryCheck, error: RecreatedError) -> bool:
    """Whether a retirement of that archive was begun and not finished. It has written the watermark
    itself, after our topic was created: the times say nothing any more.
    """
    pending = error.mark.watermark.pending
    if pending is None or not look.told:
        return False
    return read_pending_plan(place.store, pending).kind is MoveKind.RETIRE


def _created_ms(look: HistoryCheck) -> int | None:
    """When our topic was created, in ms since 1970 by this machine's clock: the broker writes
    `partition.metadata` once. None where that is not known, or not the cluster's own word.
    """
    if look.directory is None or not look.told:
        return None
    path = os.path.join(look.directory, "partition.metadata")
    try:
        identified = parse_partition_metadata(read_text(path), path) == look.leader.topic_id
        return os.stat(path).st_mtime_ns // 1_000_000 if identified else None
    except OSError:
        return None


def store_clock_ahead_ms(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition, wall: Callable[[], float]
) -> int:
    """By how many ms the store's clock is ahead of this machine's, at least; negative where it is
    behind.

    Writes a small object and asks when the store says that it was written. The result is too low
    by the time that the store took for its answer, at most. A kill in between leaves the object,
    which nobody reads and the next measurement replaces.
    """
    key = layout.clock_key(tp)
    store.put_object(key, BytesBody(b"{}"))
    answered_ms = int(wall() * 1000)
    written_ms = store.head_object(key).modified_ms
    store.delete_object(key)
    return written_ms - answered_ms

"""Read an archive, and check that it has the same history as the leader's log.

If it has another history, the sidecar writes nothing until the conflict is resolved. The
configuration decides about the stored objects:

- a divergence (after an unclean election): `uploader.on_divergence`, quarantine or halt;
- another topic of the same name: `uploader.on_recreated`, halt or retire.

A false alarm must not move objects. The sidecar quarantines only if all of these hold:

- it has seen the same divergence twice, at least `CONFIRM_SECONDS` apart;
- the leader epoch comes from the cluster's metadata, and the log's `leader-epoch-checkpoint` ends
  with that epoch;
- a broker that was asked after the first sighting has named that epoch as the leader's;
- the stored batches contradict the log.
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
from sidetier.uploader.archive.archive_writer import ArchiveWriter
from sidetier.uploader.archive.quarantine.mover import MoveContext, carry_out
from sidetier.uploader.archive.quarantine.quarantine import (
    SuspectedDivergence,
    plan_quarantine,
    quarantine,
)
from sidetier.uploader.archive.quarantine.retirement import retire
from sidetier.uploader.archive.takeover import LocalLog, TakeoverReport
from sidetier.uploader.clock import SYSTEM_CLOCK
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
from sidetier.uploader.stores import Place
from sidetier.uploader.watching.disk import read_text

ReadArchive = Callable[[ArchiveWriter, TopicPartition, Leader], ArchiveState]


def read_only(archive_writer: ArchiveWriter, tp: TopicPartition, leader: Leader) -> ArchiveState:
    """Read the archive without changing it. Raises as `ArchiveWriter.load`.

    The archive end offset is None where Pinterest's uploader wrote `offset.wm`.
    """
    return archive_writer.load(tp, leader, derive=False)


@dataclass(frozen=True, slots=True)
class TakingOver:
    """Reads an archive, and takes it over where Pinterest's uploader wrote `offset.wm`.

    Attributes:
        local: Returns this broker's log for the comparison; called only for a takeover.
        reports: The reports of the takeovers that were made.
    """

    local: Callable[[], LocalLog]
    reports: list[TakeoverReport] = field(default_factory=list)

    def __call__(
        self, archive_writer: ArchiveWriter, tp: TopicPartition, leader: Leader
    ) -> ArchiveState:
        """Read the archive, and take it over where needed.

        Raises as `ArchiveWriter.load` and `take_over`, and what `local` raises.
        """
        archive = read_only(archive_writer, tp, leader)
        if not archive.is_pinterest:
            return archive
        archive, report = archive_writer.take_over(tp, archive, leader, self.local())
        self.reports.append(report)
        return archive


log: Final = structlog.get_logger()

CONFIRM_SECONDS: Final = 2.0
_CHECKS_AGAIN: Final = "the sidecar checks again before it moves any object"
"""Seconds after which a divergence must still be the same to count as confirmed."""
_ROUNDS: Final = 4
_NO_EPOCH: Final = LeaderEpoch(-1)
_TAKEN_PLACE: Final = "another topic of this name has taken its place"


Moving = Callable[[TopicPartition, str | None], None]
"""Called with a description of the objects of a partition that are being moved, and with None when
the move has ended. The call is made on the thread that moves them.
"""


@dataclass(frozen=True, slots=True)
class HistoryCheck:
    """A led partition at the time of the check.

    Attributes:
        topic_partition: The partition.
        leader: This broker as the partition's leader.
        directory: The partition's directory; None where it is not known.
        active: Base offset of the active segment; None where it is not known.
        epoch_from_cluster: Whether the leader epoch comes from the cluster's metadata.
        named_at: When a broker was last asked that named this leader epoch, in monotonic seconds.
        uploading: Whether segments of the partition are being uploaded.
        read: Reads the archive.
        epochs: The leader epochs of the log that the sidecar remembers.
    """

    topic_partition: TopicPartition
    leader: Leader
    directory: str | None
    active: BaseOffset | None
    epoch_from_cluster: bool
    named_at: float
    uploading: bool = False
    read: ReadArchive = read_only
    epochs: RememberedEpochs = field(default_factory=RememberedEpochs)


@dataclass(frozen=True, slots=True)
class _Sighting:
    """The first sighting of a suspected divergence.

    Attributes:
        seen: Its time, in monotonic seconds.
        evidence: Leader epoch of this broker, leader epoch in `offset.wm`, and the reason. A second
            sighting must have the same evidence.
        latest: Highest offset at which the divergence can be.
    """

    seen: float
    evidence: tuple[LeaderEpoch, LeaderEpoch, str]
    latest: Offset


class Histories:
    """Reads and checks archives for requests. Each partition is on one thread at a time."""

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
        self._sightings: dict[TopicPartition, _Sighting] = {}
        self._sightings_beyond: dict[TopicPartition, _Sighting] = {}
        """Divergences that `offset.wm` does not show. A `load` without a divergence does not remove
        them, because it compares only `offset.wm`.
        """

    def doubt(self, check: HistoryCheck, epoch_history: EpochHistory) -> str | None:
        """Return why no object of an archive of Pinterest's uploader may be moved although it
        contradicts the log; None where the log is proven to be the leader's.
        """
        if self._on_divergence == "halt":
            return "uploader.on_divergence is halt"
        leader_epoch = check.leader.leader_epoch if check.epoch_from_cluster else _NO_EPOCH
        return why_unproven(_NO_EPOCH, leader_epoch, LocalHistory(epoch_history, None))

    def load(self, place: Place, check: HistoryCheck) -> ArchiveState:
        """Read the archive, after a quarantine or retirement of objects that do not fit the log.

        Makes one request where archive and log agree.

        Returns:
            The archive, with the same history as the log.

        Raises:
            DivergedError: archive and log have diverged, and this is not proven yet, or the
                configuration forbids a quarantine.
            RecreatedError: the archive belongs to another topic of the same name.
            ArchiveConflictError: another sidecar is writing the archive.
            SegmentGoneError: the partition's directory is gone.
        """
        # Each round ends with a move of objects, after which the archive must be read
        # again. More than a few rounds means that other processes move them, too.
        for _ in range(_ROUNDS):
            archive = self._read(place, check)
            watermark = archive.watermark
            if watermark is None or archive.next_offset is None:
                return archive
            # Before the comparison with the log: an archive in the middle of a move has
            # an archive end offset that proves nothing about the objects above it.
            if watermark.pending is not None:
                self._finish(place, check, archive, watermark.pending)
                continue
            if check.directory is None:
                return archive
            local = read_history(
                check.directory,
                check.active,
                archive.next_offset,
                check.epochs,
                watermark.leader_epoch,
                check.leader.leader_epoch,
            )
            latest = latest_divergence(watermark, archive.next_offset, local)
            if latest is not None:
                # The second comparison costs a request, so it is made only after a suspicion.
                latest = self._divergence_by_last_record(
                    place, check.topic_partition, archive, local
                )
            if latest is None:
                self._sightings.pop(check.topic_partition, None)
                return replace(archive, position=local.archive_end)
            reason = (
                f"{check.directory}: this log left the stored history at offset {latest} or below "
                f"(an unclean election), but the archive reaches {archive.next_offset}"
            )
            self._quarantine_if_proven(
                place,
                SuspectedDivergence(
                    check.topic_partition, archive, local, latest, check.leader, reason
                ),
                check,
                self._sightings,
            )
        raise ArchiveConflictError(f"{check.topic_partition}: others keep moving this archive")

    def _divergence_by_last_record(
        self, place: Place, tp: TopicPartition, archive: ArchiveState, local: LocalHistory
    ) -> Offset | None:
        """Return the highest possible divergence, given the leader epoch of the last stored record.

        The leader epoch in `offset.wm` can be too low: a sidecar that had not heard of a later
        leader may have stored records of that leader under its own epoch.
        """
        watermark = archive.watermark
        if watermark is None or archive.next_offset is None:
            return None
        noted = last_stored_epoch(place.store, place.layout, tp, watermark.base_offset)
        newest = replace(watermark, leader_epoch=max(noted, watermark.leader_epoch))
        return latest_divergence(newest, archive.next_offset, local)

    def resolve(
        self, place: Place, check: HistoryCheck, archive: ArchiveState, error: DivergedError
    ) -> ArchiveState:
        """Quarantine stored records that are not in this log, if that is proven, and read the
        archive again.

        Args:
            place: Where the archive is.
            check: The partition at the time of the check.
            archive: The archive as it was read.
            error: Orphan segments above `offset.wm`, or a contradiction in the leader epochs below
                it.

        Raises:
            DivergedError: it is not proven yet, or the configuration forbids a quarantine.
        """
        if check.directory is None or archive.next_offset is None:
            raise error
        local = read_history(check.directory, check.active, archive.next_offset, check.epochs)
        latest, written = archive.next_offset, None
        if isinstance(error, OrphanSegmentError):
            written = error.leader_epoch
        elif isinstance(error, DivergenceBelowError):
            contradiction = error.found
            latest = min(latest, contradiction.offset)
            written = (
                contradiction.newest
                # Archived records of an epoch newer than ours show that
                # this sidecar is the late one. `why_unproven` refuses then.
                if contradiction.newest > check.leader.leader_epoch
                else contradiction.archived
            )
            # `local` may lack this epoch: it can come from the batches of a segment, because the
            # broker drops it from the checkpoint when the log start moves.
            first_epoch = EpochHistory(((contradiction.local, contradiction.offset),))
            local = replace(
                local, epoch_history=with_earlier_epochs(local.epoch_history, first_epoch)
            )
        suspected = SuspectedDivergence(
            check.topic_partition,
            archive,
            local,
            latest,
            check.leader,
            str(error),
            in_epoch_history_only=isinstance(error, DivergenceBelowError),
        )
        self._quarantine_if_proven(place, suspected, check, self._sightings_beyond, written)
        return self.load(place, check)

    def forget_suspicion(self, tp: TopicPartition) -> None:
        """Forget the suspected divergence: the check beyond `offset.wm` found none."""
        self._sightings_beyond.pop(tp, None)

    # -- divergence -------------------------------------------------------------------------------

    def _quarantine_if_proven(
        self,
        place: Place,
        suspected: SuspectedDivergence,
        check: HistoryCheck,
        sightings: dict[TopicPartition, _Sighting],
        written: LeaderEpoch | None = None,
    ) -> None:
        """Quarantine, or raise the reason why not (yet).

        Args:
            place: Where the archive is.
            suspected: The suspected divergence.
            check: The partition at the time of the check.
            sightings: The earlier sightings to compare with; an unproven one is removed from it.
            written: Leader epoch of the stored records; None takes the one in `offset.wm`.
        """
        if self._on_divergence == "halt":
            raise DivergedError(
                f"{suspected.reason}; uploader.on_divergence is halt, so nothing is written until "
                "the archive from that offset on has been moved away"
            )
        watermark = suspected.archive.watermark
        epoch = watermark.leader_epoch if watermark is not None else _NO_EPOCH
        leader_epoch = check.leader.leader_epoch if check.epoch_from_cluster else _NO_EPOCH
        doubt = why_unproven(epoch if written is None else written, leader_epoch, suspected.local)
        if doubt is not None:
            # A later sighting must be confirmed from the start, with proof at both sightings.
            sightings.pop(check.topic_partition, None)
            raise DivergedError(f"{suspected.reason}; nothing is moved: {doubt}")
        why = suspected.reason if sightings is self._sightings_beyond else ""
        latest = self._confirm(check, suspected, sightings, (epoch, why))
        context = MoveContext(place.store, place.layout)
        plan = plan_quarantine(context, replace(suspected, latest=latest))
        self._quarantine(context, plan, suspected.archive, check)

    def _confirm(
        self,
        check: HistoryCheck,
        suspected: SuspectedDivergence,
        sightings: dict[TopicPartition, _Sighting],
        stored_evidence: tuple[LeaderEpoch, str],
    ) -> Offset:
        """Return the highest possible offset of a divergence that has been seen twice, after a
        broker has confirmed the leader in between.

        Args:
            check: The partition at the time of the check.
            suspected: The suspected divergence.
            sightings: The earlier sightings to compare with.
            stored_evidence: The leader epoch in `offset.wm`, and the reason.

        Raises:
            DivergenceSuspectedError: the divergence is not confirmed yet.
        """
        # The offset is not part of the evidence: retention moves the start of the leader's epoch,
        # so that the same divergence might never be confirmed.
        evidence = (check.leader.leader_epoch, *stored_evidence)
        first = sightings.get(check.topic_partition)
        if first is None or first.evidence != evidence:
            first = _Sighting(self._now(), evidence, suspected.latest)
            log.warning(
                "archive.divergence_suspected",
                topic=check.topic_partition.topic,
                partition=check.topic_partition.partition,
                divergence_offset=suspected.latest,
                leader_epoch=check.leader.leader_epoch,
            )
        # The lowest of all sightings: retention can only have raised the start of an epoch since.
        first = replace(first, latest=min(first.latest, suspected.latest))
        sightings[check.topic_partition] = first
        # An upload under way could store an object behind the listing of the move.
        if self._now() - first.seen < CONFIRM_SECONDS or check.uploading:
            raise DivergenceSuspectedError(f"{suspected.reason}; {_CHECKS_AGAIN}")
        if check.named_at < first.seen:
            raise DivergenceSuspectedError(
                f"{suspected.reason}; {_CHECKS_AGAIN}, and waits until a broker confirms that this "
                f"broker leads in epoch {check.leader.leader_epoch}"
            )
        return first.latest

    def _quarantine(
        self, context: MoveContext, plan: MovePlan, archive: ArchiveState, check: HistoryCheck
    ) -> None:
        log_fields = {
            "topic": check.topic_partition.topic,
            "partition": check.topic_partition.partition,
            "divergence_offset": plan.next_offset,
            "next_offset": archive.next_offset,
            "leader_epoch": check.leader.leader_epoch,
        }
        log.error("archive.diverged", reason=plan.reason, **log_fields)
        moved = f"records that the cluster has discarded, from offset {plan.next_offset} on"
        with self._reporting_move(
            check.topic_partition, f"{moved}, are being moved to {plan.target}"
        ):
            done = quarantine(context, plan, archive, check.leader)
        self._sightings.pop(check.topic_partition, None)
        self._sightings_beyond.pop(check.topic_partition, None)
        self._metrics.quarantine()
        log.error("archive.quarantined", target=done.target, **log_fields)

    @contextmanager
    def _reporting_move(self, tp: TopicPartition, description: str) -> Iterator[None]:
        self._moving(tp, description)
        try:
            yield
        finally:
            self._moving(tp, None)

    def _finish(
        self, place: Place, check: HistoryCheck, archive: ArchiveState, pending: str
    ) -> None:
        """Finish a move that an earlier attempt has begun."""
        context = MoveContext(place.store, place.layout)
        plan = read_pending_plan(place.store, pending)
        if plan.kind is MoveKind.RETIRE:
            if self._on_recreated != "retire":
                raise UnfinishedMoveError(
                    f"{pending}: `sidetier retire` has begun to move this archive away, and was "
                    "not finished: run it again"
                )
            self._retire(check.topic_partition, lambda: _carry_on(context, plan, archive))
            return
        if not check.epoch_from_cluster:
            raise UnfinishedMoveError(
                f"{pending}: a quarantine was begun and not finished: the sidecar of the "
                "partition's leader finishes it"
            )
        self._quarantine(context, plan, archive, check)

    # -- another topic ----------------------------------------------------------------------------

    def _read(self, place: Place, check: HistoryCheck) -> ArchiveState:
        try:
            return check.read(place.archive_writer, check.topic_partition, check.leader)
        except RecreatedError as error:
            if self._on_recreated != "retire":
                raise
            if not (self._is_newer(place, check, error) or _is_being_retired(place, check, error)):
                raise
            tp, context, mark = (
                check.topic_partition,
                MoveContext(place.store, place.layout),
                # The version on which the decision is based. `retire` moves only this one:
                # another sidecar may retire the archive and begin a new one in the meantime.
                error.mark,
            )
            self._retire(tp, lambda: retire(context, tp, mark, _TAKEN_PLACE))
            return check.read(place.archive_writer, check.topic_partition, check.leader)

    def _is_newer(self, place: Place, check: HistoryCheck, error: RecreatedError) -> bool:
        """Return whether our topic was created after the last write to `offset.wm`, by the store's
        clock.

        Without this check, a broker that has not heard of the deletion of its topic would retire
        the archive of the topic that replaced it.
        """
        created = _created_ms(check)
        if created is None:
            return False
        # Both times must be of one clock. `offset.wm` has the
        # store's time, `partition.metadata` this machine's.
        ahead = store_clock_ahead_ms(place.store, place.layout, check.topic_partition, self._wall)
        # The lower bound makes the topic look older, never newer: in doubt nothing is retired.
        return created + ahead > error.mark.modified_ms

    def _retire(self, tp: TopicPartition, move: Callable[[], MovePlan | None]) -> None:
        with self._reporting_move(
            tp, "the archive of an earlier topic of this name is being moved away"
        ):
            done = move()
        self._metrics.quarantine()
        log.error(
            "archive.retired",
            topic=tp.topic,
            partition=tp.partition,
            target=done.target if done else None,
        )


def _carry_on(context: MoveContext, plan: MovePlan, archive: ArchiveState) -> MovePlan:
    if archive.watermark is not None:
        carry_out(context, plan, archive.watermark, archive.etag)
    return plan


def _is_being_retired(place: Place, check: HistoryCheck, error: RecreatedError) -> bool:
    """Return whether a retirement of that archive was begun and not finished.

    The retirement has written `offset.wm` after our topic was created, so the time of `offset.wm`
    proves nothing.
    """
    pending = error.mark.watermark.pending
    if pending is None or not check.epoch_from_cluster:
        return False
    return read_pending_plan(place.store, pending).kind is MoveKind.RETIRE


def _created_ms(check: HistoryCheck) -> int | None:
    """Return when our topic was created, in ms since 1970 by this machine's clock.

    This is the time of `partition.metadata`, which the broker writes once. None where the time is
    not known, or the leader epoch does not come from the cluster's metadata.
    """
    if check.directory is None or not check.epoch_from_cluster:
        return None
    path = os.path.join(check.directory, "partition.metadata")
    try:
        # A file of another topic id would give the creation time of another topic.
        identified = parse_partition_metadata(read_text(path), path) == check.leader.topic_id
        return os.stat(path).st_mtime_ns // 1_000_000 if identified else None
    except OSError:
        return None


def store_clock_ahead_ms(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition, wall: Callable[[], float]
) -> int:
    """Measure by how many ms the store's clock is ahead of this machine's; negative where it is
    behind.

    Writes a small object and reads its modification time. The result is a lower bound: it is too
    low by at most the time that the store took for its answer. A kill in between leaves the object.
    No code reads it, and the next measurement replaces it.
    """
    key = layout.clock_key(tp)
    store.put_object(key, BytesBody(b"{}"))
    # Read after the answer, so that `written - answered` is too low and never too high.
    answered_ms = int(wall() * 1000)
    written_ms = store.head_object(key).modified_ms
    store.delete_object(key)
    return written_ms - answered_ms

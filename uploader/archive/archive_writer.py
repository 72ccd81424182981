"""Read a partition's archive, and advance its `offset.wm` over the stored segments.

Order of a commit: `leader-epoch-checkpoint` where it changes, `_metadata`, then `offset.wm`. A kill
in between leaves epochs that the next commit ignores, or `_metadata` entries of stored segments
that the next commit finds in place. Order of a gap: `leader-epoch-checkpoint`, the gap record,
`offset.wm`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import structlog

from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.archive.objects.gaps import ArchiveBelow, write_gap
from sidetier.archive.objects.notes import noted_next_offset
from sidetier.archive.objects.segment import SegmentFiles, segment_files
from sidetier.archive.objects.starts import (
    StartRecords,
    compare_start,
    keep_earliest_start,
    read_earliest_start,
    settle_start,
)
from sidetier.archive.objects.watermark import Watermark
from sidetier.segments.epoch_history import EpochHistory, continues
from sidetier.segments.errors import ArchiveConflictError, MalformedObjectError
from sidetier.segments.keys import ArchiveLayout, parse_object_key
from sidetier.segments.names import FileKind
from sidetier.segments.notes import TOPIC_ID_KEY
from sidetier.segments.offsets import BaseOffset, Offset, OffsetRange, TopicPartition
from sidetier.storage.port import ObjectSummary, RemoteStorage
from sidetier.uploader.archive.adoption import (
    OurLog,
    ReadEpochHistory,
    contiguous,
    follow_on,
    stored_within,
)
from sidetier.uploader.archive.archive_state import ArchiveState, Leader
from sidetier.uploader.archive.epoch_history_file import NOT_STORED, EpochHistoryFile
from sidetier.uploader.archive.metadata_cache import MetadataCache, MetadataEditor
from sidetier.uploader.archive.takeover import LocalLog, Takeover, TakeoverReport
from sidetier.uploader.archive.watermark_file import WatermarkFile
from sidetier.uploader.chapters import LongArchive, LongArchives
from sidetier.uploader.errors import StandDownError, UnmarkedPinterestError
from sidetier.uploader.state.segment import StoredSegment

log: Final = structlog.get_logger()


class ArchiveWriter:
    """Reads and commits the archives of one store. Every method makes requests.

    Args:
        store: The store.
        layout: The keys on it.
        cache: Holds the `_metadata` objects that were written last.
        admit: Called before an archive is read; raises where this store must not be written to.
        long_archives: Gets each committed archive; None where no chapters are written.
        report_gap: Called with each gap below the start of an archive when it has been recorded.
    """

    def __init__(
        self,
        store: RemoteStorage,
        layout: ArchiveLayout,
        cache: MetadataCache,
        admit: Callable[[], None] = lambda: None,
        long_archives: LongArchives | None = None,
        report_gap: Callable[[TopicPartition, OffsetRange], None] = lambda _, __: None,
    ) -> None:
        self._store = store
        self._layout = layout
        self._admit = admit
        self._metadata = MetadataEditor(store, layout, cache)
        self._epoch_histories = EpochHistoryFile(store, layout)
        self._watermarks = WatermarkFile(store, layout)
        self._starts = StartRecords(store, layout)
        self._long_archives = long_archives
        self._report_gap = report_gap

    def admit(self) -> None:
        """Check that the store may be written to, until it succeeds once; raises
        ConfigurationError.
        """
        self._admit()

    def load(self, tp: TopicPartition, leader: Leader, *, derive: bool = True) -> ArchiveState:
        """Read `offset.wm`, and the start record if there is no `offset.wm`.

        Makes one request for each. An `offset.wm` of Pinterest's uploader has no end offset.

        Args:
            tp: The partition.
            leader: The leader that the archive is read for.
            derive: Derive a missing archive end offset from the segment that `offset.wm` names,
                with further requests. Otherwise it stays unknown.

        Raises:
            StandDownError: a later leader has written `offset.wm`.
            RecreatedError: the archive belongs to another topic of the same name.
            MalformedObjectError: `offset.wm` does not parse.
            ConfigurationError: the store must not be written to.
        """
        self._admit()
        archive = self._watermarks.read(tp, leader)
        if archive.watermark is None:
            # A follower's sidecar, or an earlier run, may have recorded where the archive begins.
            kept = self._starts.read_earliest(tp, leader.topic_id)
            return replace(archive, kept_start=kept)
        if not archive.is_pinterest or not derive:
            return archive
        base = archive.watermark.base_offset
        following = self._at(tp).next_offset_of(base)
        return replace(archive, next_offset=following)

    def take_over(
        self, tp: TopicPartition, archive: ArchiveState, leader: Leader, local: LocalLog
    ) -> tuple[ArchiveState, TakeoverReport]:
        """Take over an archive of Pinterest's uploader.

        Afterwards `offset.wm` has Sidetier's second line, and every gap below the archive end
        offset is recorded. Where the takeover accepts no stored segment, the archive begins anew.

        Returns:
            The archive, and the report of the takeover.

        Raises:
            OperatorNeededError: the stored segments are not of this broker's log, or Pinterest's
                uploader is still running.
            DivergedError: the stored segments reach beyond this broker's log, or contradict it and
                must not be moved.
            ArchiveConflictError: another sidecar took the archive over meanwhile.
        """
        takeover = Takeover(
            self._store,
            self._layout,
            self._metadata,
            tp,
            leader.broker_id,
            leader.leader_epoch,
            local,
        )
        watermark = archive.watermark
        report = takeover.run(watermark.base_offset if watermark is not None else None)
        if report.last is None or report.next_offset is None:
            # No watermark, but the etag of Pinterest's `offset.wm`: the first
            # commit must replace that object, and only this version of it.
            return ArchiveState(etag=archive.etag), report
        if watermark is not None:
            watermark = replace(watermark, start_offset=report.start)
        archive = replace(archive, watermark=watermark, start=report.start)
        return self._watermarks.move(tp, archive, report.last, report.next_offset, leader), report

    def start_of(self, tp: TopicPartition, here: Offset, leader: Leader) -> Offset:
        """Record once where the archive of a partition without `offset.wm` begins.

        Only `offset_reset: latest` needs this: the records that it leaves out must stay left out
        after a restart.

        Args:
            tp: The partition.
            here: The start to record where none is recorded.
            leader: The leader that the archive is written for.

        Returns:
            The start that is recorded on the store.

        Raises:
            ArchiveConflictError: another sidecar has recorded its own start meanwhile.
        """
        return settle_start(self._store, self._layout, tp, here, leader.topic_id)

    def keep_start(
        self, tp: TopicPartition, archive: ArchiveState, start: Offset, leader: Leader
    ) -> ArchiveState:
        """Record the start of an archive without `offset.wm` after the log start has moved past it.

        Where a lower start is recorded, the archive begins there.

        Raises:
            ArchiveConflictError: another sidecar has recorded its own start, or has begun the
                archive, meanwhile.
        """
        try:
            kept = keep_earliest_start(self._store, self._layout, tp, start, leader.topic_id)
        except ArchiveConflictError:  # perhaps by the sidecar that has begun the archive
            kept = keep_earliest_start(self._store, self._layout, tp, start, leader.topic_id)
        # Whoever begins an archive writes `offset.wm` and then reads the record, and this sidecar
        # has written the record and reads `offset.wm`: one of the two sees what the other wrote.
        begun = self._at(tp).watermark()
        if begun is not None and begun.etag != archive.etag:
            self._compare_start(tp, begun.watermark, leader)
            raise ArchiveConflictError(
                f"{self._layout.watermark_key(tp)} was written by another sidecar while this one "
                f"was recording that the archive begins at {kept}"
            )
        return replace(archive, kept_start=kept).beginning_at(kept)

    def compare_start(self, tp: TopicPartition, archive: ArchiveState, leader: Leader) -> None:
        """Compare the start of an archive that was read with the recorded start, as a commit does.

        It may not have been compared yet: the sidecar that has begun the archive was killed, or the
        record has arrived late from a sidecar that was. One request, or none after a listing.

        Raises:
            ArchiveConflictError: another sidecar has written the record meanwhile.
        """
        watermark = archive.watermark
        if watermark is None or not watermark.start_offset or not self._starts.may_have(tp):
            return
        try:
            self._compare_start(tp, watermark, leader)
        except MalformedObjectError as error:
            # An archive that has begun does not need the record.
            log.warning(
                "start.unreadable", topic=tp.topic, partition=tp.partition, error=str(error)
            )

    def _compare_start(self, tp: TopicPartition, watermark: Watermark, leader: Leader) -> None:
        """Record what lies between a lower recorded start and the archive's start as a gap."""
        start = watermark.start_offset
        if not start or watermark.topic_id != leader.topic_id:
            return

        def missed(gap: OffsetRange) -> None:
            write_gap(self._store, self._layout, tp, gap, leader.broker_id, leader.leader_epoch)
            self._report_gap(tp, gap)

        compare_start(self._store, self._layout, tp, start, leader.topic_id, missed)

    def prepare(
        self,
        tp: TopicPartition,
        archive: ArchiveState,
        leader: Leader,
        epoch_history: ReadEpochHistory | None = None,
        *,
        unmarked: bool = False,
    ) -> ArchiveState:
        """List the objects above `offset.wm` once, and read `_metadata`. Uploads may begin then.

        Stored segments that continue the archive are committed. An earlier run of this sidecar or
        another leader has stored them, possibly with other base offsets; a `.log` is never
        replaced. An archive without `offset.wm` begins with the first of them, even if the log on
        this broker begins later.

        Args:
            tp: The partition.
            archive: The archive as it was read.
            leader: The leader that the archive is written for.
            epoch_history: Reads the leader epochs of this broker's log; None skips the comparison.
            unmarked: Accept that Pinterest's uploader has stored segments without an `offset.wm`.
                Uploads compare them before they replace them.

        Raises:
            UnmarkedPinterestError: Pinterest's uploader has stored segments without an
                `offset.wm`, and `unmarked` is not set.
            DivergedError: one of the segments is not of this broker's log.
            ArchiveConflictError: as `commit`.
        """
        after, prefix = archive.watermark, self._layout.partition_prefix(tp)
        # Only what the archive end offset does not cover: the files of the segment that
        # `offset.wm` names are committed.
        first = 0 if after is None else after.base_offset + 1
        rows = list(self._at(tp).rows(first))
        # The listing has shown whether the object exists,
        # so a new partition costs no request for it.
        self._metadata.load(
            tp, exists=any(row.key == self._layout.metadata_key(tp) for row in rows)
        )
        if after is None and not (unmarked or archive.recorded):
            self._check_unmarked(tp, rows, prefix, leader)
        stored = [files for files in segment_files(rows, prefix) if FileKind.LOG in files.files]
        archive = self._begin_with(archive, stored)
        if stored and archive.next_offset is not None:
            ours = OurLog(epoch_history, leader.topic_id)
            adopted = follow_on(self._store, stored, archive.next_offset, leader.leader_epoch, ours)
            if adopted:
                archive = self.commit(tp, archive, adopted, leader)
        # Uploads create keys that are not in it with If-None-Match, without a request before.
        return replace(archive, present=frozenset(row.key for row in rows))

    def compare(
        self, tp: TopicPartition, archive: ArchiveState, local: EpochHistory
    ) -> ArchiveState:
        """Check that the leader epochs of this broker's log have written the stored records.

        The check comes before the first upload. It reads the stored epoch history, which the first
        commit then need not read.

        Raises:
            DivergenceBelowError: other leader epochs have written them.
            MalformedObjectError: the stored epoch history does not parse.
        """
        if archive.watermark is None or archive.next_offset is None:
            return archive
        known = self._epoch_histories.below(archive.watermark).compare(
            tp, archive.next_offset, local
        )
        return replace(archive, epoch_history=known)

    def _check_unmarked(
        self, tp: TopicPartition, rows: Sequence[ObjectSummary], prefix: str, leader: Leader
    ) -> None:
        """Check that no stored segment above `offset.wm` is of Pinterest's uploader.

        Reads the head of each stored `.log`; usually there is none. Segments of a deleted topic of
        the same name lose their entries in `_metadata`: otherwise readers would take them for
        segments of this topic.

        Raises:
            UnmarkedPinterestError: Pinterest's uploader has stored a segment.
        """
        others = set()
        for row in rows:
            parsed = parse_object_key(row.key, prefix)
            if parsed is None or parsed[1] is not FileKind.LOG:
                continue
            head = self._store.head_object(row.key)
            if noted_next_offset(head) is None:
                raise UnmarkedPinterestError(
                    f"{row.key} was stored by Pinterest's uploader, but there is no watermark: "
                    "the uploader died before it wrote one, or the object was deleted"
                )
            stored_id = head.metadata.get(TOPIC_ID_KEY)
            if None not in {stored_id, leader.topic_id} and stored_id != leader.topic_id:
                others.add(parsed[0])
        if others and any(row.key == self._layout.metadata_key(tp) for row in rows):
            self._metadata.rewrite(
                tp,
                lambda known: known.with_entries(
                    entry for entry in known.entries if entry.base_offset not in others
                ),
            )

    def _begin_with(self, archive: ArchiveState, stored: Sequence[SegmentFiles]) -> ArchiveState:
        """Begin the archive at an earlier leader's first segment if that is below our log start."""
        if archive.watermark is not None or archive.start is None or archive.recorded:
            return archive
        if not stored or stored[0].base_offset >= archive.start:
            return archive
        if noted_next_offset(self._store.head_object(stored[0].log.key)) is None:
            return archive
        return archive.beginning_at(Offset(stored[0].base_offset))

    def _covered(self, tp: TopicPartition, watermark: Watermark | None) -> list[ObjectSummary]:
        """Return the committed `.log` objects."""
        if watermark is None:
            return []
        return [segment.log for segment in self._at(tp).logs(end=watermark.base_offset + 1)]

    def _at(self, tp: TopicPartition) -> StoredPartition:
        return StoredPartition(self._store, self._layout, tp)

    def commit(
        self,
        tp: TopicPartition,
        archive: ArchiveState,
        stored: Sequence[StoredSegment],
        leader: Leader,
    ) -> ArchiveState:
        """Advance `offset.wm` over segments that follow the archive end offset without a gap.

        Args:
            tp: The partition.
            archive: The archive as it was read or committed last.
            stored: The segments, by rising base offset; at least one.
            leader: The leader that the archive is written for.

        Raises:
            StandDownError: a later leader has written `offset.wm`.
            ArchiveConflictError: another sidecar has written `offset.wm` since it was read: read it
                again; or archive and segments have different histories.
        """
        new = archive.watermark is None
        # Epochs before `_metadata` before `offset.wm`: each object describes at least what
        # the next one makes visible. The other way round, a kill would leave committed
        # records without their epochs, or segments that Pinterest's consumer skips.
        epoch_history = self._epoch_histories.below(archive.watermark).cover(
            tp,
            archive.epoch_history or (NOT_STORED if new else None),
            # A new archive has committed nothing, so no stored epoch is believed.
            Offset(0) if new or archive.next_offset is None else archive.next_offset,
            stored,
            leader.leader_epoch,
        )
        archive = replace(archive, epoch_history=epoch_history)
        last = stored[-1]
        try:
            self._metadata.add(
                tp,
                [(segment.base_offset, segment.modified_ms) for segment in stored],
                lambda: self._covered(tp, archive.watermark),
                lambda: self._watermarks.expect_unchanged(tp, archive, last.next_offset, leader),
            )
            # Just before the first `offset.wm`: another replica may have recorded a lower start
            # while the segments were uploaded.
            if new and archive.start:
                self._expect_no_lower_start(tp, archive.start, leader)
            # The commit. Everything before it can be repeated;
            # nothing after it is needed for correctness.
            moved = self._watermarks.move(tp, archive, last.base_offset, last.next_offset, leader)
        except (ArchiveConflictError, StandDownError):
            begun = self._at(tp).watermark() if new else None
            if begun is not None:
                self._compare_start(tp, begun.watermark, leader)
            raise
        archive = moved
        if new and archive.watermark is not None:
            self._compare_start(tp, archive.watermark, leader)
        count = self._metadata.entries(tp)
        if self._long_archives is not None and count is not None:
            self._long_archives.put(
                LongArchive(self._store, self._layout, tp, leader.topic_id, last.base_offset, count)
            )
        return archive

    def _expect_no_lower_start(self, tp: TopicPartition, start: Offset, leader: Leader) -> None:
        """Raise ArchiveConflictError if a start below `start` is recorded.

        The first `offset.wm` fixes the start: segments below it would not belong to the archive.
        """
        kept = read_earliest_start(self._store, self._layout, tp, leader.topic_id)
        if kept is not None and kept < start:
            raise ArchiveConflictError(
                f"{self._layout.start_key(tp)} records that the archive begins at {kept}, and "
                f"this sidecar was about to begin it at {start}: another sidecar has the records "
                f"from {kept} on"
            )

    def name_leaders(
        self,
        tp: TopicPartition,
        archive: ArchiveState,
        gap: OffsetRange,
        local: ReadEpochHistory | None,
        leader: Leader,
    ) -> ArchiveState:
        """Store the leader epochs of the records in a gap, before the gap is recorded.

        The stored epoch history may have epochs there from a commit that never completed.

        Args:
            tp: The partition.
            archive: The archive as it was read or committed last.
            gap: The gap.
            local: Reads the leader epochs of this broker's log; None changes nothing.
            leader: The leader that the archive is written for.

        Raises:
            ArchiveConflictError: as `commit`.
        """
        if archive.watermark is None or local is None:
            return archive
        # A segment without bytes stands for the gap,
        # because epochs are stored for ranges of segments.
        lost = StoredSegment(BaseOffset(gap.start), gap.end, 0, 0, 0, local())
        epoch = leader.leader_epoch
        epoch_histories = self._epoch_histories.below(archive.watermark)
        known = epoch_histories.cover(tp, archive.epoch_history, gap.start, [lost], epoch)
        return replace(archive, epoch_history=known)

    def record_gap(
        self,
        tp: TopicPartition,
        archive: ArchiveState,
        gap: OffsetRange,
        leader: Leader,
        epoch_history: ReadEpochHistory | None = None,
    ) -> ArchiveState:
        """Advance `offset.wm` over records that the broker has deleted.

        Where stored segments continue the archive, they are committed instead; the caller sees a
        new base offset in `offset.wm` then. Otherwise the gap up to the first stored segment is
        recorded on the store.

        The record states whether the log is known to continue the archive behind the gap
        (`archive_below`). It may not be: if the log start has passed the start of a leader epoch
        that this sidecar has not seen begin, an unclean election may have replaced archived
        records.

        A kill between the record and `offset.wm` leaves the record. The next start finds the same
        gap again, and its record in place.

        Raises:
            DivergedError: a segment stored in the gap has another history than the leader's log.
            ArchiveConflictError: as `commit`.
        """
        ours = OurLog(epoch_history, leader.topic_id)
        # Another sidecar may have stored a part of these offsets since the archive was read.
        # Such records are not missing, so the store is asked before the gap is recorded.
        stored = list(stored_within(self._store, self._layout, tp, gap, archive.watermark, ours))
        adopted = contiguous(stored, gap.start)
        if adopted:
            return self.commit(tp, archive, adopted, leader)
        if stored:
            gap = OffsetRange(gap.start, Offset(stored[0].base_offset))
        # The record comes before `offset.wm`: the archive end offset must
        # never pass offsets that are neither stored nor recorded as a gap.
        write_gap(
            self._store,
            self._layout,
            tp,
            gap,
            leader.broker_id,
            leader.leader_epoch,
            archive_below=self._archive_below(tp, archive, gap, epoch_history),
        )
        if archive.watermark is None:
            # Another sidecar may have stored the segments behind the gap without committing them,
            # so `present` is unset to list the store again.
            return replace(archive, next_offset=gap.end, present=None)
        return self._watermarks.move(tp, archive, archive.watermark.base_offset, gap.end, leader)

    def _archive_below(
        self,
        tp: TopicPartition,
        archive: ArchiveState,
        gap: OffsetRange,
        epoch_history: ReadEpochHistory | None,
    ) -> ArchiveBelow | None:
        if archive.watermark is None or epoch_history is None:
            return None
        stored = archive.epoch_history or self._epoch_histories.below(archive.watermark).read(tp)
        if continues(stored.epoch_history.up_to(gap.start), epoch_history(), gap.start):
            return "verified"
        log.warning(
            "gap.archive_unverified", topic=tp.topic, partition=tp.partition, start_offset=gap.start
        )
        return "unverified"

"""A partition's archive: read it, and move its watermark over what has been stored.

Order of a commit: `leader-epoch-checkpoint` where it changes, `_metadata`, then `offset.wm`. A kill
between them leaves epochs that the next commit does not believe, or entries for segments that are
stored already: it finds them there. Of a gap: `leader-epoch-checkpoint`, the record, `offset.wm`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import structlog

from sidetier.archive.objects.gaps import ArchiveBelow, write_gap
from sidetier.archive.objects.segment import derive_next_offset, noted_next_offset
from sidetier.archive.objects.starts import (
    StartRecords,
    keep_earliest_start,
    read_earliest_start,
    settle_start,
)
from sidetier.archive.objects.watermark import Watermark
from sidetier.segments.epoch_history import EpochHistory, continues
from sidetier.segments.errors import ArchiveConflictError
from sidetier.segments.keys import ArchiveLayout, parse_object_key
from sidetier.segments.names import FileKind
from sidetier.segments.notes import TOPIC_ID_KEY
from sidetier.segments.offsets import BaseOffset, Offset, OffsetRange, TopicPartition
from sidetier.storage.port import ObjectSummary, RemoteStorage
from sidetier.uploader.archive.adoption import (
    OurLog,
    ReadEpochHistory,
    WholeSegment,
    contiguous,
    follow_on,
    stored_within,
    whole_segments,
)
from sidetier.uploader.archive.archive_state import ArchiveState, Leader
from sidetier.uploader.archive.epoch_history_file import NOT_STORED, EpochHistoryFile
from sidetier.uploader.archive.metadata_cache import MetadataCache, MetadataEditor
from sidetier.uploader.archive.takeover.local import LocalLog
from sidetier.uploader.archive.takeover.run import Takeover, TakeoverReport
from sidetier.uploader.archive.watermark_file import WatermarkFile
from sidetier.uploader.chapters import LongArchive, LongArchives
from sidetier.uploader.errors import UnmarkedPinterestError
from sidetier.uploader.state.segment import StoredSegment

log: Final = structlog.get_logger()


class ArchiveWriter:
    """Reads and commits the archives of one store; every method makes requests.

    `admit` is called before an archive is read: it raises where this store must not be written to.
    `long_archives` is told of commits.
    """

    def __init__(
        self,
        store: RemoteStorage,
        layout: ArchiveLayout,
        cache: MetadataCache,
        admit: Callable[[], None] = lambda: None,
        long_archives: LongArchives | None = None,
    ) -> None:
        self._store = store
        self._layout = layout
        self._admit = admit
        self._metadata = MetadataEditor(store, layout, cache)
        self._epoch_histories = EpochHistoryFile(store, layout)
        self._watermarks = WatermarkFile(store, layout)
        self._starts = StartRecords(store, layout)
        self._long_archives = long_archives

    def admit(self) -> None:
        """Ask whether the store may be written to, until it has been answered once.

        Raises:
            ConfigurationError: it may not.
        """
        self._admit()

    def load(self, tp: TopicPartition, leader: Leader, *, derive: bool = True) -> ArchiveState:
        """The watermark, in one request; where there is none, the record of a start, in at most
        another.
        Where Pinterest's uploader wrote it, without a next offset, that is derived from the segment
        it names, in more requests, or left unknown.

        Raises:
            StandDownError: a later leader has written it.
            RecreatedError: it belongs to another topic of the same name.
            MalformedObjectError: it does not parse.
            ConfigurationError: the store must not be written to.
        """
        self._admit()
        archive = self._watermarks.read(tp, leader)
        if archive.watermark is None:
            kept = self._starts.read_earliest(tp, leader.topic_id)
            return replace(archive, kept_start=kept)
        if not archive.is_pinterest or not derive:
            return archive
        base = archive.watermark.base_offset
        following = derive_next_offset(self._store, self._layout, tp, base)
        return replace(archive, next_offset=following)

    def take_over(
        self, tp: TopicPartition, archive: ArchiveState, leader: Leader, local: LocalLog
    ) -> tuple[ArchiveState, TakeoverReport]:
        """Make an archive of Pinterest's ours: from then on the watermark has our second line, and
        no gap lies below it that is not recorded. Where nothing whole is stored that this log does
        not hold itself, or that a watermark names, ours begins anew.

        Raises:
            OperatorNeededError: what is stored is not of this broker's log, or Pinterest's uploader
                is still running.
            ArchiveConflictError: another sidecar took it over meanwhile.
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
            return ArchiveState(etag=archive.etag), report
        if watermark is not None:
            watermark = replace(watermark, start_offset=report.start)
        archive = replace(archive, watermark=watermark, start=report.start)
        return self._watermarks.move(tp, archive, report.last, report.next_offset, leader), report

    def start_of(self, tp: TopicPartition, here: Offset, leader: Leader) -> Offset:
        """Where the archive of a partition without a watermark begins: recorded once for a topic.

        Only `offset_reset: latest` asks: what it leaves out must stay left out after a restart.

        Raises:
            ArchiveConflictError: another sidecar has recorded its own meanwhile.
        """
        return settle_start(self._store, self._layout, tp, here, leader.topic_id)

    def keep_start(
        self, tp: TopicPartition, archive: ArchiveState, start: Offset, leader: Leader
    ) -> ArchiveState:
        """Record where the archive begins, though the log begins later by now and there is no
        watermark yet. Where a lower start is recorded, the archive begins there.

        Raises:
            ArchiveConflictError: another sidecar has recorded its own meanwhile.
        """
        kept = keep_earliest_start(self._store, self._layout, tp, start, leader.topic_id)
        return replace(archive, kept_start=kept).beginning_at(kept)

    def prepare(
        self,
        tp: TopicPartition,
        archive: ArchiveState,
        leader: Leader,
        epoch_history: ReadEpochHistory | None = None,
        *,
        unmarked: bool = False,
    ) -> ArchiveState:
        """Look once at what lies above the watermark, and read `_metadata`: uploads may begin.

        Segments that are there already and continue the archive are committed: an earlier life's,
        or another leader's, with whatever bases he had; a `.log` is never replaced. An archive
        without a watermark begins with the first of them, though our own log may begin later.
        Pinterest's are `unmarked` without one: known then, and compared before they are replaced.

        Raises:
            UnmarkedPinterestError: Pinterest's uploader has stored segments, but there is no
            watermark of its.
            DivergedError: one of them is not of this broker's log, which `epoch_history` tells.
            ArchiveConflictError: as `commit`.
        """
        after, start = archive.watermark, ""
        if after is not None:
            start = self._layout.object_key(tp, after.base_offset, FileKind.TXNINDEX)
        prefix = self._layout.partition_prefix(tp)
        rows = list(self._store.list_objects(prefix, start_after=start))
        self._metadata.load(tp, there=any(row.key == self._layout.metadata_key(tp) for row in rows))
        if after is None and not (unmarked or archive.recorded):
            self._look_at_unmarked(tp, rows, prefix, leader)
        whole = whole_segments(rows, prefix)
        archive = self._begin_with(archive, whole)
        if whole and archive.next_offset is not None:
            ours = OurLog(epoch_history, leader.topic_id)
            found = follow_on(self._store, whole, archive.next_offset, leader.leader_epoch, ours)
            if found:
                archive = self.commit(tp, archive, found, leader)
        return replace(archive, present=frozenset(row.key for row in rows))

    def compare(
        self, tp: TopicPartition, archive: ArchiveState, local: EpochHistory
    ) -> ArchiveState:
        """Look whether the leaders that this broker's log names have written what is stored, in a
        request that the first commit would make; before anything is sent.

        Raises:
            ForkBelowError: others have.
            MalformedObjectError: the stored epoch history does not parse.
        """
        if archive.watermark is None or archive.next_offset is None:
            return archive
        known = self._epoch_histories.below(archive.watermark).compare(
            tp, archive.next_offset, local
        )
        return replace(archive, epoch_history=known)

    def _look_at_unmarked(
        self, tp: TopicPartition, rows: Sequence[ObjectSummary], prefix: str, leader: Leader
    ) -> None:
        """A request for each `.log` up to the first of Pinterest's; as a rule there are none.

        What a deleted topic of the same name has left, that never had a watermark, is named in
        `_metadata` no more: readers would take it for records of this one.
        """
        others = set()
        for row in rows:
            parsed = parse_object_key(row.key, prefix)
            if parsed is None or parsed[1] is not FileKind.LOG:
                continue
            head = self._store.head_object(row.key)
            if noted_next_offset(head) is None:
                raise UnmarkedPinterestError(
                    f"{row.key} was stored by Pinterest's uploader, but there is no watermark of "
                    "its: it died before the first, or that was deleted"
                )
            theirs = head.metadata.get(TOPIC_ID_KEY)
            if None not in {theirs, leader.topic_id} and theirs != leader.topic_id:
                others.add(parsed[0])
        if others and any(row.key == self._layout.metadata_key(tp) for row in rows):
            self._metadata.rewrite(
                tp,
                lambda known: known.with_entries(
                    entry for entry in known.entries if entry.base_offset not in others
                ),
            )

    def _begin_with(self, archive: ArchiveState, whole: Sequence[WholeSegment]) -> ArchiveState:
        """Where a leader before us has stored what has left our log since, it belongs to us too."""
        if archive.watermark is not None or archive.start is None or archive.recorded:
            return archive
        if not whole or whole[0].base_offset >= archive.start:
            return archive
        if noted_next_offset(self._store.head_object(whole[0].log.key)) is None:
            return archive
        return archive.beginning_at(Offset(whole[0].base_offset))

    def _covered(self, tp: TopicPartition, watermark: Watermark | None) -> list[ObjectSummary]:
        """The `.log` files up to the watermark."""
        if watermark is None:
            return []
        prefix = self._layout.partition_prefix(tp)
        rows = self._store.list_objects(prefix)
        return [row for row in rows if _is_committed(row.key, prefix, watermark)]

    def commit(
        self,
        tp: TopicPartition,
        archive: ArchiveState,
        stored: Sequence[StoredSegment],
        leader: Leader,
    ) -> ArchiveState:
        """Move the watermark over segments that follow on it without a gap.

        Raises:
            StandDownError: a later leader has moved it; nothing of ours is there.
            ArchiveConflictError: somebody moved it since it was read: read it again; or archive and
                segments tell different histories.
        """
        new = archive.watermark is None
        epoch_history = self._epoch_histories.below(archive.watermark).cover(
            tp,
            archive.epoch_history or (NOT_STORED if new else None),
            Offset(0) if new or archive.next_offset is None else archive.next_offset,
            stored,
            leader.leader_epoch,
        )
        archive = replace(archive, epoch_history=epoch_history)
        self._metadata.add(
            tp,
            [(segment.base_offset, segment.modified_ms) for segment in stored],
            lambda: self._covered(tp, archive.watermark),
        )
        last = stored[-1]
        if new and archive.start:
            self._expect_no_lower_start(tp, archive.start, leader)
        archive = self._watermarks.move(tp, archive, last.base_offset, last.next_offset, leader)
        count = self._metadata.entries(tp)
        if self._long_archives is not None and count is not None:
            self._long_archives.put(
                LongArchive(self._store, self._layout, tp, leader.topic_id, last.base_offset, count)
            )
        return archive

    def _expect_no_lower_start(self, tp: TopicPartition, start: Offset, leader: Leader) -> None:
        """What lies below the start of the first watermark is no part of the archive any more."""
        kept = read_earliest_start(self._store, self._layout, tp, leader.topic_id)
        if kept is not None and kept < start:
            raise ArchiveConflictError(
                f"{self._layout.start_key(tp)} says that the archive is to begin at {kept}, and "
                f"this sidecar was about to begin it at {start}: another one has the records from "
                "there on"
            )

    def name_leaders(
        self,
        tp: TopicPartition,
        archive: ArchiveState,
        gap: OffsetRange,
        local: ReadEpochHistory | None,
        leader: Leader,
    ) -> ArchiveState:
        """Have the stored epoch history name those who wrote what is in a gap, before that is
        recorded: epochs of a commit that never came through may be noted there. Nothing without
        `local`.

        Raises:
            ArchiveConflictError: as `commit`.
        """
        if archive.watermark is None or local is None:
            return archive
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
        """Move over records that are gone from the disk: over the segments that are stored already
        and continue the archive (another base offset in the watermark tells), or else, recorded on
        the store, over the gap up to the first such segment.

        The record says whether the log is known to continue the archive behind the gap. Where the
        log start has passed the beginning of a leader epoch that this sidecar has not seen begin,
        an unclean election may have replaced what is archived, and nothing tells any more.

        A kill between record and watermark finds the same gap again, and its record in place.

        Raises:
            DivergedError: what is stored in the gap is of another history than the leader's.
        """
        ours = OurLog(epoch_history, leader.topic_id)
        stored = list(stored_within(self._store, self._layout, tp, gap, archive.watermark, ours))
        adopted = contiguous(stored, gap.start)
        if adopted:
            return self.commit(tp, archive, adopted, leader)
        if stored:
            gap = OffsetRange(gap.start, Offset(stored[0].base_offset))
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
            # Another sidecar may have stored what follows, without a watermark: look once more.
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


def _is_committed(key: str, prefix: str, watermark: Watermark) -> bool:
    """The key is of a `.log` that the watermark covers."""
    parsed = parse_object_key(key, prefix)
    return parsed is not None and parsed[0] <= watermark.base_offset and parsed[1] is FileKind.LOG

"""Read and write `offset.wm` for a leader.

A write is a conditional put over the version that was read. If two sidecars write at once, the
store refuses one of the writes.
"""

from dataclasses import replace

from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.archive.objects.watermark import (
    StoredWatermark,
    Watermark,
    WatermarkConflictError,
    only_start_moved,
    write_watermark,
)
from sidetier.segments.epoch_history import checksum_below
from sidetier.segments.errors import ArchiveConflictError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.storage.port import RemoteStorage
from sidetier.uploader.archive.archive_state import ArchiveState, Leader
from sidetier.uploader.errors import PinterestUploaderRunningError, RecreatedError, StandDownError


class WatermarkFile:
    """Reads and writes the `offset.wm` objects of one store."""

    def __init__(self, store: RemoteStorage, layout: ArchiveLayout) -> None:
        self._store = store
        self._layout = layout
        self._ours: set[TopicPartition] = set()
        """Partitions whose `offset.wm` had Sidetier's second line when it was last read or written.

        If the line is missing later, Pinterest's uploader has overwritten the object.
        """

    def read(self, tp: TopicPartition, leader: Leader) -> ArchiveState:
        """Read `offset.wm` in one request.

        Returns:
            The archive, with `next_offset` None where Pinterest's uploader wrote `offset.wm`. An
            empty state where there is no `offset.wm`.

        Raises:
            StandDownError: a later leader has written it.
            RecreatedError: it belongs to another topic of the same name.
            PinterestUploaderRunningError: it was ours, and Pinterest's uploader has overwritten it.
            MalformedObjectError: it does not parse.
        """
        key = self._layout.watermark_key(tp)
        mark = self._stored(tp).watermark()
        if mark is None:
            return ArchiveState()
        _check_writer(key, mark, leader)
        if mark.watermark.next_offset is not None:
            self._ours.add(tp)
        # Without this memory, the sidecar would take the partition over again,
        # Pinterest's uploader would overwrite it again, and both would lose records.
        elif tp in self._ours:
            raise _overwritten_by_pinterest(key, mark.watermark)
        return ArchiveState(mark.watermark, mark.etag, mark.watermark.next_offset)

    def move(
        self,
        tp: TopicPartition,
        archive: ArchiveState,
        base: BaseOffset,
        next_offset: Offset,
        leader: Leader,
    ) -> ArchiveState:
        """Write a new version of `offset.wm`.

        Args:
            tp: The partition.
            archive: The archive as it was read; its etag is the condition of the put.
            base: Base offset of the last archived segment.
            next_offset: The new archive end offset, exclusive.
            leader: The leader that the archive is written for.

        Raises:
            StandDownError: a later leader has written it.
            RecreatedError: it belongs to another topic of the same name now.
            ArchiveConflictError: another process has written or deleted it since it was read.
        """
        beside = archive.epoch_history
        watermark = Watermark(
            base_offset=base,
            next_offset=next_offset,
            leader_epoch=leader.leader_epoch,
            broker_id=leader.broker_id,
            topic_id=leader.topic_id,
            # After the first write, only `sidetier gc` moves the start.
            start_offset=archive.watermark.start_offset if archive.watermark else archive.start,
            epoch_history=checksum_below(beside.epoch_history, next_offset) if beside else None,
        )
        key = self._layout.watermark_key(tp)
        try:
            watermark, etag = write_watermark(self._store, key, watermark, archive.etag)
        except WatermarkConflictError as error:
            stored, known = error.stored, archive.watermark
            if stored is None or known is None or not only_start_moved(known, stored.watermark):
                raise _refusal(key, stored, next_offset, leader) from None
            # `sidetier gc` does not change what this write depends on. As a conflict, it would be
            # counted for each partition that gc visits, and end in an alert.
            archive = replace(archive, watermark=stored.watermark, etag=stored.etag)
            return self.move(tp, archive, base, next_offset, leader)
        self._ours.add(tp)
        return replace(
            archive, watermark=watermark, etag=etag, next_offset=next_offset, claimed=True
        )

    def expect_unchanged(
        self, tp: TopicPartition, archive: ArchiveState, next_offset: Offset, leader: Leader
    ) -> None:
        """Check that the store would take the write of `move` now. Raises as `move`."""
        if self._stored(tp).watermark_etag() == archive.etag:
            return
        stored, known = self._stored(tp).watermark(), archive.watermark
        if stored is None or known is None or not only_start_moved(known, stored.watermark):
            raise _refusal(self._layout.watermark_key(tp), stored, next_offset, leader)

    def _stored(self, tp: TopicPartition) -> StoredPartition:
        return StoredPartition(self._store, self._layout, tp)


def _refusal(
    key: str, stored: StoredWatermark | None, next_offset: Offset, leader: Leader
) -> ArchiveConflictError:
    """Return the error that names the writer of `offset.wm`; raises as `_check_writer`."""
    if stored is None:
        return ArchiveConflictError(
            f"{key} has been deleted since it was read (by hand, or by a lifecycle rule of the "
            "bucket): the archive is read again, and its listing shows the stored segments"
        )
    written = stored.watermark
    if written.next_offset is None:
        return _overwritten_by_pinterest(key, written)
    _check_writer(key, stored, leader)
    return ArchiveConflictError(
        f"{key} was moved to {written.next_offset} by broker {written.broker_id} in leader epoch "
        f"{written.leader_epoch} while this sidecar was moving it to {next_offset}"
    )


def _overwritten_by_pinterest(key: str, watermark: Watermark) -> PinterestUploaderRunningError:
    return PinterestUploaderRunningError(
        f"{key} names {watermark.base_offset} and has lost the second line of this sidecar: "
        "Pinterest's uploader is running for this partition, too, and overwrites the watermark; "
        "stop it on every broker, then restart this sidecar, which takes the partition over"
    )


def _check_writer(key: str, mark: StoredWatermark, leader: Leader) -> None:
    watermark = mark.watermark
    stored_id, topic_id = watermark.topic_id, leader.topic_id
    if stored_id is not None and topic_id is not None and stored_id != topic_id:
        raise RecreatedError(
            f"{key} belongs to topic id {stored_id}, but the topic of this name has id {topic_id} "
            "now: it was deleted and created again; `sidetier retire` moves the old archive away, "
            "and then the archive of the new topic begins",
            mark,
        )
    if watermark.leader_epoch > leader.leader_epoch:
        raise StandDownError(
            f"{key} was written by broker {watermark.broker_id} in leader epoch "
            f"{watermark.leader_epoch}, this broker leads in {leader.leader_epoch}"
        )

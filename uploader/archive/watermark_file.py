"""`offset.wm`: who has written it last, and moving it only from where it was read.

It is replaced under the condition that it has not changed since: of two sidecars one is refused.
"""

import uuid
from dataclasses import replace

from sidetier.archive.objects.watermark import Watermark, encode_watermark
from sidetier.segments.epoch_history import checksum_below
from sidetier.segments.errors import ArchiveConflictError, PreconditionFailedError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import Condition, IfAbsent, IfMatch, RemoteStorage
from sidetier.uploader.archive.archive_state import ArchiveState, Leader
from sidetier.uploader.archive.quarantine.claim import StoredWatermark, read_stored_watermark
from sidetier.uploader.archive.takeover.decision import PinterestUploaderRunningError


class RecreatedError(ArchiveConflictError):
    """The archive belongs to another topic of the same name, deleted since; `mark` is the watermark
    that tells it, as it was read.
    """

    def __init__(self, message: str, mark: StoredWatermark) -> None:
        super().__init__(message)
        self.mark = mark


class StandDownError(ArchiveConflictError):
    """The watermark was written in a later leader epoch than ours: another broker leads."""


class WatermarkFile:
    """Reads and moves the watermarks of one store."""

    def __init__(self, store: RemoteStorage, layout: ArchiveLayout) -> None:
        self._store = store
        self._layout = layout
        self._ours: set[TopicPartition] = set()
        """Partitions whose watermark had our second line when it was read or written last."""

    def read(self, tp: TopicPartition, leader: Leader) -> ArchiveState:
        """In one request; of the peer's the next offset is not known.

        Raises:
            StandDownError: a later leader has written it.
            RecreatedError: it belongs to another topic of the same name.
            PeerAtWorkError: it was ours, and the peer has written over it.
            MalformedObjectError: it does not parse.
        """
        key = self._layout.watermark_key(tp)
        mark = read_stored_watermark(self._store, self._layout, tp)
        if mark is None:
            return ArchiveState()
        _check_writer(key, mark, leader)
        if mark.watermark.next_offset is not None:
            self._ours.add(tp)
        elif tp in self._ours:
            raise _peer_at_work(key, mark.watermark)
        return ArchiveState(mark.watermark, mark.etag, mark.watermark.next_offset)

    def move(
        self,
        tp: TopicPartition,
        archive: ArchiveState,
        base: BaseOffset,
        next_offset: Offset,
        leader: Leader,
    ) -> ArchiveState:
        """Move it to the segment with this base offset; the archive goes on at `next_offset`.

        Raises:
            StandDownError: a later leader has moved it.
            ArchiveConflictError: somebody moved it since it was read.
        """
        beside = archive.epoch_history
        watermark = Watermark(
            base_offset=base,
            next_offset=next_offset,
            leader_epoch=leader.leader_epoch,
            broker_id=leader.broker_id,
            topic_id=leader.topic_id,
            nonce=uuid.uuid4().hex,
            start_offset=archive.watermark.start_offset if archive.watermark else archive.start,
            epoch_history=checksum_below(beside.epoch_history, next_offset) if beside else None,
        )
        key = self._layout.watermark_key(tp)
        try:
            etag = self._store.put_object(
                key, BytesBody(encode_watermark(watermark)), condition=_over(archive.etag)
            )
        except PreconditionFailedError:
            etag = self._settle(tp, watermark, leader)
        self._ours.add(tp)
        return replace(
            archive, watermark=watermark, etag=etag, next_offset=next_offset, claimed=True
        )

    def _settle(self, tp: TopicPartition, ours: Watermark, leader: Leader) -> str:
        """A refusal: our own nonce means that an earlier try, whose answer was lost, succeeded."""
        key, mark = (
            self._layout.watermark_key(tp),
            read_stored_watermark(self._store, self._layout, tp),
        )
        if mark is None:
            raise ArchiveConflictError(
                f"{key} has been deleted since it was read (by hand, or by a lifecycle rule of the "
                "bucket): the archive is read again, and what is stored is found by its listing"
            )
        there = mark.watermark
        if there.nonce == ours.nonce:
            return mark.etag
        if there.next_offset is None:
            raise _peer_at_work(key, there)
        _check_writer(key, mark, leader)
        raise ArchiveConflictError(
            f"{key} was moved to {there.next_offset} by broker {there.broker_id} in leader epoch "
            f"{there.leader_epoch} while we wanted to move it to {ours.next_offset}"
        )


def _peer_at_work(key: str, there: Watermark) -> PinterestUploaderRunningError:
    return PinterestUploaderRunningError(
        f"{key} names {there.base_offset} and has lost what this sidecar had written: Pinterest's "
        "uploader is running for this partition, too, and writes the watermark without looking; "
        "stop it on every broker, then restart this sidecar, which takes the partition over"
    )


def _over(etag: str | None) -> Condition:
    """A store without conditional writes looks before it writes: better than nothing."""
    return IfAbsent() if etag is None else IfMatch(etag)


def _check_writer(key: str, mark: StoredWatermark, leader: Leader) -> None:
    watermark = mark.watermark
    theirs, ours = watermark.topic_id, leader.topic_id
    if theirs is not None and ours is not None and theirs != ours:
        raise RecreatedError(
            f"{key} belongs to topic id {theirs}, the topic of this name has id {ours} now: it was "
            "deleted and created again; `sidetier retire` moves the old archive away, and then "
            "this one begins",
            mark,
        )
    if watermark.leader_epoch > leader.leader_epoch:
        raise StandDownError(
            f"{key} was written by broker {watermark.broker_id} in leader epoch "
            f"{watermark.leader_epoch}, this broker leads in {leader.leader_epoch}"
        )

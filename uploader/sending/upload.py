"""Uploading one segment: verify, then indexes, then the `.log`."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.storage.port import RemoteStorage
from sidetier.uploader.pinning.pins import PinnedSegment
from sidetier.uploader.plan import PlannedSegment
from sidetier.uploader.sending.fenced import FileToStore, store_file
from sidetier.uploader.sending.reading import CHUNK_BYTES, ColdPages
from sidetier.uploader.sending.verify import Reading, VerifiedFile, VerifiedSegment, verify

NEXT_OFFSET_KEY: Final = "sidetier-next-offset"
MAX_TIMESTAMP_KEY: Final = "sidetier-max-timestamp"
LEADER_EPOCH_KEY: Final = "sidetier-leader-epoch"
BROKER_ID_KEY: Final = "sidetier-broker-id"


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment whose three objects are on the store; `bytes_sent` is 0 when they were there."""

    base_offset: BaseOffset
    next_offset: Offset
    modified_ms: int
    size: int
    bytes_sent: int


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a partition's segments go, and in whose name.

    Of a compacted topic records may be missing anywhere, and the pinned files may be older than
    what stands under their names now. `claimed` says that nobody else can move the watermark;
    `directory` is where the partition lies now.
    """

    store: RemoteStorage
    layout: ArchiveLayout
    topic_partition: TopicPartition
    writer_epoch: LeaderEpoch
    broker_id: BrokerId
    compacted: bool = False
    claimed: bool = True
    directory: str | None = None


@dataclass(frozen=True, slots=True)
class ReadingRules:
    """How segments are read: the cap before each read, and whether cold pages are given back."""

    before_read: Callable[[int], None]
    give_back_cold: bool


@dataclass(slots=True)
class Uploader:
    """Uploads segments; each thread has one chunk of memory, whatever the size of a segment."""

    rules: ReadingRules
    _local: threading.local = field(default_factory=threading.local)

    def upload(
        self,
        to: Destination,
        pinned: PinnedSegment,
        planned: PlannedSegment,
        present: frozenset[str],
    ) -> StoredSegment:
        """Store one segment's index, time index and log, in this order.

        A reader that lists the `.log` finds it whole, with its indexes. A kill in between leaves
        objects above the watermark: the next start compares and keeps, or replaces, them.
        `present` are the keys above the watermark that were there when the archive was read.

        Raises:
            SegmentError: the local file is not what it should be.
            ArchiveConflictError: another writer is at work.
            StorageError: as the port says.
        """
        pages = ColdPages(pinned.log, watch=self.rules.give_back_cold)
        try:
            reading = Reading(
                pages, self._buffer(), self.rules.before_read, to.compacted, to.directory
            )
            verified = verify(pinned, planned, reading)
            sent = sum(
                store_file(to.store, file, may_exist=file.key in present, may_replace=to.claimed)
                for file in _files(to, verified)
            )
            pinned.check_unchanged()
        finally:
            pages.give_back()
        return StoredSegment(
            verified.base_offset, verified.next_offset, verified.modified_ms, verified.size, sent
        )

    def _buffer(self) -> memoryview:
        buffer: memoryview | None = getattr(self._local, "buffer", None)
        if buffer is None:
            buffer = self._local.buffer = memoryview(bytearray(CHUNK_BYTES))
        return buffer


def _files(to: Destination, verified: VerifiedSegment) -> list[FileToStore]:
    facts = {
        NEXT_OFFSET_KEY: str(verified.next_offset),
        MAX_TIMESTAMP_KEY: str(verified.max_timestamp),
        LEADER_EPOCH_KEY: str(verified.leader_epoch),
        BROKER_ID_KEY: str(to.broker_id),
    }
    order: list[tuple[FileKind, VerifiedFile]] = [
        (FileKind.INDEX, verified.index),
        (FileKind.TIMEINDEX, verified.timeindex),
        (FileKind.LOG, verified.log),
    ]
    return [
        FileToStore(
            to.layout.object_key(to.topic_partition, verified.base_offset, kind),
            file.body,
            file.crc64nvme,
            facts if kind is FileKind.LOG else {},
            to.writer_epoch,
        )
        for kind, file in order
    ]

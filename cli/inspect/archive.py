"""Facts on the store about one offset: the segment that holds it, or why none does."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from sidetier.archive.inventory.contents import ArchiveEnd
from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.archive.objects.acknowledgements import (
    Acknowledgement,
    acknowledged_gaps,
    covering,
    read_acknowledgement,
)
from sidetier.archive.objects.gaps import listed_gaps, read_gap
from sidetier.archive.objects.layout import check_note, read_note
from sidetier.archive.objects.starts import recorded_start
from sidetier.segments.errors import MalformedObjectError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind, parse_segment_file_name
from sidetier.segments.offsets import BaseOffset, Offset, OffsetRange, TopicPartition
from sidetier.storage.port import ObjectSummary, RemoteStorage

_MAX_SET_ASIDE: Final = 5


@dataclass(frozen=True, slots=True)
class StoredHolder:
    """Stored segment that holds an offset."""

    key: str
    base_offset: BaseOffset
    next_offset: Offset
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RecordedGap:
    """Records that were deleted before they were archived.

    Attributes:
        key: Key of the gap record on the store.
        start_offset: First missing offset, inclusive.
        end_offset: End of the missing offsets, exclusive.
        recorded_ms: Time of the record, in ms since 1970.
        broker_id: Broker whose sidecar recorded the gap.
        leader_epoch: Leader epoch in which the gap was recorded.
        archive_below: "unverified" if the archive below the gap may have another history than the
            log above it, after an unclean election that no sidecar noticed. None in records of
            earlier versions.
        acknowledgement: Acceptance of the gap by an operator; None if there is none.
    """

    key: str
    start_offset: Offset
    end_offset: Offset
    recorded_ms: int
    broker_id: int | None = None
    leader_epoch: int | None = None
    archive_below: str | None = None
    acknowledgement: Acknowledgement | None = None


@dataclass(frozen=True, slots=True)
class ArchivedOffset:
    """Everything that the store has about one offset of a partition.

    Attributes:
        uri: Location of the partition's archive.
        watermark: The archive end, from `offset.wm`.
        first_base: Lowest stored base offset.
        start_offset: Offset at which the archive began under `uploader.offset_reset: latest`.
        holder: The stored segment that holds the offset.
        gap: The recorded gap that contains the offset.
        moved_away: Keys of quarantined and retired segments below `_sidetier/` that hold the offset
            or may hold it.
        kafka_cluster_id: Kafka's id of the archived cluster; None if unknown.
    """

    uri: str
    watermark: ArchiveEnd
    first_base: BaseOffset | None = None
    start_offset: Offset | None = None
    holder: StoredHolder | None = None
    gap: RecordedGap | None = None
    moved_away: tuple[str, ...] = ()
    kafka_cluster_id: str | None = None

    @property
    def begins_at(self) -> Offset | None:
        """Start offset of the archive, inclusive; None if unknown.

        Stored segments below it do not belong to the archive.
        """
        watermark = self.watermark.watermark
        if watermark is not None and watermark.start_offset is not None:
            return watermark.start_offset
        if watermark is None and self.start_offset is not None:
            return self.start_offset
        return None if self.first_base is None else Offset(self.first_base)


@dataclass(frozen=True, slots=True)
class ArchivedPartition:
    """A partition's archive, and the URL of its store. The methods send requests."""

    stored: StoredPartition
    url: str

    def about(self, offset: int) -> ArchivedOffset:
        """Collect everything about one offset, in about twenty requests at most.

        Raises:
            ConfigurationError: The archive has other entropy bits than are configured.
            StorageError: The store refuses the request or does not answer.
        """
        note = read_note(self.stored.store, self.stored.layout)
        if note is not None:
            check_note(note, self.stored.layout, None)
        # read before the segments: a sidecar may move it
        archive_end = self.stored.end()
        return ArchivedOffset(
            uri=f"{self.url}/{self.stored.prefix}",
            kafka_cluster_id=None if note is None else note.kafka_cluster_id,
            watermark=archive_end,
            first_base=next((log.base_offset for log in self.stored.logs()), None),
            start_offset=self._start(),
            holder=self.holder(offset),
            gap=self._gap(offset),
            moved_away=tuple(self._moved_away(offset)),
        )

    def holder(self, offset: int) -> StoredHolder | None:
        """Return the stored segment that holds the offset, or None."""
        found = self.stored.holder(offset)
        if found is None:
            return None
        segment, end = found
        return StoredHolder(segment.log.key, segment.base_offset, end, segment.log.size)

    @property
    def _place(self) -> tuple[RemoteStorage, ArchiveLayout, TopicPartition]:
        return self.stored.store, self.stored.layout, self.stored.tp

    def _start(self) -> Offset | None:
        try:
            return recorded_start(*self._place)
        except MalformedObjectError:
            return None

    def _gap(self, offset: int) -> RecordedGap | None:
        store, layout, tp = self._place
        prefix = layout.gap_prefix(tp)
        for folder, row, gap in listed_gaps(store, prefix):
            if folder != prefix or offset not in gap:
                continue
            record = read_gap(store, row.key)
            return RecordedGap(
                row.key,
                *gap,
                row.modified_ms,
                record.broker_id,
                record.leader_epoch,
                record.archive_below,
                self._acknowledgement(gap),
            )
        return None

    def _acknowledgement(self, gap: OffsetRange) -> Acknowledgement | None:
        keys = acknowledged_gaps(*self._place)
        around = covering(gap, keys)
        return None if around is None else read_acknowledgement(self.stored.store, keys[around])

    def _moved_away(self, offset: int) -> Iterator[str]:
        store, layout, tp = self._place
        for prefix in (layout.quarantine_prefix(tp), layout.retired_prefix(tp)):
            keys = nearest_in_each_directory(store.list_objects(prefix), offset)
            yield from sorted(keys)[:_MAX_SET_ASIDE]


def nearest_in_each_directory(rows: Iterable[ObjectSummary], offset: int) -> list[str]:
    """Return the key of one `.log` per directory: the highest base at or below the offset."""
    nearest: dict[str, tuple[int, str]] = {}
    for row in rows:
        directory, _, name = row.key.rpartition("/")
        parsed = parse_segment_file_name(name)
        if parsed is not None and parsed.kind is FileKind.LOG and parsed.base_offset <= offset:
            candidate = (parsed.base_offset, row.key)
            nearest[directory] = max(nearest.get(directory, candidate), candidate)
    return [key for _, key in nearest.values()]

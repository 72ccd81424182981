"""Taking over: one scan, then what must be written before the watermark may be ours.

In this order: missing indexes, what is set aside, gaps, `_metadata`; the watermark with our second
line comes last, and says that it is done. A kill before that leaves nothing that doing it again
would not find, and the scan is made anew.
"""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sidetier.archive.objects.gaps import write_gap
from sidetier.archive.objects.pinterest_metadata import PartitionMetadata, TimeIndexEntry
from sidetier.archive.objects.segment import rebuilt_indexes
from sidetier.segments.crc import crc64nvme
from sidetier.segments.errors import ObjectNotFoundError, PreconditionFailedError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import (
    BaseOffset,
    BrokerId,
    LeaderEpoch,
    Offset,
    OffsetRange,
    TopicPartition,
)
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import Checksum, ChecksumAlgorithm, IfAbsent, IfMatch, RemoteStorage
from sidetier.uploader.archive.metadata_cache import MetadataEditor
from sidetier.uploader.archive.takeover.decision import Decision, Span, decide, is_of_another_log
from sidetier.uploader.archive.takeover.local import LocalLog
from sidetier.uploader.archive.takeover.scan import PinterestSegment, scan
from sidetier.uploader.errors import DivergedError, OperatorNeededError

_REMEDY: Final = "`sidetier retire` moves Pinterest's archive away"


@dataclass(frozen=True, slots=True)
class TakeoverReport:
    """What was found: for the log, the metrics, and the watermark.

    `last` is the segment that our watermark names, None where nothing whole was stored. `named` is
    the one that Pinterest's named, if there was one. Keys are those of what was `rebuilt`,
    `set_aside`, or `damaged` and left alone.
    """

    named: BaseOffset | None
    segments: int
    start: Offset | None = None
    last: BaseOffset | None = None
    next_offset: Offset | None = None
    gaps: tuple[OffsetRange, ...] = ()
    rebuilt: tuple[str, ...] = ()
    set_aside: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Takeover:
    """Takes over the archive of one partition, in whose leader's name it is written."""

    store: RemoteStorage
    layout: ArchiveLayout
    metadata: MetadataEditor
    topic_partition: TopicPartition
    broker_id: BrokerId
    leader_epoch: LeaderEpoch
    local: LocalLog

    def run(self, named: BaseOffset | None) -> TakeoverReport:
        """Everything but the watermark. `named` is the segment that Pinterest's watermark names,
        None where there is no watermark.

        Raises:
            OperatorNeededError: what is stored is the archive of another log.
            DivergedError: it reaches beyond this broker's log, or contradicts it in a part that may
                not be set aside.
            StorageError: as the port says.
        """
        whole, damaged = scan(self.store, self.layout, self.topic_partition)
        spans = {
            s.base_offset: Span(
                s.base_offset, s.next_offset, self.local.holds(s.base_offset, s.tail)
            )
            for s in whole
        }
        decision = decide(spans.values(), named, self.local.start)
        self._check(spans.values(), decision)
        taken = {span.base for span in decision.taken}
        foreign = {span.base for span in decision.foreign}
        rebuilt = [key for s in whole if s.base_offset in taken for key in self._complete(s)]
        aside = [key for s in whole if s.base_offset in foreign for key in self._set_aside(s)]
        for gap in decision.gaps:
            write_gap(
                self.store,
                self.layout,
                self.topic_partition,
                gap,
                self.broker_id,
                self.leader_epoch,
            )
        good = [s for s in whole if s.base_offset not in foreign]
        self.metadata.rewrite(self.topic_partition, lambda known: repaired(known, good, taken))
        return TakeoverReport(
            named=named,
            segments=len(decision.taken),
            start=Offset(decision.taken[0].base) if decision.taken else None,
            last=decision.taken[-1].base if decision.taken else None,
            next_offset=decision.next_offset,
            gaps=decision.gaps,
            rebuilt=tuple(rebuilt),
            set_aside=tuple(aside),
            damaged=tuple(damaged),
        )

    def _check(self, spans: Iterable[Span], decision: Decision) -> None:
        where = self.layout.partition_prefix(self.topic_partition)
        if is_of_another_log(spans):
            raise OperatorNeededError(
                f"{where}: Pinterest's uploader stored the records of another log under this name: "
                f"none of its segments that {self.local.directory} could hold is the same there "
                f"(the topic was deleted and created again?); {_REMEDY}"
            )
        end, reached = self.local.end(), max((span.end for span in spans), default=0)
        if end is not None and end < reached:
            raise DivergedError(
                f"{where}: Pinterest's archive reaches {reached}, but the log in "
                f"{self.local.directory} ends at {end}: it stored what was never committed, or an "
                "unclean election has lost it; nothing is written before the log has come so far; "
                f"{_REMEDY}"
            )
        if decision.foreign and self.local.doubt is not None:
            raise DivergedError(
                f"{where}: Pinterest's segment {decision.foreign[0].base} is not the one in "
                f"{self.local.directory}; nothing is moved: {self.local.doubt}"
            )

    def _complete(self, segment: PinterestSegment) -> list[str]:
        """Store the indexes that are missing; returns their keys."""
        if not segment.missing:
            return []
        indexes = rebuilt_indexes(self.store, segment.log)
        data = {FileKind.INDEX: indexes.index, FileKind.TIMEINDEX: indexes.timeindex}
        return [self._put(segment.base_offset, kind, data[kind]) for kind in segment.missing]

    def _put(self, base: BaseOffset, kind: FileKind, data: bytes) -> str:
        key = self.layout.object_key(self.topic_partition, base, kind)
        checksum = Checksum(ChecksumAlgorithm.CRC64NVME, crc64nvme(data).to_bytes(8))
        known = self.store.capabilities.checksum in {None, ChecksumAlgorithm.CRC64NVME}
        with contextlib.suppress(PreconditionFailedError):  # there is one now
            self.store.put_object(
                key, BytesBody(data), checksum=checksum if known else None, condition=IfAbsent()
            )
        return key

    def _set_aside(self, segment: PinterestSegment) -> list[str]:
        """Copy a segment that is not of this log below our own root, and remove it; `.log` first,
        for a reader counts on nothing without it. Returns the keys of the copies.

        The folder is named after the versions of the files: another try finds its own copies there,
        and a later take-over does not overwrite what this one has moved.
        """
        versions = " ".join(segment.files[kind].etag for kind in sorted(segment.files))
        folder = f"peer/{crc64nvme(versions.encode()):016x}/"
        target = self.layout.quarantine_prefix(self.topic_partition) + folder
        copies = []
        for kind, row in sorted(segment.files.items(), key=lambda item: item[0] != FileKind.LOG):
            copy = target + segment_file_name(segment.base_offset, kind)
            with contextlib.suppress(ObjectNotFoundError, PreconditionFailedError):
                with contextlib.suppress(PreconditionFailedError):  # copied by an earlier try
                    self.store.copy_object(row.key, copy, condition=IfAbsent())
                self.store.delete_object(row.key, condition=IfMatch(row.etag))
                copies.append(copy)
        return copies


def repaired(
    known: PartitionMetadata, whole: Sequence[PinterestSegment], taken: Iterable[int]
) -> PartitionMetadata:
    """`_metadata` with an entry for each segment that is taken, and for none that is not there.

    What a reader could read so far keeps its entry, also above our watermark. An entry that was
    missing gets the time of the one after it, or else that of the upload: at or after the segment's
    own, so that a reader that seeks by time begins too early at worst.
    """
    taken = set(taken)
    readable = {s.base_offset for s in whole if not s.missing or s.base_offset in taken}
    entries = [entry for entry in known.entries if entry.base_offset in readable]
    listed = {entry.base_offset for entry in entries}
    for segment in sorted(whole, key=lambda s: s.base_offset, reverse=True):
        base = segment.base_offset
        if base in taken and base not in listed:
            later = [entry.timestamp for entry in entries if entry.base_offset > base]
            time = min([segment.log.modified_ms, *later])
            entries.append(TimeIndexEntry(time, base))
    return known.with_entries(entries)

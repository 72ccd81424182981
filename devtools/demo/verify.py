"""Check of the demo: compare each archived record, read from the `.log`s, with the ledger."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from devtools.demo.records import combined, digest
from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.segments.errors import ObjectNotFoundError, SegmentError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, TopicPartition
from sidetier.segments.records import read_records
from sidetier.storage.port import RemoteStorage


@dataclass(frozen=True, slots=True)
class PartitionProof:
    """Result of one partition.

    Attributes:
        expected: Number of acknowledged records that must be stored: those below the archive end,
            and those that the broker has deleted.
        found: Number of expected offsets that are stored.
        watermark: Base offset of the last archived segment; None without `offset.wm`.
        next_offset: Archive end offset.
        segments: Base offsets of the archived segments.
        size: Bytes of their `.log` files.
    """

    topic_partition: TopicPartition
    produced: int
    expected: int
    found: int
    watermark: int | None
    next_offset: int
    log_start: int
    log_end: int
    segments: tuple[int, ...]
    size: int
    checksum_produced: str
    checksum_stored: str
    problems: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether no record is missing, different or added."""
        return not self.problems and self.checksum_produced == self.checksum_stored

    @property
    def lag(self) -> int:
        """Number of offsets on the broker that are not archived yet."""
        return max(0, self.log_end - self.next_offset)

    @property
    def deleted_segments(self) -> int:
        """Number of archived segments that the broker has deleted."""
        return sum(base < self.log_start for base in self.segments)


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """Start and end of the broker's own copy; `end` is exclusive."""

    start: int
    end: int


def prove(
    store: RemoteStorage,
    layout: ArchiveLayout,
    tp: TopicPartition,
    produced: Mapping[int, bytes],
    bounds: LogOffsets,
) -> PartitionProof:
    """Compare one partition's archive with what was produced, record by record.

    `produced` has the `digest` of each acknowledged record by its offset. `bounds` is what the
    broker still has: everything that it has deleted must be stored.
    """
    stored = StoredPartition(store, layout, tp)
    mark = stored.end()
    watermark = mark.watermark.base_offset if mark.watermark else None
    next_offset = mark.next_offset or 0
    bases = (
        []
        if watermark is None
        else [segment.base_offset for segment in stored.logs(end=watermark + 1)]
    )
    end = max(next_offset, bounds.start)
    reading = _read(store, layout, tp, bases)
    expected = {offset: record_digest for offset, record_digest in produced.items() if offset < end}
    problems = [mark.problem] if mark.problem else []
    problems += [*reading.problems, *_differences(expected, reading.digests)]
    return PartitionProof(
        topic_partition=tp,
        produced=len(produced),
        expected=len(expected),
        found=len(expected.keys() & reading.digests.keys()),
        watermark=watermark,
        next_offset=next_offset,
        log_start=bounds.start,
        log_end=bounds.end,
        segments=tuple(bases),
        size=reading.size,
        checksum_produced=combined(expected[offset] for offset in sorted(expected)),
        checksum_stored=combined(reading.digests[offset] for offset in sorted(reading.digests)),
        problems=tuple(problems),
    )


@dataclass(frozen=True, slots=True)
class _Reading:
    digests: dict[int, bytes]
    size: int
    problems: list[str]


def _read(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition, bases: Sequence[BaseOffset]
) -> _Reading:
    digests: dict[int, bytes] = {}
    size, problems = 0, []
    for base in bases:
        key = layout.object_key(tp, base, FileKind.LOG)
        try:
            data = store.get_object(key).data
            size += len(data)
            for record in read_records(data, key):
                if record.offset in digests:
                    problems.append(f"{key}: offset {record.offset} is stored twice")
                if not record.control:
                    digests[record.offset] = digest(record.offset, record.key, record.value)
        except (SegmentError, ObjectNotFoundError) as error:
            problems.append(str(error))
    return _Reading(digests, size, problems)


def _differences(expected: Mapping[int, bytes], stored: Mapping[int, bytes]) -> list[str]:
    missing = sorted(expected.keys() - stored.keys())
    foreign = sorted(stored.keys() - expected.keys())
    other = sorted(o for o in expected.keys() & stored.keys() if expected[o] != stored[o])
    offsets_by_kind = (("missing", missing), ("different", other), ("never produced", foreign))
    return [
        f"{len(offsets)} records {kind}, the first at offset {offsets[0]}"
        for kind, offsets in offsets_by_kind
        if offsets
    ]

"""Rebuild what can be rebuilt from stored `.log` objects, while sidecars may be running.

Only indexes, `_metadata` and `leader-epoch-checkpoint` of committed segments are written, each with
the condition that it has not changed since it was read, and markers of encrypted segments, which
are empty. No `.log` and no `offset.wm` is written. A kill leaves each object old or new; a second
run finds what is left.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from sidetier.archive.access import ArchiveAccess, require_fencing
from sidetier.archive.inventory.contents import Inventory
from sidetier.archive.inventory.stored_partition import StoredPartition, is_same_archive
from sidetier.archive.objects.leader_epochs import StoredEpochHistory, write_epoch_history
from sidetier.archive.objects.pinterest_metadata import (
    PartitionMetadata,
    decode_metadata,
    encode_metadata,
)
from sidetier.archive.objects.segment import SegmentFiles, rebuilt_indexes
from sidetier.archive.objects.watermark import Watermark
from sidetier.archive.topics import select_partitions
from sidetier.archive.verify.findings import Finding, FindingKind, Severity, Unread
from sidetier.archive.verify.light import read_partition
from sidetier.archive.verify.run import Verification, VerifyRequest
from sidetier.config.storage import StorageConfig
from sidetier.segments.crc import crc64nvme
from sidetier.segments.epoch_history import (
    NO_EPOCHS,
    EpochHistory,
    checksum_below,
    encode_runs,
    parse_runs,
)
from sidetier.segments.errors import (
    ArchiveConflictError,
    ArchiveError,
    ChecksumMismatchError,
    MalformedObjectError,
    ObjectNotFoundError,
    PreconditionFailedError,
    SidetierError,
)
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.notes import CHECKSUM_KEY, TOPIC_ID_KEY
from sidetier.segments.offsets import BaseOffset, LeaderEpoch, Offset, TopicPartition
from sidetier.segments.walker import BatchWalker
from sidetier.storage.bodies import BytesBody
from sidetier.storage.encrypted_format import marker_key, stored_size
from sidetier.storage.port import (
    Checksum,
    ChecksumAlgorithm,
    IfMatch,
    ObjectSummary,
    PutOptions,
    RemoteStorage,
    unchanged,
)
from sidetier.uploader.archive.epoch_history_file import noted_epoch_history

_TRIES: Final = 5
_CHUNK_BYTES: Final = 1 << 20

_INDEXES: Final = {
    FindingKind.MISSING_INDEX: FileKind.INDEX,
    FindingKind.DAMAGED_INDEX: FileKind.INDEX,
    FindingKind.MISSING_TIMEINDEX: FileKind.TIMEINDEX,
    FindingKind.DAMAGED_TIMEINDEX: FileKind.TIMEINDEX,
}
_METADATA: Final = frozenset(
    {
        FindingKind.MISSING_METADATA,
        FindingKind.DAMAGED_METADATA,
        FindingKind.UNLISTED_SEGMENT,
    }
)
_EPOCHS: Final = frozenset(
    {FindingKind.MISSING_EPOCHS, FindingKind.DAMAGED_EPOCHS, FindingKind.WRONG_EPOCHS}
)
REPAIRABLE: Final = frozenset({FindingKind.MISSING_MARKER, *_INDEXES, *_METADATA, *_EPOCHS})
"""Kinds of findings whose objects are rebuilt."""


@dataclass(frozen=True, slots=True)
class Repair:
    """An object that is rebuilt.

    Attributes:
        topic_partition: The partition.
        key: The object.
        segment: The segment of a marker or an index; None for an object of the whole partition.
        kind: The kind of index; None for another object.
    """

    topic_partition: TopicPartition
    key: str
    segment: SegmentFiles | None = None
    kind: FileKind | None = None


class UnrepairableError(ArchiveError):
    """The stored segments do not determine the object."""


def planned_repairs(
    inventory: Inventory, findings: Iterable[Finding], layout: ArchiveLayout
) -> list[Repair]:
    """Return what to rebuild: markers, indexes, `_metadata` and leader epochs, in this order. Pure.

    Args:
        inventory: The partition, as it was read.
        findings: The findings about it. Those that cannot be repaired are ignored.
        layout: How keys are made.
    """
    mark = inventory.watermark
    if mark is None or mark.watermark.pending is not None:
        return []  # nothing is committed, or segments are moving
    tp, kinds = inventory.topic_partition, set()
    segments = {segment.base_offset: segment for segment in inventory.members}
    of_segments: dict[str, Repair] = {}
    for finding in findings:
        kinds.add(finding.kind)
        start = None if finding.offsets is None else BaseOffset(finding.offsets.start)
        segment = None if start is None else segments.get(start)
        if segment is not None and FileKind.LOG in segment.files:
            repair = _repair_of_segment(finding, segment, layout)
            if repair is not None:
                of_segments[repair.key] = repair
    # Markers first: an index is rebuilt from the whole `.log`, and a marker has its size.
    repairs = sorted(of_segments.values(), key=lambda repair: repair.kind is not None)
    if kinds & _METADATA:
        repairs.append(Repair(tp, layout.metadata_key(tp)))
    if kinds & _EPOCHS:
        repairs.append(Repair(tp, layout.epoch_checkpoint_key(tp)))
    return repairs


def _repair_of_segment(
    finding: Finding, segment: SegmentFiles, layout: ArchiveLayout
) -> Repair | None:
    tp = finding.topic_partition
    if finding.kind is FindingKind.MISSING_MARKER:
        return Repair(tp, finding.key, segment)
    kind = _INDEXES.get(finding.kind)
    if kind is None:
        return None
    return Repair(tp, layout.object_key(tp, segment.base_offset, kind), segment, kind)


class Repairer:
    """Carries out the repairs of one partition.

    Args:
        stored: The partition.
        inventory: Its contents, as they were read, for `planned_repairs`.
    """

    def __init__(self, stored: StoredPartition, inventory: Inventory) -> None:
        self._stored = stored
        self._store, self._layout, self._tp = stored.store, stored.layout, stored.tp
        self._inventory = inventory
        self._sizes: dict[str, int] = {}
        """Size of each `.log` whose marker was missing when the partition was listed."""

    def run(self, repair: Repair) -> str:
        """Rebuild an object, and return what was written, in words.

        Raises:
            UnrepairableError: The stored segments do not determine the object.
            ArchiveConflictError: Another process has changed the object or its segment meanwhile.
            SegmentError: The `.log` is damaged.
        """
        if repair.segment is not None:
            if repair.kind is None:
                return self._marker(repair.key, repair.segment.log)
            return self._index(repair.key, repair.segment, repair.kind)
        if repair.key == self._layout.metadata_key(self._tp):
            return self._metadata(repair.key)
        return self._epochs(repair.key)

    def _marker(self, key: str, log: ObjectSummary) -> str:
        head = self._store.head_object(log.key)
        if head.etag != log.etag or key != marker_key(log.key, stored_size(head.size)):
            raise ArchiveConflictError(f"{log.key} was replaced meanwhile; repeat the command")
        # No condition: a marker has no contents, only its name counts.
        self._store.put_object(key, BytesBody(b""))
        self._sizes[log.key] = head.size
        return f"marker of an encrypted segment of {head.size} bytes"

    def _index(self, key: str, segment: SegmentFiles, kind: FileKind) -> str:
        log = segment.log
        log = replace(log, size=self._sizes.get(log.key, log.size))
        rebuilt = rebuilt_indexes(self._store, log)
        data = rebuilt.index if kind is FileKind.INDEX else rebuilt.timeindex
        head = self._store.head_object(log.key)
        if head.etag != log.etag:
            raise ArchiveConflictError(
                f"{log.key} was replaced while it was read; repeat the command"
            )
        checksum = crc64nvme(data)
        topic_id = head.metadata.get(TOPIC_ID_KEY)
        notes = {CHECKSUM_KEY: f"{checksum:016x}"}
        if topic_id is not None:
            notes[TOPIC_ID_KEY] = topic_id
        # Without a writer's epoch in the metadata, a sidecar that finds this object without its
        # `.log`, after a quarantine at the same moment, replaces it.
        stored = segment.files.get(kind)
        try:
            self._store.put_object(
                key,
                BytesBody(data),
                PutOptions(
                    metadata=notes,
                    checksum=Checksum(ChecksumAlgorithm.CRC64NVME, checksum.to_bytes(8, "big")),
                    condition=unchanged(None if stored is None else stored.etag),
                ),
            )
        except PreconditionFailedError:
            raise ArchiveConflictError(
                f"{key} was written by another process meanwhile; repeat the command"
            ) from None
        return f"{len(data)} bytes from {log.key}"

    def _metadata(self, key: str) -> str:
        """Add the committed segments that have no entry; entries that are there stay."""
        for _ in range(_TRIES):
            known, etag = self._stored_metadata(key)
            # After `_metadata` was read: a process that moves or deletes segments writes
            # `offset.wm` first and `_metadata` later. So the condition of the put covers the time
            # from here on.
            self._expect_same_archive()
            if not known.entries:
                self._refuse_overlaps()
            added = [
                (segment.base_offset, segment.log.modified_ms) for segment in self._inventory.logs
            ]
            metadata = known.with_segments(added)
            new = len(metadata.entries) - len(known.entries)
            if not new:
                return "another process has added the entries"
            try:
                body = BytesBody(encode_metadata(metadata))
                self._store.put_object(key, body, PutOptions(condition=unchanged(etag)))
            except PreconditionFailedError:
                continue
            return f"{new} entries added, {len(metadata.entries)} in total"
        raise ArchiveConflictError(f"{key} was changed by others {_TRIES} times in a row")

    def _expect_same_archive(self) -> None:
        """Raise ArchiveConflictError if the archive has changed otherwise than by commits: it may
        have lost segments (a quarantine, `sidetier gc`), which must not get entries again.
        """
        now = self._stored.watermark()
        if now is None or not is_same_archive(self._watermark, now.watermark):
            key = self._layout.watermark_key(self._tp)
            raise ArchiveConflictError(
                f"{key} was changed meanwhile (by another leader's sidecar, a quarantine or "
                "`sidetier gc`); repeat the command"
            )

    def _stored_metadata(self, key: str) -> tuple[PartitionMetadata, str | None]:
        try:
            stored = self._store.get_object(key)
        except ObjectNotFoundError:
            return PartitionMetadata(self._tp), None
        except ChecksumMismatchError:  # the adapter has compared the bytes
            return PartitionMetadata(self._tp), self._store.head_object(key).etag
        try:
            return decode_metadata(stored.data, key), stored.head.etag
        except MalformedObjectError:
            return PartitionMetadata(self._tp), stored.head.etag

    def _refuse_overlaps(self) -> None:
        """Raise if two segments overlap: without entries, the orphan among them is unknown."""
        logs = self._inventory.logs
        unknown = [log for log in logs if log.base_offset not in self._inventory.noted]
        noted = self._stored.heads(unknown, self._inventory.topic_id)
        known = self._inventory.with_noted(noted)
        for segment, following in pairwise(logs):
            end = known.end_of(segment.base_offset)
            if end is not None and end > following.base_offset:
                raise UnrepairableError(
                    f"{segment.log.key} ends at {end}, and overlaps {following.log.key}: without "
                    "_metadata nothing tells which of them belongs to the archive; restore "
                    "_metadata from an earlier version of the bucket"
                )

    def _epochs(self, key: str) -> str:
        mark = self._watermark
        stored = self._inventory.epochs
        if stored is None:  # it does not parse
            stored = StoredEpochHistory(NO_EPOCHS, self._store.head_object(key).etag)
        rebuilt = noted_epoch_history(
            self._store, self._layout, self._tp, mark, stored.epoch_history
        )
        if not self._is_right(rebuilt):
            batches = self._epochs_of_batches()
            rebuilt = batches if self._is_right(batches) or not rebuilt.entries else rebuilt
        if not rebuilt.entries:
            raise UnrepairableError(f"{key}: no stored batch has a leader epoch")
        try:
            write_epoch_history(self._store, key, rebuilt, stored.etag)
        except PreconditionFailedError:
            raise ArchiveConflictError(
                f"{key} was written by another process meanwhile; repeat the command"
            ) from None
        text = f"leader epochs {encode_runs(rebuilt.entries)}"
        if not self._is_right(rebuilt):
            text += (
                "; offset.wm was written with others, such as those of records in a gap or of "
                "deleted segments: verify reports wrong_epochs until the leader's sidecar has read "
                "the archive again, as after a restart, and has committed a segment"
            )
        return text

    @property
    def _watermark(self) -> Watermark:
        if self._inventory.watermark is None:
            raise UnrepairableError(f"{self._tp} has no offset.wm: nothing is committed")
        return self._inventory.watermark.watermark

    def _is_right(self, epochs: EpochHistory) -> bool:
        mark = self._watermark
        if mark.epoch_history is None or mark.next_offset is None:
            return bool(epochs.entries)
        return checksum_below(epochs, mark.next_offset) == mark.epoch_history

    def _epochs_of_batches(self) -> EpochHistory:
        """Read the leader epoch of each batch: all bytes of the archive."""
        runs: list[tuple[LeaderEpoch, Offset]] = []
        for segment in self._inventory.members:
            for epoch, start in _runs(self._store, segment):
                if not runs or epoch > runs[-1][0]:
                    runs.append((epoch, start))
        # A round trip through the text form gives an empty history if the runs do not ascend.
        return parse_runs(encode_runs(runs))


def _runs(store: RemoteStorage, segment: SegmentFiles) -> Iterator[tuple[LeaderEpoch, Offset]]:
    walker = BatchWalker(segment.log.key, checksum=False)
    condition = IfMatch(segment.log.etag)
    with store.get_object_input_stream(segment.log.key, condition=condition) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            walker.feed(memoryview(chunk))
    yield from walker.finish().epochs


@dataclass(frozen=True, slots=True)
class RepairOutcome:
    """The outcome of a repair: what was written, or why nothing was."""

    repair: Repair
    written: str | None = None
    problem: str | None = None


def carry_out(
    repairer: Repairer, repairs: Sequence[Repair], done: Callable[[RepairOutcome], None]
) -> None:
    """Carry out repairs one after the other; an error concerns one object only."""
    for repair in repairs:
        try:
            outcome = RepairOutcome(repair, written=repairer.run(repair))
        except (SidetierError, OSError) as error:
            outcome = RepairOutcome(repair, problem=str(error))
        done(outcome)


@dataclass(frozen=True, slots=True)
class RepairRequest:
    """What is verified and repaired.

    Attributes:
        topics: Regular expressions that match whole topic names; empty for all topics.
        partitions: Partition numbers; empty for all.
        deep: Read every segment first, to find indexes whose entries are wrong.
        heads: Read the metadata of every segment first, to find lost markers of encrypted segments.
        dry_run: Write nothing.
    """

    topics: tuple[str, ...] = ()
    partitions: frozenset[int] = frozenset()
    deep: bool = False
    heads: bool = False
    dry_run: bool = False


@dataclass(slots=True)
class RepairReport:
    """The rebuilt objects, or with `dry_run` those that would be rebuilt, and what is left.

    Attributes:
        outcomes: The rebuilt objects.
        left: Findings of severity error or warning that a repair does not resolve.
        unread: What could not be read.
        dry_run: Whether nothing was written.
    """

    dry_run: bool
    outcomes: list[RepairOutcome] = field(default_factory=list)
    left: list[Finding] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether nothing is left to repair."""
        is_done = all(outcome.written is not None for outcome in self.outcomes)
        return is_done and not (self.left or self.unread)


def repair(archive: ArchiveAccess, storage: StorageConfig, request: RepairRequest) -> RepairReport:
    """Verify the selected partitions, and repair them one after the other.

    Raises:
        ConfigurationError: As `select_partitions`, or a store has no conditional writes.
        StorageError: The partitions could not be listed. Later errors are in the report.
    """
    report = RepairReport(request.dry_run)
    chosen = select_partitions(archive, request.topics, request.partitions)
    for topic in {tp.topic for tp in chosen}:
        require_fencing(storage, archive.store(topic), archive.url(topic))
    verified = Verification(archive, VerifyRequest(deep=request.deep, heads=request.heads)).run(
        chosen
    )
    report.unread = list(verified.unread.values())
    by_partition: dict[TopicPartition, list[Finding]] = {}
    for finding in verified.findings():
        by_partition.setdefault(finding.topic_partition, []).append(finding)
    for tp, findings in by_partition.items():
        _repair_partition(archive, tp, findings, report)
    return report


def _repair_partition(
    archive: ArchiveAccess, tp: TopicPartition, findings: list[Finding], report: RepairReport
) -> None:
    accepted = {FindingKind.RECORDED_GAP}
    report.left += [
        finding
        for finding in findings
        if finding.severity is not Severity.INFO and finding.kind not in REPAIRABLE | accepted
    ]
    if not any(finding.kind in REPAIRABLE for finding in findings):
        return
    stored = archive.partition(tp)
    try:
        # Again: the verification took time, and a sidecar may have written since.
        inventory, _ = read_partition(stored)
    except SidetierError as error:
        report.unread.append(Unread(tp, stored.prefix, str(error)))
        return
    repairs = planned_repairs(inventory, findings, stored.layout)
    if report.dry_run:
        report.outcomes += [RepairOutcome(repair) for repair in repairs]
        return
    carry_out(Repairer(stored, inventory), repairs, report.outcomes.append)

"""Check every byte of one stored segment, in bounded memory.

Each file is read in the version that was listed. If it has changed meanwhile, as by a quarantine,
`SegmentMovedError` is raised, and the caller reads the archive again.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from sidetier.archive.objects.log_check import mismatches
from sidetier.archive.objects.notes import (
    noted_epoch,
    noted_next_offset,
    noted_number,
    noted_records,
)
from sidetier.archive.objects.segment import SegmentFiles
from sidetier.archive.verify.findings import Finding, FindingKind
from sidetier.archive.verify.light import kind_of
from sidetier.segments.crc import crc32c, crc64nvme
from sidetier.segments.epoch_history import EpochHistory, encode_runs
from sidetier.segments.errors import (
    ChecksumMismatchError,
    DamagedSegmentError,
    EncryptionError,
    EncryptionKeyError,
    ObjectNotFoundError,
    PreconditionFailedError,
    SegmentError,
    UnsupportedFormatError,
)
from sidetier.segments.indexes import WHOLE_ENTRIES_BYTES
from sidetier.segments.names import FileKind
from sidetier.segments.notes import (
    CHECKSUM_KEY,
    EPOCHS_KEY,
    LEADER_EPOCH_KEY,
    MAX_TIMESTAMP_KEY,
    MISSING,
    NONE,
    NOTE_KEYS,
    RECORDS_KEY,
)
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition
from sidetier.segments.producer_snapshot import check_snapshot
from sidetier.segments.txn_index import WHOLE_ABORTED_TXNS_BYTES, read_txn_index
from sidetier.segments.walker import BatchWalker, SegmentFacts
from sidetier.storage.encrypted_format import missing_marker
from sidetier.storage.port import (
    ChecksumAlgorithm,
    IfMatch,
    ObjectHead,
    ObjectSummary,
    RemoteStorage,
    StoredObject,
)
from sidetier.storage.ranges import read_into
from sidetier.storage.settings import AttemptDeadline

CHUNK_BYTES: Final = 8 << 20
"""Memory of a thread for the bytes of a segment, and size of one ranged read."""

_INDEXES: Final[tuple[FileKind, ...]] = (FileKind.INDEX, FileKind.TIMEINDEX)
_MISSING_OPTIONAL: Final = {
    FileKind.TXNINDEX: FindingKind.MISSING_TXNINDEX,
    FileKind.SNAPSHOT: FindingKind.MISSING_SNAPSHOT,
}
_DAMAGED: Final = {
    FileKind.INDEX: FindingKind.DAMAGED_INDEX,
    FileKind.TIMEINDEX: FindingKind.DAMAGED_TIMEINDEX,
    FileKind.TXNINDEX: FindingKind.DAMAGED_TXNINDEX,
    FileKind.SNAPSHOT: FindingKind.DAMAGED_SNAPSHOT,
}


class SegmentMovedError(Exception):
    """An object of the segment was deleted or replaced since it was listed."""


@dataclass(frozen=True, slots=True)
class CheckedSegment:
    """The result of a check.

    Attributes:
        findings: What is wrong.
        next_offset: End of the segment: from the metadata of its `.log`, or else from its batches;
            None if neither has it.
        size: Bytes that were read.
    """

    findings: tuple[Finding, ...]
    next_offset: Offset | None
    size: int


class _Sums:
    """Checksums of the bytes of one object, for comparison with the store's."""

    def __init__(self, head: ObjectHead) -> None:
        self._head = head
        self._crc64 = self._crc32c = 0
        self._expected = expected = head.own_checksum or head.checksum
        self._needs_crc32c = expected is not None and expected.algorithm is ChecksumAlgorithm.CRC32C

    def update(self, data: memoryview) -> None:
        """Add the next bytes."""
        self._crc64 = crc64nvme(data, self._crc64)
        if self._needs_crc32c:
            self._crc32c = crc32c(data, self._crc32c)

    @property
    def crc64nvme_text(self) -> str:
        """CRC64NVME in 16 hexadecimal digits."""
        return f"{self._crc64:016x}"

    def difference(self) -> str | None:
        """Describe the checksum that the bytes do not have; None if they have all of them."""
        expected = self._expected
        if expected is not None:
            actual = (
                self._crc32c.to_bytes(4, "big")
                if self._needs_crc32c
                else self._crc64.to_bytes(8, "big")
            )
            if actual != expected.value:
                return (
                    f"the {expected.algorithm} of the bytes is {actual.hex()}, that of the store "
                    f"is {expected.value.hex()}"
                )
        noted = self._head.metadata.get(CHECKSUM_KEY)
        if noted is not None and noted != self.crc64nvme_text:
            return (
                f"the CRC64NVME of the bytes is {self.crc64nvme_text}, that of the upload in the "
                f"metadata is {noted}"
            )
        return None


class SegmentChecker:
    """Reads and checks segments of one store. Thread-safe: each thread has one chunk of memory.

    Args:
        store: The store.
        before_read: Bandwidth cap, called with the number of bytes before each read.
        deadline: Time limit of one ranged read.
    """

    def __init__(
        self,
        store: RemoteStorage,
        before_read: Callable[[int], None] = lambda _: None,
        deadline: AttemptDeadline | None = None,
    ) -> None:
        self._store = store
        self._before_read = before_read
        self._deadline = deadline
        self._local = threading.local()

    def check(
        self,
        tp: TopicPartition,
        segment: SegmentFiles,
        epochs: EpochHistory | None,
        topic_id: str | None = None,
    ) -> CheckedSegment:
        """Read all files of a segment, and compare them with each other and with their checksums.

        Args:
            tp: The partition.
            segment: The segment, as it was listed. It has a `.log`.
            epochs: The stored leader epochs of the partition; None to not compare them.
            topic_id: Kafka's id of the archive's topic; None if it is not known.

        Raises:
            SegmentMovedError: An object was deleted or replaced since it was listed.
        """
        try:
            return _Check(self, tp, segment, epochs, topic_id).run()
        except (ObjectNotFoundError, PreconditionFailedError) as error:
            raise SegmentMovedError(str(error)) from None

    def head(self, row: ObjectSummary) -> ObjectHead:
        """Return the head of a listed version.

        Raises:
            SegmentMovedError: The object has another version now.
        """
        head = self._store.head_object(row.key, with_checksum=True)
        if head.etag != row.etag:
            raise SegmentMovedError(f"{row.key} was replaced since it was listed")
        return head

    def small_object(self, row: ObjectSummary) -> StoredObject:
        """Return a listed version with its head, in one request. An index has up to 10 MiB.

        Raises:
            SegmentMovedError: The object has another version now.
            ChecksumMismatchError: The store's adapter has compared the checksum itself.
        """
        self._before_read(row.size)
        stored = self._store.get_object(row.key)
        if stored.head.etag != row.etag:
            raise SegmentMovedError(f"{row.key} was replaced since it was listed")
        return stored

    def chunks(self, row: ObjectSummary, piece: int = CHUNK_BYTES) -> Iterator[memoryview]:
        """Yield the bytes of a listed version. Each piece is valid until the next one."""
        buffer = self._buffer()
        position = 0
        while position < row.size:
            wanted = min(piece, row.size - position)
            self._before_read(wanted)
            part = buffer[:wanted]
            count = read_into(
                self._store,
                row.key,
                position,
                part,
                condition=IfMatch(row.etag),
                deadline=self._deadline,
            )
            if count == 0:
                return
            yield part[:count]
            position += count

    def _buffer(self) -> memoryview:
        buffer: memoryview | None = getattr(self._local, "buffer", None)
        if buffer is None:
            buffer = self._local.buffer = memoryview(bytearray(CHUNK_BYTES))
        return buffer


class _Check:
    """The check of one segment."""

    def __init__(
        self,
        checker: SegmentChecker,
        tp: TopicPartition,
        segment: SegmentFiles,
        epochs: EpochHistory | None,
        topic_id: str | None,
    ) -> None:
        self._topic_id = topic_id
        self._checker = checker
        self._tp = tp
        self._segment = segment
        self._epochs = epochs
        self._findings: list[Finding] = []
        self._size = 0
        self._end: Offset | None = None

    def run(self) -> CheckedSegment:
        """Check all files."""
        log = self._segment.log
        head = self._checker.head(log)
        self._end = noted_next_offset(head)
        for found in mismatches(head, self._topic_id):
            self._add(kind_of(found), log.key, found.text)
        marker = missing_marker(log.key, log.size, head.size)
        if marker is not None:
            self._add(
                FindingKind.MISSING_MARKER, marker, f"{log.key} is listed with {log.size} bytes"
            )
            log = replace(log, size=head.size)
        kinds = (kind for kind in _INDEXES if kind in self._segment.files)
        indexes = {kind: self._small(kind) for kind in kinds}
        facts = self._walk(log, head, indexes)
        if facts is not None:
            self._compare(log, head, facts)
        self._optional(head)
        return CheckedSegment(tuple(self._findings), self._end, self._size)

    def _add(self, kind: FindingKind, key: str, detail: str) -> None:
        base = self._segment.base_offset
        end = self._end if self._end is not None else Offset(base + 1)
        offsets = OffsetRange(Offset(base), end)
        self._findings.append(Finding(kind, self._tp, key, offsets, detail))

    def _small(self, kind: FileKind) -> bytes | None:
        """Read and sum up a small file. Return None, after a finding, if its bytes are wrong."""
        row = self._segment.files[kind]
        if row.size == 0:
            return b""  # it fits every segment
        try:
            stored = self._checker.small_object(row)
        except ChecksumMismatchError as error:  # some adapters compare the checksum themselves
            self._add(_DAMAGED[kind], row.key, str(error))
            return None
        sums = _Sums(stored.head)
        sums.update(memoryview(stored.data))
        self._size += len(stored.data)
        difference = sums.difference()
        if difference is not None:
            self._add(_DAMAGED[kind], row.key, difference)
            return None
        return stored.data

    def _walk(
        self, log: ObjectSummary, head: ObjectHead, indexes: Mapping[FileKind, bytes | None]
    ) -> SegmentFacts | None:
        """Check every batch, and the index entries on the way. Return None if a batch is wrong."""
        index, time_index = (_pieces(indexes.get(kind)) for kind in _INDEXES)
        walker = BatchWalker(log.key, index=index, time_index=time_index, checksum=False)
        damage = self._feed(walker, log, head)
        if damage is None:
            try:
                return walker.finish()
            except (DamagedSegmentError, UnsupportedFormatError) as error:
                damage = str(error)
        self._add(FindingKind.DAMAGED_LOG, log.key, damage)
        return None

    def _feed(self, walker: BatchWalker, log: ObjectSummary, head: ObjectHead) -> str | None:
        """Read the `.log`, sum it up, and feed the walker. Return the error of the walker."""
        sums, size = _Sums(head), 0
        damage: str | None = None
        try:
            for chunk in self._checker.chunks(log):
                size += len(chunk)
                sums.update(chunk)
                if damage is None:
                    try:
                        walker.feed(chunk)
                    except (DamagedSegmentError, UnsupportedFormatError) as error:
                        damage = str(error)  # the rest is still read, for the checksum
        except EncryptionKeyError:
            raise  # it proves nothing about the segment
        except EncryptionError as error:
            self._size += size
            return str(error)
        self._size += size
        difference = sums.difference()
        if size != log.size:
            difference = f"{size} of {log.size} bytes could be read"
        if difference is not None:
            self._add(FindingKind.CHECKSUM_MISMATCH, log.key, difference)
        return damage

    def _compare(self, log: ObjectSummary, head: ObjectHead, facts: SegmentFacts) -> None:
        """Compare the batches with the metadata of the `.log`, the indexes and the epochs."""
        if facts.next_offset is None:
            self._add(FindingKind.EMPTY_LOG, log.key, "it has no record batch")
            return
        self._compare_end(log, head, facts.next_offset)
        wrong = list(_wrong_notes(head, facts))
        if wrong:
            self._add(FindingKind.WRONG_OBJECT_METADATA, log.key, "; ".join(wrong))
        for kind, fits in (
            (FileKind.INDEX, facts.index_fits),
            (FileKind.TIMEINDEX, facts.time_index_fits),
        ):
            if fits is False:
                key = self._segment.files[kind].key
                self._add(_DAMAGED[kind], key, f"its entries do not fit the batches of {log.key}")
        if self._epochs is not None:
            problem = self._epochs.violation(facts.epochs, facts.next_offset)
            if problem is not None:
                self._add(FindingKind.WRONG_EPOCHS, log.key, problem)

    def _compare_end(self, log: ObjectSummary, head: ObjectHead, end: Offset) -> None:
        noted = self._end
        if noted is None:
            self._end = end  # a segment of Pinterest's uploader
        # After compaction, a segment may end below the next one. Then its records are not counted.
        elif noted < end or (noted > end and RECORDS_KEY in head.metadata):
            detail = f"the metadata has next offset {noted}, but the last batch ends at {end}"
            self._add(FindingKind.WRONG_NEXT_OFFSET, log.key, detail)

    def _optional(self, head: ObjectHead) -> None:
        """Check the files that the metadata of the `.log` names, against the checksum there."""
        for kind, note in NOTE_KEYS.items():
            expected = head.metadata.get(note)
            row = self._segment.files.get(kind)
            if expected in {None, NONE, MISSING}:
                continue  # readers ignore a file that the `.log` does not name
            if row is None:
                key = head.key.removesuffix(FileKind.LOG.value) + kind.value
                self._add(_MISSING_OPTIONAL[kind], key, f"its CRC64NVME was {expected}")
                continue
            data = self._small(kind)
            if data is None:
                continue
            actual = f"{crc64nvme(data):016x}"
            problem = _problem_of(kind, data)
            if actual != expected:
                problem = f"its CRC64NVME is {actual}, that in the metadata of the .log {expected}"
            if problem is not None:
                self._add(_DAMAGED[kind], row.key, problem)


def _problem_of(kind: FileKind, data: bytes) -> str | None:
    try:
        if kind is FileKind.SNAPSHOT:
            check_snapshot([data])
        else:
            for _ in read_txn_index(_cut(data, WHOLE_ABORTED_TXNS_BYTES)):
                pass
    except SegmentError as error:
        return str(error)
    return None


def _pieces(data: bytes | None) -> Iterator[bytes] | None:
    return None if data is None else _cut(data, WHOLE_ENTRIES_BYTES)


def _cut(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def _wrong_notes(head: ObjectHead, facts: SegmentFacts) -> Iterator[str]:
    """Describe each value in the metadata of a `.log` that differs from its batches."""
    timestamp = head.metadata.get(MAX_TIMESTAMP_KEY)
    if timestamp is not None and timestamp != str(facts.max_timestamp):
        yield (
            f"the metadata has largest timestamp {timestamp}, the batches have "
            f"{facts.max_timestamp}"
        )
    if LEADER_EPOCH_KEY in head.metadata:
        epoch = noted_epoch(head, LEADER_EPOCH_KEY)
        if epoch != facts.last_leader_epoch:
            yield (
                f"the metadata has leader epoch {epoch}, the last batch has "
                f"{facts.last_leader_epoch}"
            )
    runs = head.metadata.get(EPOCHS_KEY)
    if runs is not None and runs != encode_runs(facts.epochs):
        yield (
            f"the metadata has leader epochs {runs}, the batches have {encode_runs(facts.epochs)}"
        )
    records = noted_number(head, RECORDS_KEY)
    if records is not None and noted_records(head) != facts.plain_records:
        yield f"the metadata has {records} records, the batches have {facts.plain_records}"

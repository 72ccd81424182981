"""Check right before a trim that the store has every record that would be deleted.

The sidecar's own knowledge of the archive may be outdated, and `offset.wm` does not show
objects that a lifecycle rule or a person has deleted since. So each check asks the store again:

1. `offset.wm` is of this topic, and no move is pending.
2. The archived leader epochs equal the epochs of the broker's log.
3. The segments that `_metadata` names follow each other without a gap.
4. Each `.log` ends where the next one begins, and its metadata fits the log. The store's own
   checksum of it is the one of the upload: the checksum in the metadata alone proves nothing,
   because a program that replaces an object may keep its metadata. A store without a checksum of
   its own has to return the bytes: this sidecar computes their checksum. The first batch of the
   object is the one of the log's segment, so no other segment is stored in its place.
5. The listing has these versions of the segments, with all of their files, and the version of
   `offset.wm` of step 1.

A trim also ends at the last stable offset of the archive, which the log's producer snapshots show:
otherwise a transaction could have its beginning in the archive alone and its end on the broker
alone.

The listing comes last, because every change of an archive other than a commit begins with a write
of `offset.wm`: if it has not changed until then, neither have the objects that were read before. A
nonce in `offset.wm` gives each write another etag, and `RemoteStorage` promises that a listing
includes a write as soon as the write has returned. So step 1 takes the version that the sidecar
knows, without a request; only if step 5 finds another one is `offset.wm` read, and the check made
again.

Nothing is written.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.archive.objects.leader_epochs import StoredEpochHistory
from sidetier.archive.objects.log_check import mismatch
from sidetier.archive.objects.notes import noted_epoch, noted_next_offset
from sidetier.archive.objects.segment import SegmentFiles
from sidetier.archive.objects.watermark import (
    Watermark,
    is_noted,
    only_start_moved,
)
from sidetier.segments.epoch_history import EpochHistory, continues, contradiction, parse_runs
from sidetier.segments.errors import (
    ChecksumMismatchError,
    EncryptionError,
    ObjectNotFoundError,
    PreconditionFailedError,
    SegmentError,
)
from sidetier.segments.headers import HEADER_BYTES, parse_batch_header
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.notes import CHECKSUM_KEY, EPOCHS_KEY, LEADER_EPOCH_KEY, TOPIC_ID_KEY
from sidetier.segments.offsets import (
    UNKNOWN_EPOCH,
    BaseOffset,
    LeaderEpoch,
    Offset,
    OffsetRange,
    TopicPartition,
)
from sidetier.storage.checksums import RunningChecksum, is_replaced
from sidetier.storage.port import (
    ChecksumAlgorithm,
    IfMatch,
    ObjectHead,
    RemoteStorage,
)
from sidetier.uploader.gates.remembered_epochs import RememberedEpochs
from sidetier.uploader.trim.decision import (
    Held,
    Hindrance,
    LocalSegment,
    Trim,
    bounded_by_archive,
    bounded_by_transactions,
)
from sidetier.uploader.trim.local_log import first_header, stable_end

_CHUNK_BYTES: Final = 1 << 20
_MAX_SEGMENTS: Final = 1000
"""Segments of a partition that one check covers; a longer trim continues in the next pass."""


@dataclass(frozen=True, slots=True)
class LedPartition:
    """A partition that the broker leads, and what the sidecar knows of its archive.

    Attributes:
        topic_partition: The partition.
        directory: Its directory.
        leader_epoch: Leader epoch in which the broker leads.
        topic_id: Kafka's topic id; None where it is not known.
        generation: Changes when the sidecar has to read the archive again.
        etag: Etag of the version of `offset.wm` that counts; None if any version does.
        archived_to: The archive end offset; None where it is not known.
        epochs: The leader epochs of the log.
        stored_epochs: The stored leader epochs; None where they are not known.
        held: Why nothing must be trimmed; None if it may.
        watermark: The known `offset.wm`; None where only `etag` is known.
        trimmed_to: Log start offset that the last trim has set; None without one.
    """

    topic_partition: TopicPartition
    directory: str
    leader_epoch: LeaderEpoch
    topic_id: str | None
    generation: int = 0
    etag: str | None = None
    archived_to: Offset | None = None
    epochs: RememberedEpochs | None = None
    stored_epochs: StoredEpochHistory | None = None
    held: Held | None = None
    watermark: Watermark | None = None
    trimmed_to: Offset | None = None

    def local_epochs(self) -> EpochHistory:
        """Read the leader epochs of the log. Raises as `RememberedEpochs.read`."""
        return (self.epochs or RememberedEpochs()).read(self.directory)


class VerifiedLog(NamedTuple):
    """A `.log` object that was checked: its etag, its size in bytes, and its end offset."""

    etag: str
    size: int
    end: Offset


VerifiedLogs = MutableMapping[tuple[str, LeaderEpoch], VerifiedLog]
"""The checked `.log` objects, by key and the leader epoch of the check."""


@dataclass(frozen=True, slots=True)
class ArchiveCheck:
    """Checks archives on one store.

    Attributes:
        store: The store.
        layout: The keys on it.
        verified: The `.log` objects that were checked before: each is checked once. The listing
            shows that the same version is still stored.
        before_read: Called with the number of bytes before each read of an object.
    """

    store: RemoteStorage
    layout: ArchiveLayout
    verified: VerifiedLogs
    before_read: Callable[[int], None] = lambda _: None

    def bound(self, led: LedPartition, trim: Trim) -> Trim:
        """Return the part of a trim whose records the store is proven to have.

        Raises:
            StorageError: The store does not answer.
            MalformedObjectError: An object of the archive does not parse.
            SegmentError: The leader epochs of the log cannot be read.
        """
        key = self.layout.watermark_key(led.topic_partition)
        if led.watermark is not None and led.etag is not None:
            bounded, is_current = self._bound(led, trim, led.watermark, led.etag)
            if is_current:
                return bounded
        # `sidetier gc` may have moved the start since.
        mark = self._stored(led.topic_partition).watermark()
        if mark is None:
            return trim.none(Held(Hindrance.ARCHIVE_CHANGED, f"{key} is not stored"))
        bounded, is_current = self._bound(led, trim, mark.watermark, mark.etag)
        if is_current or bounded.end == bounded.start:
            return bounded
        return trim.none(Held(Hindrance.ARCHIVE_CHANGED, f"{key} was written while it was checked"))

    def _bound(
        self, led: LedPartition, trim: Trim, watermark: Watermark, etag: str
    ) -> tuple[Trim, bool]:
        """Return what a version of `offset.wm` allows, and whether it is still the stored one.

        False also where there is nothing to trim before the store was asked for it.
        """
        key = self.layout.watermark_key(led.topic_partition)
        held = watermark_hindrance(key, watermark, etag, led)
        if held is not None or watermark.next_offset is None:
            reason = held or Held(Hindrance.ARCHIVE_CHANGED, f"{key} has no end offset")
            return trim.none(reason), False
        trim = bounded_by_archive(trim, watermark.next_offset)
        if trim.end == trim.start:
            return trim, False
        stable = stable_end(led.directory, trim.segments, watermark.next_offset)
        trim = bounded_by_transactions(trim, stable)
        if trim.end == trim.start:
            return trim, False
        local = led.local_epochs()
        stored = self._stored_epochs(led, watermark, local)
        gaps = self._stored(led.topic_partition).gaps
        held = epochs_hindrance(watermark, stored, local, trim.end, gaps)
        if held is not None:
            return trim.none(held), False
        trim, listed_etag = self._bounded_by_segments(led, trim, watermark, local)
        return trim, listed_etag == etag

    def _stored(self, tp: TopicPartition) -> StoredPartition:
        return StoredPartition(self.store, self.layout, tp)

    def _stored_epochs(
        self, led: LedPartition, watermark: Watermark, local: EpochHistory
    ) -> EpochHistory:
        # `offset.wm` has the checksum of the epochs that belong to it. It saves a request if the
        # known ones have it, or the log's.
        known = local if led.stored_epochs is None else led.stored_epochs.epoch_history
        if watermark.epoch_history is not None and is_noted(watermark, known):
            return known
        return self._stored(led.topic_partition).epochs().epoch_history

    def _bounded_by_segments(
        self, led: LedPartition, trim: Trim, watermark: Watermark, local: EpochHistory
    ) -> tuple[Trim, str | None]:
        """Return the trim up to the first segment that does not count, and `offset.wm`'s etag now.

        The etag is None if `offset.wm` is missing, or was not looked for.
        """
        stored = self._stored(led.topic_partition)
        # A stored segment that `_metadata` does not name may be one that the cluster has discarded.
        bases = sorted(base for base in stored.names() if base <= watermark.base_offset)
        first = bisect_right(bases, trim.first_deleted) - 1
        if first < 0:
            text = "_metadata names no segment"
            if bases:
                text = (
                    f"the log begins at offset {trim.first_deleted}, and the archive at "
                    f"{bases[0]}: the records in between are not on the store (never archived, or "
                    "deleted by `sidetier gc`), and stay until retention.ms"
                )
            return trim.none(Held(Hindrance.ARCHIVE_BEHIND, text)), None
        wanted = [base for base in bases[first : first + _MAX_SEGMENTS] if base < trim.end]
        position, held = trim.first_deleted, None
        checked: list[tuple[BaseOffset, VerifiedLog]] = []
        ends = dict(zip(bases, [*bases[1:], watermark.next_offset], strict=True))
        for base in wanted:
            if base > position:
                held = Held(
                    Hindrance.ARCHIVE_BEHIND,
                    f"the archive has a gap: no stored segment has offset {position}",
                )
                break
            answer = self._check(led, base, Offset(ends[base] or base), trim.segments, local)
            if isinstance(answer, Held):
                held = answer
                break
            checked.append((base, answer))
            position = max(position, answer.end)
        rows, etag = stored.segments_then_etag(wanted[0], wanted[-1])
        position = trim.first_deleted
        for base, log in checked:
            problem = self._missing(led, base, log, rows.get(base))
            if problem is not None:
                held = problem
                break
            position = max(position, log.end)
        # `held` is None only if all of `wanted` was checked.
        trim = trim.up_to(
            position,
            held
            or Held(Hindrance.ARCHIVE_BEHIND, f"the stored segments below {position} were checked"),
        )
        return trim, etag

    def _missing(
        self, led: LedPartition, base: BaseOffset, log: VerifiedLog, files: SegmentFiles | None
    ) -> Held | None:
        """Return why a checked segment does not count, from its rows in the listing."""
        key = self.layout.object_key(led.topic_partition, base, FileKind.LOG)
        if files is None or files.missing:
            return Held(Hindrance.OBJECT_MISSING, f"{key} is not stored with its indexes")
        if (files.log.etag, files.log.size) != (log.etag, log.size):
            self.verified.pop((key, led.leader_epoch), None)
            return Held(Hindrance.OBJECT_UNVERIFIED, f"{key}: it was replaced since it was checked")
        return None

    def _check(
        self,
        led: LedPartition,
        base: BaseOffset,
        following: Offset,
        segments: Iterable[LocalSegment],
        local: EpochHistory,
    ) -> VerifiedLog | Held:
        """Return what was checked of a stored `.log`, or why it does not count.

        Args:
            led: The partition.
            base: Base offset of the `.log`, from its key.
            following: Base offset of the next stored segment; the archive end offset for the last.
            segments: The segments of the log.
            local: The leader epochs of the log.
        """
        key = self.layout.object_key(led.topic_partition, base, FileKind.LOG)
        known = self.verified.get((key, led.leader_epoch))
        if known is not None:
            return known
        try:
            head = self.store.head_object(key, with_checksum=True)
            end = noted_next_offset(head)
            problem = (
                "it was stored by Pinterest's uploader, without a checksum"
                if end is None
                else place_problem(base, end, following)
                or mismatch(head)
                or segment_problem(head, led.topic_id, local)
                or size_problem(segments, base, end, head.size)
                or checksum_problem(head)
                or self._bytes_problem(led, base, following, segments, local, head)
            )
        except ObjectNotFoundError:
            return Held(Hindrance.OBJECT_MISSING, f"{key} is not stored")
        except (EncryptionError, ChecksumMismatchError, PreconditionFailedError) as error:
            # Of this object alone: the segments before it can be trimmed.
            return Held(Hindrance.OBJECT_UNVERIFIED, str(error))
        if problem is not None or end is None:
            text = str(problem).removeprefix(f"{key} ")
            return Held(Hindrance.OBJECT_UNVERIFIED, f"{key}: {text}")
        log = VerifiedLog(head.etag, head.size, end)
        self.verified[key, led.leader_epoch] = log
        return log

    def _bytes_problem(
        self,
        led: LedPartition,
        base: BaseOffset,
        following: Offset,
        segments: Iterable[LocalSegment],
        local: EpochHistory,
        head: ObjectHead,
    ) -> str | None:
        """Return why the bytes of a stored `.log` are not the log's; None if they are.

        The first batch is always read. The rest is read if the store has no checksum of its own.
        """
        is_proven = has_own_checksum(head)
        running = RunningChecksum(ChecksumAlgorithm.CRC64NVME)
        limit, condition = HEADER_BYTES if is_proven else None, IfMatch(head.etag)
        with self.store.get_object_input_stream(head.key, 0, limit, condition=condition) as stream:
            first = b""
            while len(first) < HEADER_BYTES and (more := stream.read(HEADER_BYTES - len(first))):
                first += more
            running.update(first)
            while not is_proven:
                self.before_read(_CHUNK_BYTES)
                if not (chunk := stream.read(_CHUNK_BYTES)):
                    break
                running.update(chunk)
        if not is_proven and running.result().value.hex() != head.metadata[CHECKSUM_KEY]:
            return "its bytes do not have the checksum of the upload"
        if any(segment.base_offset == base for segment in segments):
            is_same = first == first_header(led.directory, base)
            return None if is_same else "its first batch is not the one of the log's segment"
        return batch_problem(first, OffsetRange(Offset(base), following), local)


def watermark_hindrance(
    key: str, watermark: Watermark, etag: str, led: LedPartition
) -> Held | None:
    """Return why an `offset.wm` that was just read does not allow a trim; None where it does."""
    if watermark.next_offset is None:
        text = f"{key} is of Pinterest's uploader: the archive is not taken over yet"
    elif watermark.pending is not None:
        text = f"a part of the archive is being moved to {watermark.pending}"
    elif led.etag not in {None, etag} and not _has_only_start_moved(led, watermark):
        text = f"{key} was written since this sidecar has read it"
    elif led.topic_id is None or watermark.topic_id != led.topic_id:
        text = f"{key} has topic id {watermark.topic_id}, and the log has {led.topic_id}"
    elif watermark.leader_epoch > led.leader_epoch:
        text = (
            f"{key} was written in leader epoch {watermark.leader_epoch}, and this broker leads "
            f"in {led.leader_epoch}"
        )
    else:
        return None
    return Held(Hindrance.ARCHIVE_CHANGED, text)


def _has_only_start_moved(led: LedPartition, watermark: Watermark) -> bool:
    # The sidecar learns with its next commit that `sidetier gc` has moved the start. For a topic
    # with few records, that may be days away.
    return led.watermark is not None and only_start_moved(led.watermark, watermark)


def epochs_hindrance(
    watermark: Watermark,
    stored: EpochHistory,
    local: EpochHistory,
    end: Offset,
    gaps: Callable[[], Sequence[OffsetRange]] = tuple,
) -> Held | None:
    """Return why the archive is not known to have the log's history below `end`; None if it is.

    Args:
        watermark: The content of `offset.wm`.
        stored: The stored leader epochs.
        local: The leader epochs of the log.
        end: The end of the trim.
        gaps: Returns the recorded gaps, in which nothing is stored. Called only for a conflict.
    """
    archived_to = watermark.next_offset or Offset(0)
    if not is_noted(watermark, stored):
        text = "the stored leader epochs are not those that offset.wm was written with"
    elif (
        contradiction(stored, local, archived_to) is not None
        and (conflict := contradiction(stored, local, archived_to, gaps())) is not None
    ):
        text = (
            f"offset {conflict.offset} is of leader epoch {conflict.archived} in the archive and "
            f"of {conflict.local} in the log"
        )
    elif not continues(stored.up_to(archived_to), local, end):
        text = (
            f"offset {end - 1} is of leader epoch {stored.epoch_at(end - 1)} in the archive and of "
            f"{local.epoch_at(end - 1)} in the log"
        )
    else:
        return None
    return Held(Hindrance.EPOCHS_DIFFER, text)


def place_problem(base: BaseOffset, end: Offset, following: Offset) -> str | None:
    """Return why a segment does not fit before the base offset `following`; None if it does.

    `end` is exclusive, and comes from the segment's metadata.
    """
    if base < end <= following:
        return None
    return (
        f"it ends at offset {end} by its metadata, and offsets {base} to {following} belong here: "
        "another segment is stored in its place"
    )


def batch_problem(first: bytes, place: OffsetRange, local: EpochHistory) -> str | None:
    """Return why the first batch of a stored segment is not the log's; None if it is.

    Args:
        first: The first bytes of the object.
        place: The offsets that belong to the segment.
        local: The leader epochs of the log.
    """
    try:
        batch = parse_batch_header(first)
    except SegmentError as error:
        return f"it does not begin with a record batch: {error}"
    if not place.start <= batch.base_offset < place.end:
        return f"its first batch has offset {batch.base_offset}"
    epoch = local.epoch_at(batch.base_offset)  # None below the log start offset
    if epoch is not None and epoch != batch.leader_epoch:
        return (
            f"its first batch is of leader epoch {batch.leader_epoch}, and the log has {epoch} at "
            f"offset {batch.base_offset}"
        )
    return None


def checksum_problem(head: ObjectHead) -> str | None:
    """Return why the store's own checksum is not the one of the upload; None if it is, or if the
    store has none.
    """
    noted, own = head.metadata.get(CHECKSUM_KEY), head.own_checksum
    if noted is None:
        return "its metadata has no checksum of the upload"
    if own is None:
        return None
    is_comparable = own.algorithm is ChecksumAlgorithm.CRC64NVME
    if is_replaced(head) or (is_comparable and own.value.hex() != noted):
        return f"the store's own checksum is {own.value.hex()}, and not the one of the upload"
    return None


def has_own_checksum(head: ObjectHead) -> bool:
    """Return whether the store's own checksum can be compared with one of the upload."""
    own, noted = head.own_checksum, head.checksum
    if own is None:
        return False
    if own.algorithm is ChecksumAlgorithm.CRC64NVME:
        return True
    return noted is not None and noted.algorithm is own.algorithm


def segment_problem(head: ObjectHead, topic_id: str | None, local: EpochHistory) -> str | None:
    """Return why a stored segment is not known to be the log's; None if it is."""
    stored_id = head.metadata.get(TOPIC_ID_KEY)
    if stored_id != topic_id:
        return f"it has topic id {stored_id}, and the log has {topic_id}"
    end = noted_next_offset(head)
    runs = parse_runs(head.metadata.get(EPOCHS_KEY, "")).entries
    if not runs:
        epoch = noted_epoch(head, LEADER_EPOCH_KEY)
        if epoch == UNKNOWN_EPOCH or end is None:
            return "its metadata has no leader epoch"
        runs = ((epoch, Offset(end - 1)),)
    return local.violation(runs, end)


def size_problem(
    segments: Iterable[LocalSegment], base: BaseOffset, end: Offset, size: int
) -> str | None:
    """Return how the sizes of a stored and the same local segment differ."""
    for segment in segments:
        if (segment.base_offset, segment.end) == (base, end) and segment.size != size:
            return f"it has {size} bytes, and the log's segment {segment.size}"
    return None

"""Check right before a trim that the store has every record that would be deleted.

The sidecar's own knowledge of the archive may be outdated, and `offset.wm` says nothing about
objects that a lifecycle rule or a person has deleted since. So each check asks the store again:

1. `offset.wm` is of this topic, and no move is pending.
2. The archived leader epochs are those of the broker's log.
3. The segments that `_metadata` names follow each other without a gap.
4. Each `.log` has the checksum that the store compared when it was uploaded, and its metadata fits
   the log. A store that compares no checksum has to return the bytes: this sidecar compares them.
5. The listing has these versions of the segments, with all of their files, and the version of
   `offset.wm` of step 1. One listing serves many small partitions.

The listing comes last, because every change of an archive other than a commit begins with a write
of `offset.wm`: if it has not changed until then, neither have the objects that were read before. A
nonce in `offset.wm` gives each write another etag. So step 1 takes the version that the sidecar
knows, without a request; only if step 5 finds another one is `offset.wm` read, and the check made
again.

Nothing is written.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from sidetier.archive.objects.gaps import recorded_gaps
from sidetier.archive.objects.leader_epochs import StoredEpochHistory, read_epoch_history
from sidetier.archive.objects.pinterest_metadata import named_segments
from sidetier.archive.objects.segment import (
    SegmentFiles,
    noted_epoch,
    noted_next_offset,
    segment_files,
)
from sidetier.archive.objects.watermark import (
    Watermark,
    is_noted,
    only_start_moved,
    read_watermark,
)
from sidetier.segments.epoch_history import EpochHistory, continues, contradiction, parse_runs
from sidetier.segments.errors import ObjectNotFoundError
from sidetier.segments.keys import ArchiveLayout, parse_object_key
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
from sidetier.storage.checksums import RunningChecksum
from sidetier.storage.port import (
    LISTED_AT_ONCE,
    ChecksumAlgorithm,
    IfMatch,
    ObjectHead,
    ObjectSummary,
    RemoteStorage,
)
from sidetier.uploader.gates.remembered_epochs import RememberedEpochs
from sidetier.uploader.trim.decision import Held, Hindrance, LocalSegment, Trim, bounded_by_archive

_CHUNK_BYTES: Final = 1 << 20
_MOST_SEGMENTS: Final = 1000
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
class CheckedSegments:
    """Segments that were checked but for the listing, which has to come last.

    Attributes:
        led: The partition.
        asked: The trim to be bounded.
        trim: The trim up to the archive end offset.
        etag: Etag of the version of `offset.wm` that was checked.
        bases: Base offsets of the segments that the trim needs, ascending; at least one.
        logs: The checked `.log`s of the first of these segments.
        held: Why the segments behind them do not count; None if all were checked.
    """

    led: LedPartition
    asked: Trim
    trim: Trim
    etag: str
    bases: Sequence[BaseOffset]
    logs: Sequence[VerifiedLog]
    held: Held | None


class Listed(NamedTuple):
    """The files of some segments in a listing, and the etag of `offset.wm`; None if it is
    missing.
    """

    files: Mapping[BaseOffset, SegmentFiles]
    etag: str | None


@dataclass(frozen=True, slots=True)
class ArchiveCheck:
    """Checks archives on one store.

    A check has two parts, `check` and `conclude`, so that one listing can serve many partitions
    (`SharedListing`).

    Attributes:
        store: The store.
        layout: The keys on it.
        verified: The `.log` objects that were checked before: each is checked once. The listing
            shows that the same version is still stored.
    """

    store: RemoteStorage
    layout: ArchiveLayout
    verified: VerifiedLogs

    def check(self, led: LedPartition, trim: Trim) -> Trim | CheckedSegments:
        """Make the steps before the listing.

        Returns:
            The trim that the store is proven to have the records of, if it needs no listing.

        Raises:
            StorageError: The store does not answer.
            MalformedObjectError: An object of the archive does not parse.
            SegmentError: The leader epochs of the log cannot be read.
        """
        if led.watermark is not None and led.etag is not None:
            checked = self._check_version(led, trim, led.watermark, led.etag)
            if isinstance(checked, CheckedSegments):
                return checked
        return self._check_again(led, trim)

    def conclude(self, checked: CheckedSegments, listed: Listed) -> Trim:
        """Return the part of the trim whose records the store is proven to have.

        Args:
            checked: The result of `check`.
            listed: From a listing that began after `check` had returned.

        Raises:
            SidetierError: As `check`, if `offset.wm` has been written since.
        """
        bounded = self._bounded_by_listing(checked, listed)
        if listed.etag == checked.etag:
            return bounded
        return self._check_again(checked.led, checked.asked)

    def _check_again(self, led: LedPartition, trim: Trim) -> Trim:
        """Make all steps with `offset.wm` as it is now: `sidetier gc` may have moved the start."""
        key = self.layout.watermark_key(led.topic_partition)
        mark = read_watermark(self.store, key)
        if mark is None:
            return trim.none(Held(Hindrance.ARCHIVE_CHANGED, f"{key} is not stored"))
        checked = self._check_version(led, trim, mark.watermark, mark.etag)
        if isinstance(checked, Trim):
            return checked
        listed = self.listed(checked)
        bounded = self._bounded_by_listing(checked, listed)
        if listed.etag == checked.etag or bounded.end == bounded.start:
            return bounded
        return trim.none(Held(Hindrance.ARCHIVE_CHANGED, f"{key} was written while it was checked"))

    def _check_version(
        self, led: LedPartition, asked: Trim, watermark: Watermark, etag: str
    ) -> Trim | CheckedSegments:
        """Check against a version of `offset.wm`; return a trim if nothing is to be trimmed."""
        key = self.layout.watermark_key(led.topic_partition)
        held = watermark_hindrance(key, watermark, etag, led)
        if held is not None or watermark.next_offset is None:
            reason = held or Held(Hindrance.ARCHIVE_CHANGED, f"{key} has no end offset")
            return asked.none(reason)
        trim = bounded_by_archive(asked, watermark.next_offset)
        if trim.end == trim.start:
            return trim
        local = led.local_epochs()
        stored = self._stored_epochs(led, watermark, local)
        held = epochs_hindrance(
            watermark, stored, local, trim.end, lambda: self._gaps(led.topic_partition)
        )
        if held is not None:
            return trim.none(held)
        bases = self._needed_segments(led.topic_partition, trim, watermark)
        if isinstance(bases, Held):
            return trim.none(bases)
        logs, held = self._check_segments(led, bases, trim, local)
        return CheckedSegments(led, asked, trim, etag, bases, logs, held)

    def _etag_of(self, key: str) -> str | None:
        try:
            return self.store.head_object(key).etag
        except ObjectNotFoundError:
            return None

    def _gaps(self, tp: TopicPartition) -> Sequence[OffsetRange]:
        return recorded_gaps(self.store, self.layout, [tp])[tp]

    def _stored_epochs(
        self, led: LedPartition, watermark: Watermark, local: EpochHistory
    ) -> EpochHistory:
        # `offset.wm` has the checksum of the epochs that belong to it. It saves a request if the
        # known ones have it, or those of the log.
        known = local if led.stored_epochs is None else led.stored_epochs.epoch_history
        if watermark.epoch_history is not None and is_noted(watermark, known):
            return known
        return read_epoch_history(self.store, self.layout, led.topic_partition).epoch_history

    def _needed_segments(
        self, tp: TopicPartition, trim: Trim, watermark: Watermark
    ) -> Sequence[BaseOffset] | Held:
        """Return the base offsets of the stored segments that a trim needs: at least one."""
        key = self.layout.metadata_key(tp)
        # A stored segment that `_metadata` does not name may be one that the cluster has discarded.
        bases = sorted(
            base for base in named_segments(self.store, key) if base <= watermark.base_offset
        )
        first = bisect_right(bases, trim.first_deleted) - 1
        if first < 0:
            text = "_metadata names no segment"
            if bases:
                text = (
                    f"the log begins at offset {trim.first_deleted}, and the archive at "
                    f"{bases[0]}: the records in between are not on the store (never archived, or "
                    "deleted by `sidetier gc`), and stay until retention.ms"
                )
            return Held(Hindrance.ARCHIVE_BEHIND, text)
        return [base for base in bases[first : first + _MOST_SEGMENTS] if base < trim.end]

    def _check_segments(
        self, led: LedPartition, bases: Sequence[BaseOffset], trim: Trim, local: EpochHistory
    ) -> tuple[Sequence[VerifiedLog], Held | None]:
        """Return the `.log`s up to the first that does not count, and why it does not."""
        position = trim.first_deleted
        logs: list[VerifiedLog] = []
        for base in bases:
            if base > position:
                text = f"the archive has a gap: no stored segment has offset {position}"
                return logs, Held(Hindrance.ARCHIVE_BEHIND, text)
            answer = self._check(led, base, trim.segments, local)
            if isinstance(answer, Held):
                return logs, answer
            logs.append(answer)
            position = max(position, answer.end)
        return logs, None

    def _bounded_by_listing(self, checked: CheckedSegments, listed: Listed) -> Trim:
        """Return the trim up to the first segment that does not count."""
        position, held = checked.trim.first_deleted, checked.held
        for base, log in zip(checked.bases, checked.logs, strict=False):
            problem = self._missing(checked.led, base, log, listed.files.get(base))
            if problem is not None:
                held = problem
                break
            position = max(position, log.end)
        text = f"the stored segments below {position} were checked"
        return checked.trim.up_to(position, held or Held(Hindrance.ARCHIVE_BEHIND, text))

    def listed(self, checked: CheckedSegments) -> Listed:
        """List a partition from its first checked segment on. One request if it has few files."""
        tp, last = checked.led.topic_partition, checked.bases[-1]
        prefix, mark = self.layout.partition_prefix(tp), self.layout.watermark_key(tp)
        listing = self.store.list_objects(prefix, start_after=_just_before(prefix, checked))
        rows: list[ObjectSummary] = []
        etag, is_behind = None, False
        for number, row in enumerate(listing, 1):
            # Keys sort by base offset, and `offset.wm` sorts behind the segments.
            if not is_behind:
                parsed = parse_object_key(row.key, prefix)
                is_behind = parsed is None or parsed[0] > last
            if not is_behind:
                rows.append(row)
            elif row.key == mark:
                etag = row.etag
                break
            elif number % LISTED_AT_ONCE == 0:
                etag = self._etag_of(mark)  # cheaper than the next page
                break
        return Listed(_by_base(rows, prefix), etag)

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
        segments: Iterable[LocalSegment],
        local: EpochHistory,
    ) -> VerifiedLog | Held:
        """Return what was checked of a stored `.log`, or why it does not count."""
        key = self.layout.object_key(led.topic_partition, base, FileKind.LOG)
        known = self.verified.get((key, led.leader_epoch))
        if known is not None:
            return known
        try:
            head = self.store.head_object(key, with_checksum=True)
        except ObjectNotFoundError:
            return Held(Hindrance.OBJECT_MISSING, f"{key} is not stored")
        end = noted_next_offset(head)
        problem = (
            "it was stored by Pinterest's uploader, without a checksum"
            if end is None
            else checksum_problem(head)
            or segment_problem(head, led.topic_id, local)
            or size_problem(segments, base, end, head.size)
            or self._bytes_problem(head)
        )
        if problem is not None or end is None:
            return Held(Hindrance.OBJECT_UNVERIFIED, f"{key}: {problem}")
        log = VerifiedLog(head.etag, head.size, end)
        self.verified[key, led.leader_epoch] = log
        return log

    def _bytes_problem(self, head: ObjectHead) -> str | None:
        """Read an object whose checksum the store has not verified, and compare it; None if equal.

        GCS and Azure only keep the checksum of the upload.
        """
        noted = head.checksum
        if self.store.capabilities.checksum is not None or noted is None:
            return None
        running = RunningChecksum(noted.algorithm)
        condition = IfMatch(head.etag)
        with self.store.get_object_input_stream(head.key, condition=condition) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                running.update(chunk)
        return None if running.result() == noted else "its bytes do not have the uploaded checksum"


class SharedListing:
    """Lists partitions whose keys share a prefix. A page often has the files of several of them.

    Each partition is listed after all of them were checked. If a page has the files of one
    partition only, the others are listed one by one: their own pages are smaller.

    Args:
        archive: The store and its keys.
        prefix: The shared prefix. It ends with a slash.
    """

    def __init__(self, archive: ArchiveCheck, prefix: str) -> None:
        self._archive = archive
        self._prefix = prefix
        self._rows: list[ObjectSummary] = []
        self._keys: list[str] = []
        self._partitions: int | None = None
        """Partitions that the page has served; None before the first page."""

    def of(self, checked: CheckedSegments) -> Listed:
        """Return the files of a partition. Call it in the order of the partitions' prefixes.

        Raises:
            StorageError: The store does not answer. The next partition is listed on its own.
        """
        layout, tp = self._archive.layout, checked.led.topic_partition
        prefix, mark = layout.partition_prefix(tp), layout.watermark_key(tp)
        start = _just_before(prefix, checked)
        if not self._reaches(mark) and self._partitions not in {0, 1}:
            self._partitions = 0
            listing = self._archive.store.list_objects(self._prefix, start_after=start)
            self._rows = list(islice(listing, LISTED_AT_ONCE))
            self._keys = [row.key for row in self._rows]
        if not self._reaches(mark):
            return self._archive.listed(checked)
        self._partitions = (self._partitions or 0) + 1
        keys, at = self._keys, bisect_left(self._keys, mark)
        end = bisect_left(keys, f"{prefix}{checked.bases[-1] + 1:020d}")
        etag = self._rows[at].etag if keys[at] == mark else None
        return Listed(_by_base(self._rows[bisect_right(keys, start) : end], prefix), etag)

    def _reaches(self, key: str) -> bool:
        return bool(self._keys) and self._keys[-1] >= key


def _just_before(prefix: str, checked: CheckedSegments) -> str:
    """Return a text that sorts just before the files of the first checked segment."""
    return f"{prefix}{checked.bases[0]:020d}"


def _by_base(rows: Iterable[ObjectSummary], prefix: str) -> dict[BaseOffset, SegmentFiles]:
    return {files.base_offset: files for files in segment_files(rows, prefix)}


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
        text = f"{key} is of topic id {watermark.topic_id}, and the log of {led.topic_id}"
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


def checksum_problem(head: ObjectHead) -> str | None:
    """Return why the store does not vouch for the bytes of an object; None if it does.

    A store that computes another checksum than CRC64NVME has compared its own at the upload.
    """
    if head.checksum is None:
        return "the store has no checksum of it"
    noted = head.metadata.get(CHECKSUM_KEY)
    if head.checksum.algorithm is not ChecksumAlgorithm.CRC64NVME:
        return None if noted is not None else "its metadata has no checksum of the upload"
    if head.checksum.value.hex() != noted:
        return f"the store's checksum is {head.checksum.value.hex()}, uploaded was {noted}"
    return None


def segment_problem(head: ObjectHead, topic_id: str | None, local: EpochHistory) -> str | None:
    """Return why a stored segment is not known to be the log's; None if it is."""
    stored_id = head.metadata.get(TOPIC_ID_KEY)
    if stored_id != topic_id:
        return f"it is of topic id {stored_id}, and the log of {topic_id}"
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
    """Return how the size of a stored segment differs from that of the same local segment."""
    for segment in segments:
        if (segment.base_offset, segment.end) == (base, end) and segment.size != size:
            return f"it has {size} bytes, and the log's segment {segment.size}"
    return None

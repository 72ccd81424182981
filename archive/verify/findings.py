"""What `sidetier verify` reports: the kinds of findings, with severity, meaning and remedy."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from sidetier.segments.offsets import OffsetRange, TopicPartition


class Severity(StrEnum):
    """How much a finding matters. Findings of severity `info` do not change the exit code."""

    ERROR = "error"
    """Archived records cannot be read, or are not what the broker had."""
    WARNING = "warning"
    """All records can be read, but an object beside them is missing or wrong."""
    INFO = "info"
    """Expected, or accepted by an operator."""


class FindingKind(StrEnum):
    """What is wrong. `KINDS` has severity, meaning and remedy of each kind."""

    MISSING_OFFSETS = "missing_offsets"
    MISSING_LOG = "missing_log"
    EMPTY_LOG = "empty_log"
    DAMAGED_LOG = "damaged_log"
    CHECKSUM_MISMATCH = "checksum_mismatch"
    WRONG_NEXT_OFFSET = "wrong_next_offset"
    WRONG_SIZE = "wrong_size"
    WRONG_PLACE = "wrong_place"
    MISSING_MARKER = "missing_marker"
    MISSING_WATERMARK = "missing_watermark"
    DAMAGED_WATERMARK = "damaged_watermark"
    WRONG_WATERMARK = "wrong_watermark"
    LOCAL_DIFFERENCE = "local_difference"
    MISSING_INDEX = "missing_index"
    MISSING_TIMEINDEX = "missing_timeindex"
    DAMAGED_INDEX = "damaged_index"
    DAMAGED_TIMEINDEX = "damaged_timeindex"
    MISSING_TXNINDEX = "missing_txnindex"
    MISSING_SNAPSHOT = "missing_snapshot"
    DAMAGED_TXNINDEX = "damaged_txnindex"
    DAMAGED_SNAPSHOT = "damaged_snapshot"
    WRONG_OBJECT_METADATA = "wrong_object_metadata"
    MISSING_METADATA = "missing_metadata"
    DAMAGED_METADATA = "damaged_metadata"
    UNLISTED_SEGMENT = "unlisted_segment"
    MISSING_EPOCHS = "missing_epochs"
    DAMAGED_EPOCHS = "damaged_epochs"
    WRONG_EPOCHS = "wrong_epochs"
    UNFINISHED_MOVE = "unfinished_move"
    STALE_WATERMARK = "stale_watermark"
    RECORDED_GAP = "recorded_gap"
    ACKNOWLEDGED_GAP = "acknowledged_gap"
    DELETED_START = "deleted_start"
    ORPHAN_SEGMENT = "orphan_segment"
    NOT_COMMITTED = "not_committed"
    NOT_TAKEN_OVER = "not_taken_over"
    LOCAL_COMPACTED = "local_compacted"


class KindFacts(NamedTuple):
    """Severity, meaning and remedy of a kind of finding. `docs/verify.md` repeats them."""

    severity: Severity
    meaning: str
    remedy: str


_REPAIR: Final = "Run `sidetier repair`."
_REPAIR_AS_FOUND: Final = (
    "Run `sidetier repair`, with `--deep` if `sidetier verify --deep` has found it."
)
_COPY: Final = (
    "Restore the object from another copy: an earlier version of the bucket, a replica of the "
    "bucket, or a broker that still has the segment. If there is none, the records are lost."
)

KINDS: Final[Mapping[FindingKind, KindFacts]] = {
    FindingKind.MISSING_OFFSETS: KindFacts(
        Severity.ERROR,
        "No stored segment has these offsets, and no gap is recorded for them.",
        _COPY,
    ),
    FindingKind.MISSING_LOG: KindFacts(
        Severity.ERROR,
        "Other objects of the archive name this segment, but its `.log` is not stored.",
        _COPY,
    ),
    FindingKind.EMPTY_LOG: KindFacts(
        Severity.ERROR, "The `.log` has no bytes, but a segment has at least one batch.", _COPY
    ),
    FindingKind.DAMAGED_LOG: KindFacts(
        Severity.ERROR,
        "The `.log` does not consist of whole record batches with ascending offsets and a correct "
        "CRC32C.",
        _COPY,
    ),
    FindingKind.CHECKSUM_MISMATCH: KindFacts(
        Severity.ERROR,
        "The bytes that the store returns do not have the checksum that it verified on upload.",
        _COPY,
    ),
    FindingKind.WRONG_NEXT_OFFSET: KindFacts(
        Severity.ERROR,
        "The next offset in the metadata of the `.log` is not the end of its last batch.",
        _COPY,
    ),
    FindingKind.WRONG_SIZE: KindFacts(
        Severity.ERROR,
        "The `.log` has another size than the one in its metadata: it was cut or overwritten after "
        "it was archived. Readers fail where the stored records end.",
        _COPY,
    ),
    FindingKind.WRONG_PLACE: KindFacts(
        Severity.ERROR,
        "The `.log` is another segment: by its metadata, it was archived for another topic, "
        "partition or base offset, and was copied over this one.",
        _COPY,
    ),
    FindingKind.MISSING_MARKER: KindFacts(
        Severity.ERROR,
        "The `.log` is encrypted and its marker is not stored, so listings show the size of the "
        "ciphertext. Readers fail at the end of the segment. All of its records are stored.",
        "Run `sidetier repair --heads`.",
    ),
    FindingKind.MISSING_WATERMARK: KindFacts(
        Severity.ERROR,
        "Segments have been stored for more than an hour, but there is no `offset.wm`, so readers "
        "see no archive.",
        "Restore `offset.wm` from an earlier version of the bucket. Without it, the sidecar of the "
        "leader begins the archive again and adopts the stored segments that follow each other.",
    ),
    FindingKind.DAMAGED_WATERMARK: KindFacts(
        Severity.ERROR,
        "`offset.wm` does not parse, so nothing of the partition can be read.",
        "Restore `offset.wm` from an earlier version of the bucket.",
    ),
    FindingKind.WRONG_WATERMARK: KindFacts(
        Severity.ERROR,
        "`offset.wm` names a segment that is not stored, or its next offset is not the end of the "
        "last segment or of the gap after it.",
        "Restore the missing segment, or `offset.wm` from an earlier version of the bucket.",
    ),
    FindingKind.LOCAL_DIFFERENCE: KindFacts(
        Severity.ERROR,
        "The broker's file of this segment has other bytes than the stored one.",
        "Find out which of them is damaged with `sidetier verify --deep` and Kafka's "
        "`kafka-dump-log.sh --deep-iteration`. After an unclean election, the sidecar moves the "
        "stored segment to quarantine.",
    ),
    FindingKind.MISSING_INDEX: KindFacts(
        Severity.WARNING,
        "The `.index` is not stored. Readers scan the segment, and Pinterest's consumer cannot "
        "read it.",
        _REPAIR,
    ),
    FindingKind.MISSING_TIMEINDEX: KindFacts(
        Severity.WARNING,
        "The `.timeindex` is not stored. Readers scan the segment, and Pinterest's consumer cannot "
        "read it.",
        _REPAIR,
    ),
    FindingKind.DAMAGED_INDEX: KindFacts(
        Severity.WARNING,
        "The `.index` has an incomplete entry, or an entry that does not point at the batch with "
        "its offset.",
        _REPAIR_AS_FOUND,
    ),
    FindingKind.DAMAGED_TIMEINDEX: KindFacts(
        Severity.WARNING,
        "The `.timeindex` has an incomplete entry, or an entry whose timestamp is not the largest "
        "one up to its offset.",
        _REPAIR_AS_FOUND,
    ),
    FindingKind.MISSING_TXNINDEX: KindFacts(
        Severity.WARNING,
        "The metadata of the `.log` names a `.txnindex` that is not stored. Readers with "
        "`read_committed` find aborted transactions by their markers instead.",
        "Restore the object from an earlier version of the bucket.",
    ),
    FindingKind.MISSING_SNAPSHOT: KindFacts(
        Severity.WARNING,
        "The metadata of the `.log` names a `.snapshot` that is not stored. Readers find open "
        "transactions by reading earlier segments instead.",
        "Restore the object from an earlier version of the bucket.",
    ),
    FindingKind.DAMAGED_TXNINDEX: KindFacts(
        Severity.WARNING,
        "The `.txnindex` has other bytes than the uploaded ones.",
        "Restore the object from an earlier version of the bucket.",
    ),
    FindingKind.DAMAGED_SNAPSHOT: KindFacts(
        Severity.WARNING,
        "The `.snapshot` has other bytes than the uploaded ones.",
        "Restore the object from an earlier version of the bucket.",
    ),
    FindingKind.WRONG_OBJECT_METADATA: KindFacts(
        Severity.WARNING,
        "Largest timestamp, leader epoch or number of records in the metadata of the `.log` is not "
        "that of its batches. Searches by time and counts may be wrong.",
        "Report it: the sidecar derives these values from the same bytes.",
    ),
    FindingKind.MISSING_METADATA: KindFacts(
        Severity.WARNING,
        "`_metadata` is not stored. Pinterest's consumer sees no segment.",
        _REPAIR,
    ),
    FindingKind.DAMAGED_METADATA: KindFacts(
        Severity.WARNING,
        "`_metadata` does not parse. Pinterest's consumer sees no segment.",
        _REPAIR,
    ),
    FindingKind.UNLISTED_SEGMENT: KindFacts(
        Severity.WARNING,
        "`_metadata` has no entry for a segment. Pinterest's consumer skips it.",
        _REPAIR,
    ),
    FindingKind.MISSING_EPOCHS: KindFacts(
        Severity.WARNING,
        "`leader-epoch-checkpoint` is not stored, although `offset.wm` was written with one.",
        _REPAIR,
    ),
    FindingKind.DAMAGED_EPOCHS: KindFacts(
        Severity.WARNING, "`leader-epoch-checkpoint` does not parse.", _REPAIR
    ),
    FindingKind.WRONG_EPOCHS: KindFacts(
        Severity.WARNING,
        "Batches have another leader epoch than the stored `leader-epoch-checkpoint`, or the "
        "checkpoint is not the one that `offset.wm` was written with.",
        f"{_REPAIR_AS_FOUND} It rebuilds the checkpoint from the segments.",
    ),
    FindingKind.UNFINISHED_MOVE: KindFacts(
        Severity.WARNING,
        "A move to quarantine or to `retired/` has begun and is not finished.",
        "The sidecar of the leader finishes it, or `sidetier retire` where that began it.",
    ),
    FindingKind.STALE_WATERMARK: KindFacts(
        Severity.WARNING,
        "Segments above the archive end offset have been stored for more than an hour, or for more "
        "than ten minutes with an entry in `_metadata`, and `offset.wm` does not cover them. It is "
        "an earlier version of itself, or no sidecar commits the segments. Readers do not see "
        "their records.",
        "Start the sidecar of the leader: it commits the stored segments that follow the archive "
        "end offset. Without a broker, restore the newest version of `offset.wm`.",
    ),
    FindingKind.RECORDED_GAP: KindFacts(
        Severity.WARNING,
        "The broker deleted these records before they could be archived.",
        "Find the cause (runbook SidetierGapFound), then accept the loss with `sidetier ack-gap`.",
    ),
    FindingKind.ACKNOWLEDGED_GAP: KindFacts(
        Severity.INFO, "A recorded gap that an operator has acknowledged.", "None."
    ),
    FindingKind.DELETED_START: KindFacts(
        Severity.INFO,
        "The oldest segments are no longer stored, as after a lifecycle rule of the bucket.",
        "None, if a retention is configured. Otherwise find out what has deleted them.",
    ),
    FindingKind.ORPHAN_SEGMENT: KindFacts(
        Severity.INFO,
        "A stored segment that is not part of the archive. Readers ignore it.",
        "None. A late request of a former leader's sidecar has stored it, or a `sidetier gc` was "
        "killed before it had deleted it.",
    ),
    FindingKind.NOT_COMMITTED: KindFacts(
        Severity.INFO,
        "New segments above the archive end offset. Readers do not see them yet.",
        "None, while a sidecar uploads.",
    ),
    FindingKind.NOT_TAKEN_OVER: KindFacts(
        Severity.INFO,
        "Pinterest's uploader fills the archive. Its `offset.wm` does not prove where the archive "
        "ends, and its objects have no metadata.",
        "None.",
    ),
    FindingKind.LOCAL_COMPACTED: KindFacts(
        Severity.INFO,
        "The broker's file of this segment is smaller than the stored one and has other bytes, as "
        "after compaction.",
        "None.",
    ),
}
"""Every kind, the most severe first."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A difference between an archive and what must hold.

    Attributes:
        kind: What is wrong.
        topic_partition: The partition.
        key: Key of the object, relative to the store's root.
        offsets: Affected offsets; None if no offset is affected.
        detail: The values that differ, or the error of the check.
    """

    kind: FindingKind
    topic_partition: TopicPartition
    key: str
    offsets: OffsetRange | None = None
    detail: str = ""

    @property
    def severity(self) -> Severity:
        """Severity of the kind."""
        return KINDS[self.kind].severity

    @property
    def remedy(self) -> str:
        """What an operator can do."""
        return KINDS[self.kind].remedy

    def as_json(self) -> dict[str, Any]:
        """Return all fields under stable names."""
        start, end = self.offsets or (None, None)
        return {
            "kind": self.kind.value,
            "severity": self.severity.value,
            "topic": self.topic_partition.topic,
            "partition": self.topic_partition.partition,
            "key": self.key,
            "start_offset": start,
            "end_offset": end,
            "detail": self.detail,
            "remedy": self.remedy,
        }


@dataclass(frozen=True, slots=True)
class Unread:
    """Something that could not be checked, and why.

    Attributes:
        topic_partition: The partition.
        key: Key of the object, or the partition's prefix.
        error: The last error of the store.
    """

    topic_partition: TopicPartition
    key: str
    error: str

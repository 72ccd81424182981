"""Events of a partition, and the actions that follow from them.

`Partition.handle` takes an event and returns actions in the order in which `Effects` carries them
out. Events and actions are values: they do no I/O.
"""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from sidetier.segments.errors import ArchiveConflictError
from sidetier.segments.offsets import BaseOffset, Offset, OffsetRange
from sidetier.uploader.archive.archive_state import ArchiveState
from sidetier.uploader.errors import OperatorNeededError
from sidetier.uploader.gates.committed_range import CommittedRange
from sidetier.uploader.state.plan import PlannedSegment
from sidetier.uploader.state.segment import StoredSegment, Timeline, TrackedSegment
from sidetier.uploader.watching.disk import BatchPosition

if TYPE_CHECKING:
    from sidetier.uploader.archive.takeover import TakeoverReport


class Request(Enum):
    """A request to the store. Each partition makes one at a time."""

    LOAD = "read offset.wm"
    START = "record where the archive starts"
    PREPARE = "list the objects above the archive end offset"
    COMMIT = "write offset.wm"
    GAP = "record a gap"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, with the partition's state when it began: the state may differ when it ends.

    Attributes:
        request: The kind of request.
        generation: The partition's generation when the request began.
        follows: Whether another broker led the partition: a follower acts in the leader's place.
        archive: The archive's last known state; None before the first LOAD.
        stored: The segments over which a COMMIT moves `offset.wm`, by rising base offset.
        gap: The offsets that a GAP records as lost.
    """

    request: Request
    generation: int
    follows: bool
    archive: ArchiveState | None
    stored: tuple[StoredSegment, ...] = ()
    gap: OffsetRange | None = None


# -- events ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestSucceeded:
    """A request has succeeded.

    Attributes:
        asked: The request, as it began.
        archive: The archive after the request.
        takeovers: Archives of Pinterest's uploader that the request has taken over.
    """

    asked: Asked
    archive: ArchiveState
    takeovers: "tuple[TakeoverReport, ...]" = ()


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request has raised an error. It may still have changed the store. `takeovers` lists the
    completed takeovers.
    """

    asked: Asked
    error: Exception
    takeovers: "tuple[TakeoverReport, ...]" = ()


@dataclass(frozen=True, slots=True)
class SituationChanged:
    """The state itself, or what it depends on, has changed: the directory was listed, the leader,
    the high watermark or the topic configuration became known, or a timer is due.
    """


@dataclass(frozen=True, slots=True)
class RequestOvertaken:
    """The request was not made, because it is no longer needed."""


@dataclass(frozen=True, slots=True)
class UploadSucceeded:
    """The segment's objects are on the store. `generation` is the partition's when the upload
    began.
    """

    segment: TrackedSegment
    generation: int
    stored: StoredSegment


@dataclass(frozen=True, slots=True)
class UploadFailed:
    """An upload has raised an error. `unlinked` is True if the broker has unlinked the `.log`."""

    segment: TrackedSegment
    error: Exception
    unlinked: bool


@dataclass(frozen=True, slots=True)
class UploadPutOff:
    """The upload did not begin: the file has changed after the check of its high watermark."""

    segment: TrackedSegment


@dataclass(frozen=True, slots=True)
class ArchiveMoves:
    """A part of the archive, described by `what`, is being moved to quarantine; None at the end."""

    what: str | None


@dataclass(frozen=True, slots=True)
class StoreSilent:
    """A request hangs, and `reason` describes it; None once the store has answered it."""

    reason: str | None


@dataclass(frozen=True, slots=True)
class EarlyFound:
    """A part of the active segment is due to be stored. `generation` is the partition's when its
    broker was asked.
    """

    committed: CommittedRange
    generation: int


@dataclass(frozen=True, slots=True)
class EarlySearched:
    """The search for an early segment has come to a batch at the archive end offset or below.

    `generation` is the partition's when the broker was asked.
    """

    position: BatchPosition
    generation: int


@dataclass(frozen=True, slots=True)
class EarlyFailed:
    """No early segment was found: the log or the broker's answer does not allow it."""

    error: Exception
    generation: int


Event = (
    SituationChanged
    | RequestSucceeded
    | RequestFailed
    | RequestOvertaken
    | UploadSucceeded
    | UploadFailed
    | UploadPutOff
    | ArchiveMoves
    | StoreSilent
    | EarlyFound
    | EarlySearched
    | EarlyFailed
)


# -- actions ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Upload:
    """Queue a committed segment for upload."""

    segment: TrackedSegment
    planned: PlannedSegment


@dataclass(frozen=True, slots=True)
class AskStore:
    """Queue a request to the store."""

    request: Request


@dataclass(frozen=True, slots=True)
class AskBroker:
    """Ask the brokers for the high watermark. The answer also confirms the leader epoch."""


@dataclass(frozen=True, slots=True)
class ScanAt:
    """List the partition's directory again at `when`, in monotonic seconds."""

    when: float


@dataclass(frozen=True, slots=True)
class ReportGapHalt:
    """The partition halts at a gap, because `uploader.on_gap` is `halt`."""

    gap: OffsetRange


@dataclass(frozen=True, slots=True)
class ReportRescue:
    """A follower begins to store in the leader's place.

    Attributes:
        next_offset: The archive's end offset, which has not moved for `still` seconds.
        segments_at_risk: How many segments the broker may delete soon.
        still: Seconds.
    """

    next_offset: Offset
    segments_at_risk: int
    still: float


@dataclass(frozen=True, slots=True)
class Release:
    """Close the segment's files, and remove their names in the spool."""

    segment: TrackedSegment


@dataclass(frozen=True, slots=True)
class ReportTakeover:
    """An archive of Pinterest's uploader was taken over."""

    report: "TakeoverReport"


@dataclass(frozen=True, slots=True)
class ReportCommitted:
    """`offset.wm` has moved over `stored`.

    Attributes:
        stored: By rising base offset.
        timelines: The timelines of the segments that are still tracked.
        rescued: Whether a follower moved it in the leader's place.
        now: Monotonic seconds.
    """

    stored: tuple[StoredSegment, ...]
    timelines: tuple[Timeline, ...]
    rescued: bool
    now: float


@dataclass(frozen=True, slots=True)
class ReportAdopted:
    """The supposed gap is stored: the archive ends with the segment of this base offset."""

    base_offset: BaseOffset


@dataclass(frozen=True, slots=True)
class ReportGap:
    """`offset.wm` has moved over records that were deleted before they were archived."""

    gap: OffsetRange


@dataclass(frozen=True, slots=True)
class ReportUploaded:
    """A segment's objects are on the store. The upload took `seconds`.

    `early` is set for a part of an active segment.
    """

    stored: StoredSegment
    seconds: float
    early: bool = False


@dataclass(frozen=True, slots=True)
class ReportUploadFailed:
    """An upload has failed, for the `failures`-th time in a row. It is tried again.

    If `repeated`, it is counted and not logged: the last error was the same.
    """

    base_offset: BaseOffset
    error: Exception
    failures: int
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class ReportRequestFailed:
    """A request has failed. It is made again."""

    request: Request
    error: Exception


@dataclass(frozen=True, slots=True)
class ReportOutdated:
    """A request of an earlier generation has failed: the failure changes nothing."""

    request: Request
    error: Exception


@dataclass(frozen=True, slots=True)
class ReportRescueInterrupted:
    """A follower stops a rescue. That is not an error: the leader's sidecar has written the
    archive, or has to resolve a divergence first.
    """

    error: ArchiveConflictError


@dataclass(frozen=True, slots=True)
class ReportHalted:
    """The partition is halted until an operator acts."""

    error: OperatorNeededError


@dataclass(frozen=True, slots=True)
class ReportUnexpected:
    """An unexpected exception in the step `what`. `before` is the text of the step's last error."""

    what: str
    error: Exception
    before: str | None


@dataclass(frozen=True, slots=True)
class HoldBack:
    """An unexpected exception has ended the decision about the partition's next step."""

    error: Exception


Action = (
    Upload
    | AskStore
    | AskBroker
    | ScanAt
    | ReportGapHalt
    | ReportRescue
    | Release
    | ReportTakeover
    | ReportCommitted
    | ReportAdopted
    | ReportGap
    | ReportUploaded
    | ReportUploadFailed
    | ReportRequestFailed
    | ReportOutdated
    | ReportRescueInterrupted
    | ReportHalted
    | ReportUnexpected
    | HoldBack
)

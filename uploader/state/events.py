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
from sidetier.uploader.state.plan import PlannedSegment
from sidetier.uploader.state.segment import StoredSegment, Timeline, TrackedSegment

if TYPE_CHECKING:
    from sidetier.uploader.archive.takeover import TakeoverReport


class Request(Enum):
    """A request to the store. Each partition makes one at a time."""

    LOAD = "read the watermark"
    START = "record where the archive starts"
    PREPARE = "look at what is stored above the watermark"
    COMMIT = "move the watermark"
    GAP = "record a gap"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, with the partition's state when it began: the state may differ when it ends.

    Attributes:
        request: The kind of request.
        generation: The partition's generation when the request began.
        follows: Whether another broker led the partition: a follower acts in the leader's place.
        archive: The archive as it was known; None before the first LOAD.
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
    """A request has raised an error. It may have changed the store all the same; `takeovers` are
    complete.
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
    """The request is not needed any more. It was not made."""


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
    """The upload did not begin: the file has changed since its high watermark was checked."""

    segment: TrackedSegment


@dataclass(frozen=True, slots=True)
class ArchiveMoves:
    """A part of the archive, described by `what`, is being moved to quarantine; None at the end."""

    what: str | None


@dataclass(frozen=True, slots=True)
class StoreSilent:
    """A request hangs, and `reason` describes it; None once the store has answered it."""

    reason: str | None


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
class LookAt:
    """List the partition's directory again at `when`, in monotonic seconds."""

    when: float


@dataclass(frozen=True, slots=True)
class TellGapHalt:
    """The partition halts at a gap, because `uploader.on_gap` is `halt`."""

    gap: OffsetRange


@dataclass(frozen=True, slots=True)
class TellRescue:
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
class TellTakeover:
    """An archive of Pinterest's uploader was taken over."""

    report: "TakeoverReport"


@dataclass(frozen=True, slots=True)
class TellCommitted:
    """`offset.wm` has moved over `stored`.

    Attributes:
        stored: By rising base offset.
        timelines: Of those of the segments that are still tracked.
        rescued: Whether a follower did it in the leader's place.
        now: Monotonic seconds.
    """

    stored: tuple[StoredSegment, ...]
    timelines: tuple[Timeline, ...]
    rescued: bool
    now: float


@dataclass(frozen=True, slots=True)
class TellAdopted:
    """The supposed gap is stored: the archive ends with the segment of this base offset."""

    base_offset: BaseOffset


@dataclass(frozen=True, slots=True)
class TellGap:
    """`offset.wm` has moved over records that were deleted before they were archived."""

    gap: OffsetRange


@dataclass(frozen=True, slots=True)
class TellUploaded:
    """A segment's objects are on the store. The upload took `seconds`."""

    stored: StoredSegment
    seconds: float


@dataclass(frozen=True, slots=True)
class TellUploadFailed:
    """An upload has failed, for the `failures`-th time in a row. It is tried again."""

    base_offset: BaseOffset
    error: Exception
    failures: int


@dataclass(frozen=True, slots=True)
class TellRequestFailed:
    """A request has failed. It is made again."""

    request: Request
    error: Exception


@dataclass(frozen=True, slots=True)
class TellOutdated:
    """A request of an earlier generation has failed: the failure changes nothing."""

    request: Request
    error: Exception


@dataclass(frozen=True, slots=True)
class TellStoodBy:
    """A follower steps back, which is no fault: the leader's sidecar has written the archive, or
    has to resolve a divergence first.
    """

    error: ArchiveConflictError


@dataclass(frozen=True, slots=True)
class TellHalted:
    """The partition is halted until an operator acts."""

    error: OperatorNeededError


@dataclass(frozen=True, slots=True)
class TellUnexpected:
    """An unexpected exception, raised in `what`. `before` is the text of the last one there."""

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
    | LookAt
    | TellGapHalt
    | TellRescue
    | Release
    | TellTakeover
    | TellCommitted
    | TellAdopted
    | TellGap
    | TellUploaded
    | TellUploadFailed
    | TellRequestFailed
    | TellOutdated
    | TellStoodBy
    | TellHalted
    | TellUnexpected
    | HoldBack
)

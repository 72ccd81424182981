"""What happens to a partition, and what is to be done then.

`Partition.handle` takes an event and returns actions, in the order in which they are to be carried
out. Both are values: neither reads nor writes anything.
"""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from sidetier.segments.errors import ArchiveConflictError
from sidetier.segments.offsets import BaseOffset, OffsetRange
from sidetier.uploader.archive.archive_state import ArchiveState
from sidetier.uploader.errors import OperatorNeededError
from sidetier.uploader.state.segment import StoredSegment, Timeline, TrackedSegment

if TYPE_CHECKING:
    from sidetier.uploader.archive.takeover.run import TakeoverReport


class Request(Enum):
    """What a partition needs from the store next; one at a time."""

    LOAD = "read the watermark"
    START = "record where the archive starts"
    PREPARE = "look at what is stored above the watermark"
    COMMIT = "move the watermark"
    GAP = "record a gap"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it was begun: what is known by then may have changed when it has ended.

    `stored` are the segments that a COMMIT moves the watermark over, by rising base offset; `gap`
    is what a GAP records. A follower asks in the leader's place.
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
    """`archive` is what the archive is now; `outages` those of its store that have ended; what was
    taken over from Pinterest's uploader on the way is in `takeovers`.
    """

    asked: Asked
    archive: ArchiveState
    outages: int
    takeovers: "tuple[TakeoverReport, ...]" = ()


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """Nothing is known of what it has done, but for the `takeovers` that were complete by then."""

    asked: Asked
    error: Exception
    takeovers: "tuple[TakeoverReport, ...]" = ()


@dataclass(frozen=True, slots=True)
class RequestOvertaken:
    """There was nothing left to do when its turn came."""


@dataclass(frozen=True, slots=True)
class UploadSucceeded:
    """The segment's objects are on the store. `generation` is that of the upload's beginning."""

    segment: TrackedSegment
    generation: int
    stored: StoredSegment


@dataclass(frozen=True, slots=True)
class UploadFailed:
    """Its `.log` may have been `unlinked` by the broker by then."""

    segment: TrackedSegment
    error: Exception
    unlinked: bool


@dataclass(frozen=True, slots=True)
class UploadPutOff:
    """Its turn came, and the file had changed since its high watermark was looked at."""

    segment: TrackedSegment


@dataclass(frozen=True, slots=True)
class ArchiveMoves:
    """What of the archive is being set aside; None when that has come to an end."""

    what: str | None


@dataclass(frozen=True, slots=True)
class StoreSilent:
    """Which request hangs; None when the store has answered it."""

    reason: str | None


Event = (
    RequestSucceeded
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
class Release:
    """Let the segment's files go, and remove their names in the spool."""

    segment: TrackedSegment


@dataclass(frozen=True, slots=True)
class TellTakeover:
    """Pinterest's archive is ours from now on."""

    report: "TakeoverReport"


@dataclass(frozen=True, slots=True)
class TellCommitted:
    """The watermark has moved over `stored`, in the leader's place where they were `rescued`.
    `timelines` are those of the segments that are still tracked.
    """

    stored: tuple[StoredSegment, ...]
    timelines: tuple[Timeline, ...]
    rescued: bool
    now: float


@dataclass(frozen=True, slots=True)
class TellAdopted:
    """What seemed a gap was stored already, up to this segment."""

    base_offset: BaseOffset


@dataclass(frozen=True, slots=True)
class TellGap:
    """The watermark has moved over records that nothing holds any more."""

    gap: OffsetRange


@dataclass(frozen=True, slots=True)
class TellUploaded:
    """A segment's objects are on the store, after so many seconds."""

    stored: StoredSegment
    seconds: float


@dataclass(frozen=True, slots=True)
class TellUploadFailed:
    """An upload failed for the n-th time in a row; it is tried again."""

    base_offset: BaseOffset
    error: Exception
    failures: int


@dataclass(frozen=True, slots=True)
class TellRequestFailed:
    """A request failed; it is made again."""

    request: Request
    error: Exception


@dataclass(frozen=True, slots=True)
class TellOutdated:
    """A request failed that was begun before the archive was to be read anew."""

    request: Request
    error: Exception


@dataclass(frozen=True, slots=True)
class TellStoodBy:
    """The leader's sidecar has stored meanwhile, or has to settle something first: no fault."""

    error: ArchiveConflictError


@dataclass(frozen=True, slots=True)
class TellHalted:
    """Nothing goes on until an operator acts."""

    error: OperatorNeededError


@dataclass(frozen=True, slots=True)
class TellUnexpected:
    """An exception that no handler expects, in `what`; `before` is the last one there."""

    what: str
    error: Exception
    before: str | None


Action = (
    Release
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
)

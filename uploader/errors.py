"""What may be in the way of a partition's archive: kinds of `ArchiveConflictError`."""

from sidetier.archive.objects.watermark import StoredWatermark
from sidetier.segments.epoch_history import Contradiction
from sidetier.segments.errors import ArchiveConflictError
from sidetier.segments.offsets import UNKNOWN_EPOCH, LeaderEpoch
from sidetier.uploader.state.plan import Conflict


class StandDownError(ArchiveConflictError):
    """The watermark was written in a later leader epoch than ours: another broker leads."""


class RecreatedError(ArchiveConflictError):
    """The archive belongs to a deleted topic of the same name; `mark` is its watermark."""

    def __init__(self, message: str, mark: StoredWatermark) -> None:
        super().__init__(message)
        self.mark = mark


class OperatorNeededError(ArchiveConflictError):
    """Trying again would change nothing, or do harm: somebody has to act first."""


class PinterestUploaderRunningError(OperatorNeededError):
    """Pinterest's uploader has written the watermark under our hands: it is still running."""


class UnmarkedPinterestError(ArchiveConflictError):
    """Pinterest's uploader has stored segments and no watermark: they are taken over first."""


class StoredByAnotherError(ArchiveConflictError):
    """Another sidecar's `.log` stands where ours belongs: the archive goes on where it ends."""


class StoredOtherwiseError(ArchiveConflictError):
    """The archive ends within a record batch of ours. As long as what it has there is not set
    aside, nothing of our segment follows on it but what lies behind that batch.
    """

    def __init__(self, message: str, conflict: Conflict) -> None:
        super().__init__(message)
        self.conflict = conflict


class DivergedCopyError(ArchiveConflictError):
    """A follower's copy and the archive are not one history: that is for the leader to settle."""


class DivergedError(ArchiveConflictError):
    """What is stored and what the leader holds are not one history any more."""


class DivergenceSuspectedError(DivergedError):
    """They seem not to be; a second look decides, without anybody's help."""


class OrphanSegmentError(DivergedError):
    """What is stored above the watermark was written in `leader_epoch`, and is not in our log."""

    def __init__(self, message: str, leader_epoch: LeaderEpoch) -> None:
        super().__init__(message)
        self.leader_epoch = leader_epoch


class DivergenceBelowError(DivergenceSuspectedError):
    """What is stored below the watermark is not in our log, from the offset of the contradiction
    on, though the watermark's own epoch does not tell.
    """

    def __init__(self, message: str, found: Contradiction) -> None:
        super().__init__(message)
        self.found = found


class AnotherTopicError(OrphanSegmentError):
    """It is of another topic of the same name, whose epochs say nothing here."""

    def __init__(self, message: str) -> None:
        super().__init__(message, UNKNOWN_EPOCH)


class UnfinishedMoveError(DivergedError):
    """A part of the archive is being moved, and it is not ours to finish that."""

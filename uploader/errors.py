"""Errors that keep a partition from being archived."""

from sidetier.archive.objects.watermark import StoredWatermark
from sidetier.segments.epoch_history import Contradiction
from sidetier.segments.errors import ArchiveConflictError, UnsupportedFormatError
from sidetier.segments.offsets import UNKNOWN_EPOCH, LeaderEpoch
from sidetier.uploader.state.plan import Conflict


class StandDownError(ArchiveConflictError):
    """`offset.wm` was written in a later leader epoch than ours: another broker leads."""


class RecreatedError(ArchiveConflictError):
    """The archive belongs to a deleted topic of the same name; `mark` is its `offset.wm`."""

    def __init__(self, message: str, mark: StoredWatermark) -> None:
        super().__init__(message)
        self.mark = mark


class OperatorNeededError(ArchiveConflictError):
    """Another attempt would fail again, or do harm: an operator has to act first."""


class PinterestUploaderRunningError(OperatorNeededError):
    """Pinterest's uploader has overwritten our `offset.wm`: it is still running."""


class UnmarkedPinterestError(ArchiveConflictError):
    """Pinterest's uploader has stored segments but no `offset.wm`: a takeover must come first."""


class StoredByAnotherError(ArchiveConflictError):
    """Another sidecar has stored a `.log` under our key: the archive continues where it ends."""


class StoredOtherwiseError(ArchiveConflictError):
    """The archive ends within a record batch of our log, so it has another history from there on.

    Until the archived records are quarantined, only the records behind that batch can follow. The
    offsets of both ends are in `conflict`.
    """

    def __init__(self, message: str, conflict: Conflict) -> None:
        super().__init__(message)
        self.conflict = conflict


class DivergedCopyError(ArchiveConflictError):
    """A follower's log has diverged from the archive. Only the leader's sidecar resolves this."""


class DivergedError(ArchiveConflictError):
    """The archive and the leader's log have different histories."""


class DivergenceSuspectedError(DivergedError):
    """Archive and log seem to have diverged. A second check decides, without an operator."""


class OrphanSegmentError(DivergedError):
    """An orphan segment: stored above `offset.wm`, written in `leader_epoch`, not in our log."""

    def __init__(self, message: str, leader_epoch: LeaderEpoch) -> None:
        super().__init__(message)
        self.leader_epoch = leader_epoch


class DivergenceBelowError(DivergenceSuspectedError):
    """Archived records are not in our log, from the offset of the contradiction on, though the
    leader epoch in `offset.wm` does not show it.
    """

    def __init__(self, message: str, found: Contradiction) -> None:
        super().__init__(message)
        self.found = found


class AnotherTopicError(OrphanSegmentError):
    """A stored segment is of another topic of the same name, with its own leader epochs."""

    def __init__(self, message: str) -> None:
        super().__init__(message, UNKNOWN_EPOCH)


class UnfinishedMoveError(DivergedError):
    """A part of the archive is being moved, and this sidecar must not finish the move."""


class UnarchivableError(UnsupportedFormatError):
    """The segment has a format without leader epochs, so nothing proves that it may be archived.

    Args:
        message: The text of the error.
        accepted: Whether an operator has accepted the loss of its records.
    """

    def __init__(self, message: str, *, accepted: bool) -> None:
        super().__init__(message)
        self.accepted = accepted

"""Is a follower's copy of the history that is stored? It may lag behind, but not have forked."""

from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.errors import ArchiveConflictError
from sidetier.segments.offsets import Offset
from sidetier.segments.watermark import Watermark
from sidetier.uploader.gates.divergence import divergence_offset


class DivergedCopyError(ArchiveConflictError):
    """A follower's copy and the archive are not one history: that is for the leader to settle."""


def check_same_epoch_history(
    watermark: Watermark, next_offset: Offset, directory: str, epoch_history: EpochHistory
) -> None:
    """Compare the archive with the `epoch_history` of a follower's log in `directory`. A log that
    ends below the archive's next offset has not diverged: a follower may be behind.

    Raises:
        ForkedCopyError: a later epoch of this copy starts below what is stored, or a part of the
            archive is being moved away.
    """
    if watermark.pending is not None:
        raise DivergedCopyError(
            f"a part of the archive is being moved to {watermark.pending}: the leader's sidecar "
            "ends that first"
        )
    divergence = divergence_offset(watermark, next_offset, epoch_history)
    if divergence is not None:
        raise DivergedCopyError(
            f"{directory}: this copy left the stored history at offset {divergence}, but the "
            f"archive reaches {next_offset}: the leader's sidecar settles that"
        )

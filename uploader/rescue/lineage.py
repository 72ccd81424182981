"""Is a follower's copy of the history that is stored? It may lag behind, but not have forked."""

from sidetier.segments.errors import ArchiveConflictError
from sidetier.segments.lineage import Lineage
from sidetier.segments.offsets import Offset
from sidetier.segments.watermark import Watermark
from sidetier.uploader.gates.divergence import fork_offset


class ForkedCopyError(ArchiveConflictError):
    """A follower's copy and the archive are not one history: that is for the leader to settle."""


def check_same_lineage(
    watermark: Watermark, next_offset: Offset, directory: str, lineage: Lineage
) -> None:
    """Compare the archive with the `lineage` of a follower's log in `directory`. That the log ends
    below the archive's next offset is no fork: a follower may be behind.

    Raises:
        ForkedCopyError: a later epoch of this copy starts below what is stored, or a part of the
            archive is being moved away.
    """
    if watermark.pending is not None:
        raise ForkedCopyError(
            f"a part of the archive is being moved to {watermark.pending}: the leader's sidecar "
            "ends that first"
        )
    fork = fork_offset(watermark, next_offset, lineage)
    if fork is not None:
        raise ForkedCopyError(
            f"{directory}: this copy left the stored history at offset {fork}, but the archive "
            f"reaches {next_offset}: the leader's sidecar settles that"
        )

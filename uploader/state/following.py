"""What a sidecar remembers of a partition while another broker leads it."""

from dataclasses import dataclass, replace

from sidetier.segments.offsets import Offset


@dataclass(frozen=True, slots=True)
class Following:
    """How long `offset.wm` has not moved, and what the broker may delete. Monotonic seconds.

    Attributes:
        next_offset: The archive end offset that was read last; None where there is no `offset.wm`.
        since: When this offset was read for the first time. Moves by this sidecar do not count.
        read_at: When `offset.wm` was read last.
        rescuing: Whether this sidecar stores in the place of the leader's.
        at_risk: Segments that the broker may delete soon.
        at_risk_by_size: Segments that begin below this offset may be deleted by `retention.bytes`;
            None if there are none.
    """

    next_offset: Offset | None = None
    since: float | None = None
    read_at: float = float("-inf")
    rescuing: bool = False
    at_risk: int = 0
    at_risk_by_size: Offset | None = None

    def saw(self, next_offset: Offset | None, *, ours: bool) -> "Following":
        """Take the offset that was read, or to which this sidecar has moved it (`ours`)."""
        if self.since is None or (next_offset != self.next_offset and not ours):
            return replace(self, next_offset=next_offset, since=self.read_at, rescuing=False)
        return replace(self, next_offset=next_offset)

    def lasts(self, patience: float) -> bool:
        """Whether two readings, `patience` seconds apart, have shown the same offset."""
        return self.since is not None and self.read_at - self.since >= patience

    def in_another_epoch(self) -> "Following":
        """Forget what was read of the archive in an earlier leader epoch, but not when.

        After an unclean election, the new leader's sidecar quarantines archived records and moves
        `offset.wm` back.
        """
        return replace(self, next_offset=None, since=None, rescuing=False)

"""The sidecar's knowledge of a partition's archive, and the leader that it writes for."""

from dataclasses import dataclass, replace

from sidetier.archive.objects.leader_epochs import StoredEpochHistory
from sidetier.archive.objects.watermark import Watermark
from sidetier.segments.offsets import BrokerId, LeaderEpoch, Offset
from sidetier.uploader.watching.disk import BatchPosition


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """What the sidecar knows of a partition's archive.

    Attributes:
        watermark: The content of `offset.wm`; None if the object does not exist.
        etag: Etag of `offset.wm`; None if the object does not exist.
        next_offset: Archive end offset, exclusive. None until the archive's start is known.
        present: Keys above `offset.wm`; None until the sidecar has listed them.
        claimed: Whether this sidecar has written `offset.wm` since it read it.
        start: First offset of an archive that has no `offset.wm` yet.
        recorded: Whether `start` is recorded on the store by `offset_reset: latest`. Such an
            archive never begins at another offset.
        kept_start: The start that is recorded on the store because the broker deleted records
            before the first `offset.wm` was written.
        epoch_history: The stored leader epochs; None until the sidecar has read them.
        position: Where a batch of this broker's log begins, at the archive end offset or below;
            None if that is not known.
    """

    watermark: Watermark | None = None
    etag: str | None = None
    next_offset: Offset | None = None
    present: frozenset[str] | None = None
    claimed: bool = False
    start: Offset | None = None
    recorded: bool = False
    kept_start: Offset | None = None
    epoch_history: StoredEpochHistory | None = None
    position: BatchPosition | None = None

    @property
    def is_pinterest(self) -> bool:
        """Whether Pinterest's uploader wrote `offset.wm`, so that a takeover must come first."""
        return self.watermark is not None and self.watermark.next_offset is None

    @property
    def start_is_kept(self) -> bool:
        """Whether a restart begins at the same offset even if the log start has moved by then."""
        if self.watermark is not None or self.recorded:
            return True
        return self.kept_start is not None and self.kept_start == self.start

    def beginning_with_log(self, log_start: Offset) -> "ArchiveState":
        """Return the state of a new archive that begins at the log start, or at `kept_start` where
        that is lower.
        """
        kept = log_start if self.kept_start is None else self.kept_start
        return self.beginning_at(min(log_start, kept))

    def beginning_at(self, start: Offset, *, recorded: bool = False) -> "ArchiveState":
        """Return the state of a new archive that begins at `start`."""
        return replace(self, next_offset=start, start=start, recorded=recorded)


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader that an archive is written for: broker, leader epoch and topic id."""

    broker_id: BrokerId
    leader_epoch: LeaderEpoch
    topic_id: str | None

"""What is known of a partition's archive, and in whose name it is written."""

from dataclasses import dataclass, replace

from sidetier.archive.objects.leader_epochs import StoredEpochHistory
from sidetier.archive.objects.watermark import Watermark
from sidetier.segments.offsets import BrokerId, LeaderEpoch, Offset


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """What is known of a partition's archive.

    `next_offset` is where the archive goes on, None before its start is known. `present` are the
    keys above the watermark, None until somebody has looked. `claimed` when we have written the
    watermark ourselves since it was read. `start` is where an archive without a watermark is to
    begin; where that is `recorded`, it begins nowhere else. `kept_start` is the start that is on
    the store because records were gone before the first watermark. `epoch_history` is the
    stored one, None until it has been read.
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

    @property
    def is_pinterest(self) -> bool:
        """Pinterest's uploader wrote the watermark: it has to be taken over first."""
        return self.watermark is not None and self.watermark.next_offset is None

    @property
    def start_is_kept(self) -> bool:
        """Whether a restart begins at the same offset, though the log begins later by then."""
        if self.watermark is not None or self.recorded:
            return True
        return self.kept_start is not None and self.kept_start == self.start

    def beginning_with_log(self, log_start: Offset) -> "ArchiveState":
        """The archive of a partition that has none yet, to begin with the log; where records were
        gone before the first watermark, with those.
        """
        kept = log_start if self.kept_start is None else self.kept_start
        return self.beginning_at(min(log_start, kept))

    def beginning_at(self, start: Offset, *, recorded: bool = False) -> "ArchiveState":
        """The archive of a partition that has none yet, to begin here."""
        return replace(self, next_offset=start, start=start, recorded=recorded)


@dataclass(frozen=True, slots=True)
class Leader:
    """In whose name an archive is written."""

    broker_id: BrokerId
    leader_epoch: LeaderEpoch
    topic_id: str | None

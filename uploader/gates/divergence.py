"""Has the log that we lead lost what is stored? Then nothing is written before somebody decides.

After an unclean election, or when a topic was created again, the archive and the log tell different
histories from some offset on. Writing on would mix them.
"""

import os
from dataclasses import dataclass
from typing import Final

from sidetier.archive.objects.watermark import Watermark
from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.errors import DamagedSegmentError
from sidetier.segments.headers import BatchHeader, walk_headers
from sidetier.segments.names import FileKind, parse_segment_file_name, segment_file_name
from sidetier.segments.offsets import UNKNOWN_EPOCH, BaseOffset, LeaderEpoch, Offset
from sidetier.uploader.errors import OrphanSegmentError
from sidetier.uploader.gates.remembered_epochs import RememberedEpochs
from sidetier.uploader.watching.disk import list_names

_NO_EPOCH: Final = -1


@dataclass(frozen=True, slots=True)
class LocalHistory:
    """What a log tells of itself: its epoch history, and where it ends, None where that lies above
    everything that was asked about.
    """

    epoch_history: EpochHistory
    log_end: Offset | None = None

    def lacks(self, header: BatchHeader) -> bool:
        """A stored batch is not in this log: another leader wrote there, or the log ends before."""
        if self.log_end is not None and header.next_offset > self.log_end:
            return True
        return self.has_another_at(header)

    def has_another_at(self, header: BatchHeader) -> bool:
        """Another leader wrote at an offset of the batch; below the first epoch nothing is known.
        A log may begin, empty, in the middle of a batch that was thrown away.
        """
        ends = (header.base_offset, header.next_offset - 1)
        here = {self.epoch_history.epoch_at(offset) for offset in ends} - {None}
        return header.leader_epoch >= 0 and bool(here - {header.leader_epoch})


def read_history(
    directory: str,
    active: BaseOffset | None,
    next_offset: Offset,
    epochs: RememberedEpochs,
    archived_epoch: LeaderEpoch = UNKNOWN_EPOCH,
) -> LocalHistory:
    """The history in a partition's directory, as far as `next_offset`; `epochs` are those of its
    log that the sidecar remembers.

    The end is read before the epoch history: a leader writes its epoch before it appends, so a log
    that has grown beyond an archive in a new epoch shows that epoch, too. Where delete-records has
    moved the log start into the first segment, its record batches tell the epochs that the
    checkpoint has dropped; they are read if the archive is older than the first of those that are
    known.

    Raises:
        SegmentGoneError: the partition's directory is gone.
        OSError: its active segment is gone.
    """
    end = None
    if active is not None and active < next_offset:
        # The listing may be behind a roll: then what it calls active ends below the log's end.
        end = log_end_offset(directory, _newest_segment(directory, active))
        end = end if end < next_offset else None
    epoch_history = epochs.read(directory)
    if epoch_history.entries and epoch_history.entries[0][0] > archived_epoch > UNKNOWN_EPOCH:
        epoch_history = _with_first_segment(directory, next_offset, epoch_history)
    return LocalHistory(epoch_history, end)


def _with_first_segment(
    directory: str, next_offset: Offset, epoch_history: EpochHistory
) -> EpochHistory:
    """The epoch history with the epochs of the record batches below its first start that are left
    in the log's first segment, if that segment begins below the archive's next offset.
    """
    base, (epoch, start) = min(_live_segments(directory), default=None), epoch_history.entries[0]
    if base is None or base >= min(start, next_offset):
        return epoch_history
    runs: dict[LeaderEpoch, Offset] = {}
    descriptor = os.open(
        os.path.join(directory, segment_file_name(base, FileKind.LOG)), os.O_RDONLY | os.O_CLOEXEC
    )
    try:
        size = os.fstat(descriptor).st_size
        for _, header in walk_headers(lambda at, length: os.pread(descriptor, length, at), size):
            if header.base_offset >= start:
                break
            runs.setdefault(LeaderEpoch(header.leader_epoch), Offset(header.base_offset))
    except DamagedSegmentError:
        return epoch_history
    finally:
        os.close(descriptor)
    runs.setdefault(epoch, start)
    return EpochHistory((*runs.items(), *epoch_history.entries[1:]))


def latest_divergence(
    watermark: Watermark, next_offset: Offset, local: LocalHistory
) -> Offset | None:
    """Where archive and log have parted at the latest; None where they seem to be one history."""
    found = [divergence_offset(watermark, next_offset, local.epoch_history), local.log_end]
    return min((offset for offset in found if offset is not None), default=None)


def why_unproven(
    watermark_epoch: LeaderEpoch, leader_epoch: LeaderEpoch, local: LocalHistory
) -> str | None:
    """Why a fork is no ground to move anything yet; None once a new leader's log shows it.

    An election that lost records has made a new epoch, and its leader has written that epoch into
    the checkpoint. Everything else is a log that is not (yet) the leader's, or a puzzle.
    """
    if leader_epoch == UNKNOWN_EPOCH:
        return "the source of leadership tells no leader epoch: this need not be the leader's log"
    last = local.epoch_history.entries[-1][0] if local.epoch_history.entries else UNKNOWN_EPOCH
    if last != leader_epoch:
        return (
            f"this broker leads in epoch {leader_epoch}, but its leader-epoch-checkpoint ends with "
            f"{last}"
        )
    if watermark_epoch >= leader_epoch:
        return f"no leader was elected since the watermark was written (epoch {watermark_epoch})"
    return None


def divergence_offset(
    watermark: Watermark, next_offset: Offset, epoch_history: EpochHistory
) -> Offset | None:
    """Where the log left the history that is stored; None when it did not.

    All that is stored was written in the watermark's leader epoch or earlier ones. A later epoch
    that starts below the stored next offset has replaced records that are stored.
    """
    if watermark.leader_epoch == _NO_EPOCH:
        return None
    end = epoch_history.end_of(watermark.leader_epoch)
    return end if end is not None and end < next_offset else None


def check_stored_segment(
    key: str, leader_epoch: int, next_offset: Offset, epoch_history: EpochHistory
) -> None:
    """Compare a stored segment, by the epoch of its last batch, with the log of the leader: where
    the last batch is the leader's, so is everything before it.

    Raises:
        StrayError: the leader's log does not hold that batch.
    """
    if leader_epoch == _NO_EPOCH:
        return
    last = Offset(next_offset - 1)
    problem = epoch_history.violation([(LeaderEpoch(leader_epoch), last)], next_offset)
    if problem is not None:
        raise OrphanSegmentError(
            f"{key}: {problem}: it was stored before an unclean election; nothing is written until "
            "the archive from there on has been set aside",
            LeaderEpoch(leader_epoch),
        )


def _newest_segment(directory: str, active: BaseOffset) -> BaseOffset:
    """The base of the last segment that is there now; at least the one that was seen as active."""
    return max(_live_segments(directory), default=active)  # where it is gone, its reader says so


def _live_segments(directory: str) -> list[BaseOffset]:
    """The base offsets of the segments in the log; none where the directory is gone."""
    found = (parse_segment_file_name(name) for name in list_names(directory))
    return [
        name.base_offset
        for name in found
        if name is not None and name.kind is FileKind.LOG and not name.deleted
    ]


def log_end_offset(directory: str, active: BaseOffset) -> Offset:
    """The offset after the last whole record batch of the active segment; reads its headers.

    Raises:
        OSError: the file is gone.
    """
    path = os.path.join(directory, segment_file_name(active, FileKind.LOG))
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _end(descriptor, active)
    finally:
        os.close(descriptor)


def _end(descriptor: int, active: BaseOffset) -> Offset:
    end = Offset(active)
    size = os.fstat(descriptor).st_size
    try:
        for _, header in walk_headers(lambda at, length: os.pread(descriptor, length, at), size):
            end = header.next_offset
    except DamagedSegmentError:
        return end  # the broker is in the middle of an append
    return end

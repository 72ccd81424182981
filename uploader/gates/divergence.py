"""Compare the leader's log with the archive: has the log lost records that are archived?

After an unclean election, or when a topic was created again, the archive and the log have different
histories from a certain offset on. More uploads would mix the two, so the sidecar writes nothing
until the divergence is resolved.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sidetier.archive.objects.watermark import Watermark
from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.errors import DamagedSegmentError
from sidetier.segments.headers import BatchHeader
from sidetier.segments.offsets import UNKNOWN_EPOCH, BaseOffset, LeaderEpoch, Offset
from sidetier.uploader.errors import OrphanSegmentError
from sidetier.uploader.gates.remembered_epochs import RememberedEpochs, from_first_batch
from sidetier.uploader.watching.disk import BatchPosition, open_log, segment_bases, topic_id_in

_NO_EPOCH: Final = -1


@dataclass(frozen=True, slots=True)
class LocalHistory:
    """The history of a log.

    Attributes:
        epoch_history: Its leader epochs.
        log_end: Its log end offset, exclusive; None if that is at or above the archive end offset.
        archive_end: Where the batch at the archive end offset, or below it, begins in the active
            segment; None if its batches were not read.
    """

    epoch_history: EpochHistory
    log_end: Offset | None = None
    archive_end: BatchPosition | None = None

    def lacks(self, header: BatchHeader) -> bool:
        """Return whether this log does not hold a stored batch: another leader wrote there, or the
        log ends below the batch's end.
        """
        if self.log_end is not None and header.next_offset > self.log_end:
            return True
        return self.has_another_at(header)

    def has_another_at(self, header: BatchHeader) -> bool:
        """Return whether another leader epoch wrote an offset of the batch in this log.

        Both ends of the batch are compared, because an empty log may begin in the middle of a batch
        that an election discarded. Offsets below the log's first epoch are not compared.
        """
        ends = (header.base_offset, header.next_offset - 1)
        local_epochs = {self.epoch_history.epoch_at(offset) for offset in ends} - {None}
        return header.leader_epoch >= 0 and bool(local_epochs - {header.leader_epoch})


def read_history(
    directory: str,
    active: BaseOffset | None,
    next_offset: Offset,
    epochs: RememberedEpochs,
    archived_epoch: LeaderEpoch = UNKNOWN_EPOCH,
    leader_epoch: LeaderEpoch = UNKNOWN_EPOCH,
) -> LocalHistory:
    """Read the history of the log in a partition's directory.

    The log end is read before the epoch history: a leader writes its epoch before it appends, so if
    the log has grown beyond the archive in a new epoch, the epoch history has that epoch. If
    delete-records has moved the log start, the log may still have batches of epochs that the
    checkpoint has dropped. They are read if the archive is older than the first known epoch.

    Args:
        directory: The partition's directory.
        active: Base offset of the active segment; None where it is not known.
        next_offset: Archive end offset; the log end is read only if it may be below it.
        epochs: The leader epochs of the log that the sidecar remembers.
        archived_epoch: Leader epoch in `offset.wm`.
        leader_epoch: Leader epoch in which this broker leads.

    Raises:
        SegmentGoneError: the partition's directory is gone.
        OSError: its active segment is gone.
    """
    end = position = None
    # The log ends above the active segment's base. Only if that
    # base is below the archive end offset can the log end below it.
    if active is not None and active < next_offset:
        # The broker may have rolled a new segment since the listing: `active` is not the last then.
        before = epochs.read(directory).entries[-1:]
        # A broker that leads writes its epoch first, and does not truncate from then on.
        leads = leader_epoch if before and before[0][0] == leader_epoch else UNKNOWN_EPOCH
        segment = max(segment_bases(directory), default=active)  # its reader finds it missing
        end, position = _walk(directory, segment, next_offset, leads)
        end = end if end < next_offset else None
    epoch_history = epochs.read(directory)
    if epoch_history.entries and epoch_history.entries[0][0] > archived_epoch > UNKNOWN_EPOCH:
        with suppress(DamagedSegmentError):  # the comparison goes on with the checkpoint alone
            epoch_history = from_first_batch(directory, epoch_history)
    return LocalHistory(epoch_history, end, position)


def latest_divergence(
    watermark: Watermark, next_offset: Offset, local: LocalHistory
) -> Offset | None:
    """Return the highest offset at which archive and log can have diverged; None without a sign."""
    # Two independent signs: a later epoch that begins too low, and
    # a log that is too short. The lower one is the safer bound.
    offsets = [divergence_offset(watermark, next_offset, local.epoch_history), local.log_end]
    return min((offset for offset in offsets if offset is not None), default=None)


def why_unproven(
    watermark_epoch: LeaderEpoch, leader_epoch: LeaderEpoch, local: LocalHistory
) -> str | None:
    """Return why a divergence does not yet allow to move objects; None if this log proves it.

    An election that lost records has made a new leader epoch, and its leader has written that epoch
    to its checkpoint. Otherwise the log is not, or not yet, the leader's.
    """
    if leader_epoch == UNKNOWN_EPOCH:
        return "the source of leadership gives no leader epoch: this log may not be the leader's"
    last = local.epoch_history.entries[-1][0] if local.epoch_history.entries else UNKNOWN_EPOCH
    if last != leader_epoch:
        return (
            f"this broker leads in epoch {leader_epoch}, but its leader-epoch-checkpoint ends with "
            f"{last}"
        )
    # An election that discards records makes a later epoch. Without one,
    # the log has lost them in another way, or this sidecar is the late one.
    if watermark_epoch >= leader_epoch:
        return f"no leader was elected since the watermark was written (epoch {watermark_epoch})"
    return None


def divergence_offset(
    watermark: Watermark, next_offset: Offset, epoch_history: EpochHistory
) -> Offset | None:
    """Return the offset at which the log has diverged from the archive; None where it has not.

    All archived records were written in the leader epoch of `offset.wm` or earlier. A later epoch
    of the log that starts below the archive end offset has replaced archived records.
    """
    if watermark.leader_epoch == _NO_EPOCH:
        return None
    end = epoch_history.end_of(watermark.leader_epoch)
    return end if end is not None and end < next_offset else None


def check_stored_segment(
    key: str, leader_epoch: int, next_offset: Offset, epoch_history: EpochHistory
) -> None:
    """Compare the leader epoch of a stored segment's last batch with the leader's log.

    If the log has that batch, it has all batches before it.

    Raises:
        OrphanSegmentError: the leader's log does not hold that batch.
    """
    if leader_epoch == _NO_EPOCH:
        return
    last = Offset(next_offset - 1)
    problem = epoch_history.violation([(LeaderEpoch(leader_epoch), last)], next_offset)
    if problem is not None:
        raise OrphanSegmentError(
            f"{key}: {problem}: it was stored before an unclean election; nothing is written until "
            "the archive from that offset on has been moved away",
            LeaderEpoch(leader_epoch),
        )


def log_end_offset(directory: str, active: BaseOffset) -> Offset:
    """Read the headers of the active segment, and return the end of its last whole batch.

    Raises:
        OSError: the file is gone.
    """
    return _walk(directory, active, Offset(active))[0]


def _walk(
    directory: str, active: BaseOffset, archived: Offset, leads: LeaderEpoch = UNKNOWN_EPOCH
) -> tuple[Offset, BatchPosition]:
    """Return the ends of the last whole batch, and of the last one up to the offset `archived`."""
    end = below = Offset(active)
    position = 0
    with open_log(directory, active, topic_id_in(directory)) as log:
        for at, header in log.batches():
            end = header.next_offset
            if end <= archived:
                below, position = end, at + header.length
        return end, BatchPosition(active, log.file, leads, below, position)

"""The leader epochs of a partition's log, also those that the broker's checkpoint has dropped.

The broker drops entries from the front of `leader-epoch-checkpoint` as the log start moves. The
dropped entries still show which leader wrote the archived records, and whether a deleted segment
was a part of the log. So the sidecar reads the file at each listing, and remembers its entries.
With a spool it remembers them over a restart, too. Batches that are still in the log show dropped
entries as well (`from_first_batch`).
"""

import os
import threading

from sidetier.segments.epoch_history import (
    NO_EPOCHS,
    EpochHistory,
    encode_leader_epoch_checkpoint,
    parse_leader_epoch_checkpoint,
    with_earlier_epochs,
)
from sidetier.segments.errors import DamagedSegmentError, SegmentGoneError
from sidetier.segments.offsets import LeaderEpoch, Offset
from sidetier.uploader.watching.disk import (
    EPOCH_CHECKPOINT_NAME,
    open_log,
    read_text,
    segment_bases,
)


class RememberedEpochs:
    """Remembers the leader epochs of one partition's log; any thread may call it.

    It belongs to one topic id: another topic of the same name begins with a new instance.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known = NO_EPOCHS
        self._saved: tuple[str, EpochHistory] | None = None

    @property
    def known(self) -> EpochHistory:
        """The result of the last `read` that found an entry."""
        return self._known

    def read(self, directory: str) -> EpochHistory:
        """Read the checkpoint in a partition's directory, and remember its entries.

        Returns:
            The entries that the checkpoint has dropped from its front since an earlier call, and
            behind them its own entries.

        Raises:
            SegmentGoneError: the directory is gone, or has no checkpoint.
            SegmentError: the checkpoint is damaged.
            OSError: it cannot be read.
        """
        with self._lock:  # an older reading must not replace a newer one
            epoch_history = with_earlier_epochs(read_local_epochs(directory), self._known)
            if epoch_history.entries:  # the checkpoint of an empty log has no entries
                self._known = epoch_history
            return epoch_history

    def save(self, directory: str) -> None:
        """Write the remembered epochs to a directory of the sidecar, for its next start.

        The file is replaced as a whole: a kill leaves the old one or the new one. It is not written
        again while nothing has changed. Raises OSError.
        """
        with self._lock:
            # The epochs change with each election, but a listing of the directory saves them each
            # time: this comparison avoids a write per listing.
            saving = (directory, self._known)
            if saving == self._saved or not self._known.entries:
                return
            path = os.path.join(directory, EPOCH_CHECKPOINT_NAME)
            os.makedirs(directory, exist_ok=True)
            with open(path + ".new", "w", encoding="ascii") as file:
                file.write(encode_leader_epoch_checkpoint(self._known))
            os.replace(path + ".new", path)
            self._saved = saving

    def recall(self, directory: str) -> None:
        """Remember the epochs that an earlier run has saved, if they fit the broker's checkpoint.

        Does nothing where `read` has found no entry yet.

        Raises:
            SegmentError: the file is damaged.
            OSError: it cannot be read.
        """
        try:
            earlier = read_local_epochs(directory)
        except SegmentGoneError:
            return
        with self._lock:
            self._known = with_earlier_epochs(self._known, earlier)


def read_local_epochs(directory: str) -> EpochHistory:
    """Return the leader epochs in a partition's checkpoint. Raises as `RememberedEpochs.read`."""
    path = os.path.join(directory, EPOCH_CHECKPOINT_NAME)
    try:
        return parse_leader_epoch_checkpoint(read_text(path), path)
    except (FileNotFoundError, NotADirectoryError):
        raise SegmentGoneError(f"{path} is gone: the topic was deleted or moved away") from None


def from_first_batch(directory: str, history: EpochHistory) -> EpochHistory:
    """Return the epoch history of a log from its first batch on. Where DeleteRecords has moved the
    log start, it has cut the checkpoint, and the batches below show what was cut.

    Batches that are not whole show nothing, nor does a segment that the broker deletes meanwhile:
    then the result is `history`.

    Args:
        directory: The partition's directory.
        history: The checkpoint, which is not empty.

    Raises:
        DamagedSegmentError: The batches contradict the checkpoint.
        UnsupportedFormatError: Message format v0 or v1.
        OSError: A file cannot be read.
    """
    first, end = history.entries[0]
    found: dict[LeaderEpoch, Offset] = {}
    newest = LeaderEpoch(-1)
    try:
        for base in segment_bases(directory):
            if base >= end:
                break
            with open_log(directory, base) as log:
                batches = log.batches()
                for _, header in batches:
                    at = header.base_offset
                    if at >= end:
                        break
                    if not newest <= header.leader_epoch <= first:
                        raise DamagedSegmentError(
                            f"{directory}: the batch at offset {at} is of leader epoch "
                            f"{header.leader_epoch}, after {newest}, and the checkpoint begins "
                            f"with epoch {first} at offset {end}"
                        )
                    newest = header.leader_epoch
                    found.setdefault(newest, at)
            if not batches.whole and batches.end < end:
                return history
    except FileNotFoundError:
        return history
    found.setdefault(first, end)
    return EpochHistory((*found.items(), *history.entries[1:]))

"""Has the log that we lead lost what is stored? Then nothing is written before somebody decides.

After an unclean election, or when a topic was created again, the archive and the log tell different
histories from some offset on. Writing on would mix them.
"""

import os
from typing import Final

from sidetier.segments.errors import ArchiveConflictError, DamagedSegmentError
from sidetier.segments.headers import walk_headers
from sidetier.segments.lineage import Lineage
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset, Offset
from sidetier.segments.watermark import Watermark
from sidetier.uploader.sending.verify import read_lineage

_NO_EPOCH: Final = -1


class DivergedError(ArchiveConflictError):
    """What is stored and what the leader holds are not one history any more."""


def fork_offset(watermark: Watermark, next_offset: Offset, lineage: Lineage) -> Offset | None:
    """Where the log left the history that is stored; None when it did not.

    All that is stored was written in the watermark's leader epoch or earlier ones. A later epoch
    that starts below the stored next offset has replaced records that are stored.
    """
    if watermark.leader_epoch == _NO_EPOCH:
        return None
    end = lineage.end_of(watermark.leader_epoch)
    return end if end is not None and end < next_offset else None


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


def check_same_history(
    watermark: Watermark, next_offset: Offset, directory: str, active: BaseOffset | None
) -> None:
    """Compare the archive with the log of the partition's leader.

    Raises:
        DivergedError: with the offsets, and what to do.
        SegmentGoneError: the partition's directory is gone.
    """
    fork = fork_offset(watermark, next_offset, read_lineage(directory))
    if fork is not None:
        raise DivergedError(
            f"{directory}: this log left the stored history at offset {fork} (a later leader epoch "
            f"starts there), but the archive reaches {next_offset}: an unclean election; nothing "
            "is written until the archive from that offset on has been set aside"
        )
    if active is None or active >= next_offset:
        return
    end = log_end_offset(directory, active)
    if end < next_offset:
        raise DivergedError(
            f"{directory}: this log ends at offset {end}, but the archive reaches {next_offset}: "
            "records that are stored are gone from the cluster (an unclean election, or another "
            "topic of the same name); nothing is written until the archive has been set aside"
        )

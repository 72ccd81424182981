"""Pins: the sidecar opens the files of a closed segment at once, and closes them once it is stored.

An open descriptor can still be read after the broker has renamed the file to `.deleted`, and after
it has unlinked it. A crash of the sidecar closes all descriptors: the files that were unlinked by
then are lost, unless they have names in the spool (see `spool`).
"""

import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, NoReturn, Protocol

from sidetier.segments.errors import SegmentChangedError, SegmentGoneError
from sidetier.segments.indexes import TIMEINDEX_ENTRY_BYTES, last_timestamp
from sidetier.segments.listing import ClosedSegment
from sidetier.segments.names import OPTIONAL_KINDS, REQUIRED_KINDS, FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset, TopicPartition
from sidetier.segments.producer_snapshot import EMPTY_SNAPSHOT_BYTES
from sidetier.uploader.sending.reading import FileIdentity


class Urgency(NamedTuple):
    """Sorts segments by the order in which the broker deletes them.

    Attributes:
        live: Whether the segment is not marked for deletion; False sorts first.
        expires_at: End of its retention, in seconds since 1970; infinity for never.
    """

    live: bool
    expires_at: float


class PinPriority(NamedTuple):
    """Sort key of pins: led partitions first, then by urgency.

    Attributes:
        followed: Whether another broker leads the partition.
        urgency: Urgency of the upload.
    """

    followed: bool
    urgency: Urgency


@dataclass(frozen=True, slots=True)
class HeldPin:
    """A pin of an unlinked segment: without it, the disk would free `size` bytes."""

    topic_partition: TopicPartition
    base_offset: BaseOffset
    size: int
    pin_priority: PinPriority


def pins_to_release(held: Sequence[HeldPin], excess: int) -> tuple[HeldPin, ...]:
    """Choose the pins to release, so that at least `excess` bytes are freed.

    Pins of followed partitions go first, because the leader's sidecar most likely stores the same
    records. Among the others the newest go first: the next uploads still find their segments, and
    the gap that the release may leave is as far as possible behind the archive end offset.
    """
    released = []
    for pin in sorted(held, key=lambda pin: (pin.pin_priority, pin.base_offset), reverse=True):
        if excess <= 0:
            break
        released.append(pin)
        excess -= pin.size
    return tuple(released)


_TOO_MANY_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})


class SpooledFiles(Protocol):
    """The hard links to a closed segment's files in the spool."""

    @property
    def directory(self) -> str:
        """The directory of the links."""
        ...

    @property
    def segment(self) -> ClosedSegment:
        """The segment that the files belong to."""
        ...

    def leads_to(self, identity: FileIdentity) -> bool:
        """Return whether the link of the `.log` leads to this inode. Raises OSError.

        Only device and inode are compared, not size and modification time.
        """
        ...

    def open(self, kind: FileKind) -> int | None:
        """Open a file and return its descriptor; None if there is no such link. Raises OSError."""
        ...

    def is_last_name(self) -> bool:
        """Return whether only these links keep the bytes on the disk. Raises OSError."""
        ...

    def is_committed(self) -> bool:
        """Return whether `mark_committed` was called for this segment."""
        ...

    def mark_committed(self) -> None:
        """Note for the sidecar's next process that the segment is committed. Raises OSError."""
        ...

    def remove(self) -> None:
        """Remove the links, and log those that cannot be removed. May be called twice."""
        ...


@dataclass(frozen=True, slots=True)
class SegmentTimes:
    """Times of a closed segment, in seconds since 1970.

    Attributes:
        largest_timestamp: The time from which Kafka counts `retention.ms`
            (`LogSegment.largestTimestamp`): the largest timestamp of a record, from the last entry
            of the time index. If the index has no entry, the time of the last append.
        rolled: When the broker closed the segment, but not before the last append. It is the
            modification time of the indexes: the broker trims both when it rolls the segment, and
            does not write them again. A broker that was killed may rebuild them; then this is the
            time of its restart.
    """

    largest_timestamp: float
    rolled: float


@dataclass(slots=True)
class PinnedSegment:
    """Open files of one closed segment.

    Attributes:
        directory: The partition's directory when the segment was pinned.
        segment: The segment as in the listing.
        identity: Device, inode, size and modification time of the `.log` when it was pinned.
        descriptors: The open files. The `.log` is always open; an index may be missing.
        closed: Called once with the number of descriptors and the size of the `.log`.
        lacking: Optional files that may exist but could not be opened, each with the reason.
        own_links: Number of hard links to the `.log` that the sidecar has made in the spool.
    """

    directory: str
    segment: ClosedSegment
    identity: FileIdentity
    descriptors: dict[FileKind, int] = field(default_factory=dict)
    closed: Callable[[int, int], None] = lambda _files, _size: None
    lacking: dict[FileKind, str] = field(default_factory=dict)
    own_links: int = 0

    @property
    def log(self) -> int:
        """The descriptor of the `.log`."""
        return self.descriptors[FileKind.LOG]

    @property
    def name(self) -> str:
        """Path of the `.log`, for messages."""
        return os.path.join(
            self.directory, segment_file_name(self.segment.base_offset, FileKind.LOG)
        )

    def unlinked(self) -> bool:
        """Whether only the sidecar keeps the `.log`: the broker has unlinked it. Raises OSError."""
        # The broker may delete the file by any name, so the path proves nothing. The link count
        # does: it falls to the links of the sidecar when the broker's own name is gone.
        return os.fstat(self.log).st_nlink <= self.own_links

    def check_unchanged(self) -> None:
        """Raise SegmentChangedError if the file was rewritten in place since it was pinned."""
        now = FileIdentity.of(os.fstat(self.log))
        if now != self.identity:
            message = f"{self.name} changed while it was pinned: {self.identity} became {now}"
            raise SegmentChangedError(message)

    def times(self) -> "SegmentTimes":
        """Read the segment's times from the open files. Raises OSError."""
        modified = self.identity.modified_ns / 1e9
        indexes = (FileKind.INDEX, FileKind.TIMEINDEX)
        descriptors = [self.descriptors[kind] for kind in indexes if kind in self.descriptors]
        trimmed = min((os.fstat(fd).st_mtime_ns / 1e9 for fd in descriptors), default=modified)
        time_index = self.descriptors.get(FileKind.TIMEINDEX)
        largest = None if time_index is None else read_largest_timestamp(time_index)
        return SegmentTimes(modified if largest is None else largest, max(modified, trimmed))

    def close(self) -> None:
        """Close the files. May be called twice."""
        if not self.descriptors:
            return
        files = len(self.descriptors)
        while self.descriptors:
            _, descriptor = self.descriptors.popitem()
            with contextlib.suppress(OSError):  # Linux frees the descriptor even if close(2) fails
                os.close(descriptor)
        self.closed(files, self.identity.size)


def pin(
    directory: str,
    segment: ClosedSegment,
    closed: Callable[[int, int], None] = lambda _files, _size: None,
) -> PinnedSegment:
    """Open the files of a closed segment under their names, or under their `.deleted` names.

    Args:
        directory: The partition's directory.
        segment: The segment.
        closed: Called with the number of files and the segment's bytes when they are closed.

    Raises:
        SegmentGoneError: the `.log` no longer has either name.
        OSError: the `.log` or an index cannot be opened, or too many files are open.
    """
    descriptors: dict[FileKind, int] = {}
    lacking: dict[FileKind, str] = {}
    try:
        # The `.log` is opened first: by its link count `_open_optional` decides whether a file that
        # was not found may have existed.
        for kind in REQUIRED_KINDS:
            descriptor = _open(directory, segment.base_offset, kind)
            if descriptor is not None:
                descriptors[kind] = descriptor
            elif kind is FileKind.LOG:
                _gone(directory, segment.base_offset)
        for kind in OPTIONAL_KINDS:
            _open_optional(directory, segment.base_offset, kind, descriptors, lacking)
        identity = FileIdentity.of(os.fstat(descriptors[FileKind.LOG]))
    except BaseException:
        for descriptor in descriptors.values():
            os.close(descriptor)
        raise
    return PinnedSegment(directory, segment, identity, descriptors, closed, lacking)


def pin_spooled(
    directory: str,
    spooled: SpooledFiles,
    closed: Callable[[int, int], None] = lambda _files, _size: None,
) -> PinnedSegment:
    """Open the files of a closed segment in the spool.

    Args:
        directory: The partition's directory in the log dir, for messages.
        spooled: The segment's files in the spool.
        closed: Called with the number of files and the segment's bytes when they are closed.

    Raises:
        SegmentGoneError: the `.log` is gone.
        OSError: a file cannot be opened.
    """
    base = spooled.segment.base_offset
    descriptors: dict[FileKind, int] = {}
    try:
        for kind in (*REQUIRED_KINDS, *OPTIONAL_KINDS):
            descriptor = spooled.open(kind)
            if descriptor is not None:
                descriptors[kind] = descriptor
            elif kind is FileKind.LOG:
                _gone(directory, base)
        identity = FileIdentity.of(os.fstat(descriptors[FileKind.LOG]))
    except BaseException:
        for descriptor in descriptors.values():
            os.close(descriptor)
        raise
    # The spool links the `.index` last. Without it, a kill has interrupted the linking, and an
    # optional file may exist that was never linked.
    cut_off = "" if FileKind.INDEX in descriptors else "its names in the spool are not complete"
    lacking = {kind: cut_off for kind in OPTIONAL_KINDS if cut_off and kind not in descriptors}
    return PinnedSegment(
        directory, spooled.segment, identity, descriptors, closed, lacking, own_links=1
    )


def _gone(directory: str, base: BaseOffset) -> NoReturn:
    path = os.path.join(directory, segment_file_name(base, FileKind.LOG))
    raise SegmentGoneError(f"{path} is gone, also as .deleted")


def _open(directory: str, base: BaseOffset, kind: FileKind) -> int | None:
    """Open a file under its live name, or else under its `.deleted` name.

    The broker renames only from live to `.deleted`, so in this order no rename hides the file.
    """
    for deleted in (False, True):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path = os.path.join(directory, segment_file_name(base, kind, deleted=deleted))
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    return None


def _open_optional(
    directory: str,
    base: BaseOffset,
    kind: FileKind,
    descriptors: dict[FileKind, int],
    lacking: dict[FileKind, str],
) -> None:
    """Open an optional file if it exists. Note in `lacking` why it could not be opened.

    The broker renames and unlinks the `.log` before the other files. While the `.log` has a name,
    an optional file that is not found does not exist. Afterwards it may have been unlinked.
    """
    try:
        descriptor = _open(directory, base, kind)
    except OSError as error:
        if error.errno in _TOO_MANY_FILES:
            raise
        lacking[kind] = str(error)
        return
    if descriptor is None:
        if os.fstat(descriptors[FileKind.LOG]).st_nlink == 0:
            lacking[kind] = "the segment was unlinked while its files were opened"
    elif kind is FileKind.SNAPSHOT and os.fstat(descriptor).st_size == EMPTY_SNAPSHOT_BYTES:
        os.close(descriptor)  # a snapshot without producers is not worth a descriptor and an object
    else:
        descriptors[kind] = descriptor


def log_size(directory: str, base: BaseOffset) -> int:
    """Return the size of a live segment's `.log` in bytes; 0 if it is gone."""
    try:
        return os.stat(os.path.join(directory, segment_file_name(base, FileKind.LOG))).st_size
    except OSError:
        return 0


def read_largest_timestamp(time_index: int) -> float | None:
    """Return the largest timestamp in an open `.timeindex`, in seconds since 1970; None without an
    entry. Raises OSError.
    """
    size = os.fstat(time_index).st_size
    position = max(0, size - TIMEINDEX_ENTRY_BYTES)
    entry = os.pread(time_index, TIMEINDEX_ENTRY_BYTES, position)
    timestamp = last_timestamp(entry, size)
    return None if timestamp is None else timestamp / 1000


def is_live(directory: str, pinned: PinnedSegment) -> bool:
    """Return whether the pinned file, unchanged, has its live name in this directory.

    If so, the segment is a part of the log.
    """
    name = segment_file_name(pinned.segment.base_offset, FileKind.LOG)
    try:
        return FileIdentity.of(os.stat(os.path.join(directory, name))) == pinned.identity
    except (FileNotFoundError, NotADirectoryError):
        return False


def still_the_same(directory: str, pinned: PinnedSegment) -> bool:
    """Return whether the live name leads to the pinned file, unchanged, or does not exist."""
    return not _leads_elsewhere(directory, pinned, deleted=False)


def has_successor(directory: str, pinned: PinnedSegment) -> bool:
    """Return whether the live or the `.deleted` name of the segment leads to another file now."""
    return any(_leads_elsewhere(directory, pinned, deleted=deleted) for deleted in (False, True))


def _leads_elsewhere(directory: str, pinned: PinnedSegment, *, deleted: bool) -> bool:
    name = segment_file_name(pinned.segment.base_offset, FileKind.LOG, deleted=deleted)
    try:
        return FileIdentity.of(os.stat(os.path.join(directory, name))) != pinned.identity
    except (FileNotFoundError, NotADirectoryError):
        return False

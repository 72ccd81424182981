"""Pins: a closed segment's files are opened at once and stay open until they are stored.

An open descriptor survives the rename to `.deleted` and the unlink; it does not survive a crash of
this process, after which the listing shows what is left.
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
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset, TopicPartition
from sidetier.segments.producer_snapshot import EMPTY_SNAPSHOT_BYTES
from sidetier.uploader.sending.reading import FileIdentity


class Urgency(NamedTuple):
    """Sorts what the broker deletes first to the front: staged segments, then by the end of their
    retention, in seconds since 1970, infinity for never.
    """

    live: bool
    expires_at: float


class PinPriority(NamedTuple):
    """Sorts pins: those of led partitions first, and in both groups by urgency."""

    followed: bool
    urgency: Urgency


@dataclass(frozen=True, slots=True)
class HeldPin:
    """A pin that alone keeps `size` bytes on the disk."""

    topic_partition: TopicPartition
    base_offset: BaseOffset
    size: int
    pin_priority: PinPriority


def pins_to_release(held: Sequence[HeldPin], excess: int) -> tuple[HeldPin, ...]:
    """The pins to let go, so that at least `excess` bytes are freed.

    A follower's go first: the leader's sidecar most likely stores their records. Then the newest
    do: what is uploaded next is then still there, and the gap that this leaves behind the
    watermark is as late as it can be.
    """
    released = []
    for pin in sorted(held, key=lambda pin: (pin.pin_priority, pin.base_offset), reverse=True):
        if excess <= 0:
            break
        released.append(pin)
        excess -= pin.size
    return tuple(released)


PINNED_KINDS: Final = (FileKind.LOG, FileKind.INDEX, FileKind.TIMEINDEX)
"""What every segment has."""
OPTIONAL_KINDS: Final = (FileKind.TXNINDEX, FileKind.SNAPSHOT)
"""What some segments have besides."""

_TOO_MANY_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})


class SpooledFiles(Protocol):
    """Second names of a closed segment's files."""

    @property
    def directory(self) -> str:
        """The directory of the names."""
        ...

    @property
    def segment(self) -> ClosedSegment:
        """Which segment it is."""
        ...

    def leads_to(self, identity: FileIdentity) -> bool:
        """Whether the `.log` is this file, in whatever state; raises OSError."""
        ...

    def open(self, kind: FileKind) -> int | None:
        """A descriptor; None where there is no such file; raises OSError."""
        ...

    def is_last_name(self) -> bool:
        """Only these names keep the bytes on the disk; raises OSError."""
        ...

    def is_committed(self) -> bool:
        """Whether `mark_committed` was called for this file."""
        ...

    def mark_committed(self) -> None:
        """Have a later life of the sidecar know that the segment is committed; raises OSError."""
        ...

    def remove(self) -> None:
        """Remove the names; may be called twice. Logs a name that cannot be removed."""
        ...


@dataclass(frozen=True, slots=True)
class SegmentTimes:
    """Moments of a closed segment, in seconds since 1970.

    `largest_timestamp` is what Kafka counts retention.ms from (`LogSegment.largestTimestamp`): the
    last entry of the time index, which is the largest timestamp of a record; the last append where
    the index has no entry.

    `rolled` is when the broker closed the segment: it trims both indexes then, and writes neither
    of them again. A broker that was killed may rebuild both; then it is the time of that restart.
    Never before the last append.
    """

    largest_timestamp: float
    rolled: float


@dataclass(slots=True)
class PinnedSegment:
    """Open descriptors of one closed segment; an index may be missing, the `.log` is there.

    `lacking` has the optional files that could not be opened although they may exist, and why.
    `own_links` is how many of the `.log`'s names are ours, in the spool.
    `closed` is called once with the number of descriptors and the `.log`'s size.
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
        """The `.log`'s path, for messages."""
        return os.path.join(
            self.directory, segment_file_name(self.segment.base_offset, FileKind.LOG)
        )

    def unlinked(self) -> bool:
        """Whether the broker has unlinked the `.log`, so that only the sidecar keeps its bytes.

        Raises:
            OSError: the file system does not answer.
        """
        return os.fstat(self.log).st_nlink <= self.own_links

    def check_unchanged(self) -> None:
        """Raise SegmentChangedError when the file was rewritten in place since it was pinned."""
        now = FileIdentity.of(os.fstat(self.log))
        if now != self.identity:
            message = f"{self.name} changed while it was pinned: {self.identity} became {now}"
            raise SegmentChangedError(message)

    def times(self) -> "SegmentTimes":
        """What the open files tell; raises OSError where they cannot be read."""
        modified = self.identity.modified_ns / 1e9
        indexes = (FileKind.INDEX, FileKind.TIMEINDEX)
        descriptors = [self.descriptors[kind] for kind in indexes if kind in self.descriptors]
        trimmed = min((os.fstat(fd).st_mtime_ns / 1e9 for fd in descriptors), default=modified)
        time_index = self.descriptors.get(FileKind.TIMEINDEX)
        largest = None if time_index is None else read_largest_timestamp(time_index)
        return SegmentTimes(modified if largest is None else largest, max(modified, trimmed))

    def close(self) -> None:
        """Let the files go; may be called twice."""
        if not self.descriptors:
            return
        files = len(self.descriptors)
        while self.descriptors:
            _, descriptor = self.descriptors.popitem()
            with contextlib.suppress(OSError):  # Linux frees the descriptor whatever close(2) says
                os.close(descriptor)
        self.closed(files, self.identity.size)


def pin(
    directory: str,
    segment: ClosedSegment,
    closed: Callable[[int, int], None] = lambda _files, _size: None,
) -> PinnedSegment:
    """Open the files of a closed segment by their names, or by their `.deleted` names.

    `closed` is called once with their number and the `.log`'s size, when they are let go.

    Raises:
        SegmentGoneError: the `.log` has neither name any more.
        OSError: the `.log` or an index cannot be opened, or too many files are open.
    """
    descriptors: dict[FileKind, int] = {}
    lacking: dict[FileKind, str] = {}
    try:
        for kind in PINNED_KINDS:
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
    """Open the files of a closed segment by their names in the spool, of the partition that lies in
    `directory`.

    Raises:
        SegmentGoneError: the `.log` is not there.
        OSError: a file cannot be opened.
    """
    base = spooled.segment.base_offset
    descriptors: dict[FileKind, int] = {}
    try:
        for kind in (*PINNED_KINDS, *OPTIONAL_KINDS):
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
    cut_off = "" if FileKind.INDEX in descriptors else "its names in the spool are not complete"
    lacking = {kind: cut_off for kind in OPTIONAL_KINDS if cut_off and kind not in descriptors}
    return PinnedSegment(
        directory, spooled.segment, identity, descriptors, closed, lacking, own_links=1
    )


def _gone(directory: str, base: BaseOffset) -> NoReturn:
    path = os.path.join(directory, segment_file_name(base, FileKind.LOG))
    raise SegmentGoneError(f"{path} is gone, also as .deleted")


def _open(directory: str, base: BaseOffset, kind: FileKind) -> int | None:
    """The live name first; a file renamed between the two looks is found under the second."""
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
    """Open it where it is there; note why where that cannot be done or told.

    A broker renames and unlinks the `.log` first. While that has a name, what is not found does not
    exist; afterwards it may have existed.
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
        os.close(descriptor)  # no producer: nothing to keep
    else:
        descriptors[kind] = descriptor


def log_size(directory: str, base: BaseOffset) -> int:
    """Bytes of a live segment's `.log`; 0 where it is gone."""
    try:
        return os.stat(os.path.join(directory, segment_file_name(base, FileKind.LOG))).st_size
    except OSError:
        return 0


def read_largest_timestamp(time_index: int) -> float | None:
    """From an open `.timeindex` of a closed segment, in seconds since 1970; None where it has none.

    Raises:
        OSError: it cannot be read.
    """
    size = os.fstat(time_index).st_size
    position = max(0, size - TIMEINDEX_ENTRY_BYTES)
    entry = os.pread(time_index, TIMEINDEX_ENTRY_BYTES, position)
    timestamp = last_timestamp(entry, size)
    return None if timestamp is None else timestamp / 1000


def is_live(directory: str, pinned: PinnedSegment) -> bool:
    """Whether the pinned file, as it was, has its live name in this directory: the segment is a
    part of the log.
    """
    name = segment_file_name(pinned.segment.base_offset, FileKind.LOG)
    try:
        return FileIdentity.of(os.stat(os.path.join(directory, name))) == pinned.identity
    except (FileNotFoundError, NotADirectoryError):
        return False


def still_the_same(directory: str, pinned: PinnedSegment) -> bool:
    """Whether the live name, where there is one, still leads to the pinned file as it was."""
    return not _leads_elsewhere(directory, pinned, deleted=False)


def has_successor(directory: str, pinned: PinnedSegment) -> bool:
    """Whether one of its names, live or `.deleted`, leads to another file now."""
    return any(_leads_elsewhere(directory, pinned, deleted=deleted) for deleted in (False, True))


def _leads_elsewhere(directory: str, pinned: PinnedSegment, *, deleted: bool) -> bool:
    name = segment_file_name(pinned.segment.base_offset, FileKind.LOG, deleted=deleted)
    try:
        return FileIdentity.of(os.stat(os.path.join(directory, name))) != pinned.identity
    except (FileNotFoundError, NotADirectoryError):
        return False

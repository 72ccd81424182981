"""A hard-link spool: what a restart of the sidecar must not cost.

Beside every pin of a closed segment a second name of its files stands in a directory of ours, on
the same mount and outside the log dirs:

    <spool>/<cluster>/<topic>-<partition>/<topic id>/<base offset>-<next offset>.log | .index | …

A link needs no copy, and keeps the bytes on the disk after the broker's unlink: the bounds of pins
hold for it. The `.log` is linked first, the `.index` last: a `.log` without an `.index` is what a
kill in between leaves, and is whole but for indexes, which can be rebuilt. An empty file
`<base offset>-<next offset>.committed` marks a segment that is known to be committed: the broker's
checkpoint may have dropped the leader epochs that prove it, when the sidecar comes back. Beside the
segments `leader-epoch-checkpoint` has the epochs that the sidecar remembers (`EpochHistory`).
"""

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from sidetier.config.startup import META_PROPERTIES
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.listing import ClosedSegment
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset
from sidetier.uploader.pinning.pins import PinnedSegment
from sidetier.uploader.sending.reading import FileIdentity
from sidetier.uploader.watching.disk import EPOCH_CHECKPOINT_NAME

if TYPE_CHECKING:
    from sidetier.uploader.state.partition import Partition


log: Final = structlog.get_logger()

_ORDER: Final = (
    FileKind.LOG,
    FileKind.TIMEINDEX,
    FileKind.TXNINDEX,
    FileKind.SNAPSHOT,
    FileKind.INDEX,
)
_LOG_NAME: Final = re.compile(r"([0-9]{20})-([0-9]{20})\.log")
_COMMITTED: Final = ".committed"
_OPEN_FILE: Final = "/proc/self/fd/{}"


@dataclass(frozen=True, slots=True)
class SpooledSegment:
    """The names of one closed segment in the spool; its `.log` is there."""

    directory: str
    segment: ClosedSegment

    def path(self, kind: FileKind) -> str:
        """Where a file of it stands, if it does."""
        return self._stem + kind.value

    @property
    def mark(self) -> str:
        """The path of the file that marks the segment as committed."""
        return self._stem + _COMMITTED

    @property
    def _stem(self) -> str:
        base, following = self.segment.base_offset, self.segment.next_base or 0
        return os.path.join(self.directory, f"{base:020d}-{following:020d}")

    def open(self, kind: FileKind) -> int | None:
        """A descriptor; None where there is no such file."""
        try:
            return os.open(self.path(kind), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None

    def leads_to(self, identity: FileIdentity) -> bool:
        """Whether the `.log` is this file, in whatever state; raises OSError."""
        try:
            found = os.stat(self.path(FileKind.LOG))
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) == (identity.device, identity.inode)

    def is_last_name(self) -> bool:
        """Whether the broker has unlinked the `.log`: only the spool keeps its bytes on the disk.

        Raises:
            OSError: the file system does not answer.
        """
        try:
            return os.stat(self.path(FileKind.LOG)).st_nlink == 1
        except FileNotFoundError:
            return False

    def is_complete(self) -> bool:
        """Every file that was linked once is there."""
        return os.path.exists(self.path(FileKind.INDEX))

    def is_committed(self) -> bool:
        """Whether `mark_committed` was called for this file; False where that cannot be told."""
        return os.path.exists(self.mark)

    def mark_committed(self) -> None:
        """Create the file that says so; raises OSError."""
        with open(self.mark, "ab"):
            pass

    def remove(self) -> None:
        """Remove its names, the `.log`'s last: what a kill leaves is found again by that. A name
        that cannot be removed is logged; the next start finds it, and removes it.
        """
        try:
            _unlink(self.mark)
            for kind in reversed(_ORDER):
                _unlink(self.path(kind))
        except OSError as error:
            log.warning("spool.not_removed", path=self.path(FileKind.LOG), error=str(error))


class Spool:
    """The spool directories of this broker.

    `spools` maps log dirs to spool directories. A log dir that is missing there could not be read
    at the start: `find_spool` is asked for its spool once a partition is found in it, and returns
    None where there is none.
    """

    def __init__(
        self,
        spools: Mapping[str, str],
        cluster: str,
        find_spool: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        self._cluster = cluster
        self._find_spool = find_spool
        self._homes: dict[str, str | None] = {
            log_dir: os.path.join(spool, cluster) for log_dir, spool in spools.items()
        }
        self.untaken: dict[str, Partition] = {}
        """Segments from before the start that no partition of the daemon has taken over, by their
        directory in the spool. The bounds of pins hold for them, too.
        """

    @property
    def homes(self) -> list[str]:
        """The directories that hold the partitions' directories, each once."""
        return list(dict.fromkeys(home for home in self._homes.values() if home is not None))

    def place(self, directory: str, topic_id: str) -> str | None:
        """Where segments of the partition in this directory are kept; None where they are not."""
        home = self._home(os.path.dirname(directory))
        return None if home is None else os.path.join(home, os.path.basename(directory), topic_id)

    def places(self, directory: str, topic_id: str) -> list[str]:
        """Where segments of the partition may have been kept: first where they are kept now. A
        partition that has moved between log dirs can have left some in the spool of another one.
        """
        first = self.place(directory, topic_id)
        name = os.path.basename(directory)
        others = [os.path.join(home, name, topic_id) for home in self.homes]
        return list(dict.fromkeys([*([first] if first else []), *others]))

    def _home(self, log_dir: str) -> str | None:
        if log_dir not in self._homes:
            spool = self._find_spool(log_dir)
            self._homes[log_dir] = None if spool is None else os.path.join(spool, self._cluster)
        return self._homes[log_dir]

    def keep(self, place: str, pinned: PinnedSegment) -> SpooledSegment | None:
        """Give the files of a pinned segment their second names.

        None where that cannot be: its end is not known, the broker has unlinked it already, or the
        disk refuses, which is logged. The pin is as good as without a spool.
        """
        if pinned.segment.next_base is None:
            return None
        spooled = SpooledSegment(place, pinned.segment)
        try:
            if pinned.unlinked():
                return None
            os.makedirs(place, exist_ok=True)
            _unlink(spooled.mark)  # it may be of another file of that name
            for kind in _ORDER:
                if kind in pinned.descriptors:
                    _link_unless_obsolete(kind, pinned.descriptors[kind], spooled.path(kind))
        except OSError as error:
            spooled.remove()
            log.warning("spool.failed", path=spooled.path(FileKind.LOG), error=str(error))
            return None
        pinned.own_links = 1
        return spooled


def spooled_in(place: str) -> Iterator[SpooledSegment]:
    """The segments in one directory of the spool, by rising base offset; raises OSError."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for name in sorted(os.listdir(place)):
            match = _LOG_NAME.fullmatch(name)
            if match is not None:
                base, following = BaseOffset(int(match[1])), BaseOffset(int(match[2]))
                yield SpooledSegment(
                    place, ClosedSegment(base, following, marked_for_deletion=True)
                )


def sweep(place: str) -> None:
    """Remove what belongs to no `.log`, as a kill during a removal leaves it; raises OSError."""
    left = list(spooled_in(place))
    whole = {one.path(kind) for one in left for kind in _ORDER} | {one.mark for one in left}
    if left:
        whole.add(os.path.join(place, EPOCH_CHECKPOINT_NAME))
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for name in os.listdir(place):
            path = os.path.join(place, name)
            if path not in whole:
                _unlink(path)
    with contextlib.suppress(OSError):  # not empty, or gone
        os.rmdir(place)


def _link_unless_obsolete(kind: FileKind, descriptor: int, target: str) -> None:
    """As `_link`; a producer snapshot that has no name any more is left out: the broker deletes
    all but the newest ones before their segments.
    """
    try:
        _link(descriptor, target)
    except FileNotFoundError:
        if kind is not FileKind.SNAPSHOT:
            raise


def _link(descriptor: int, target: str) -> None:
    """A name for an open file, whatever it is called by now; another file under it gives way.

    Raises:
        OSError: it has no name any more (ENOENT), or may not have another one.
    """
    directory = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        source = _OPEN_FILE.format(descriptor)
        try:
            # With a directory's descriptor Python calls linkat(2) and follows /proc's link.
            os.link(source, target, src_dir_fd=directory, follow_symlinks=True)
        except FileExistsError:
            if os.path.samestat(os.fstat(descriptor), os.stat(target)):
                return
            os.unlink(target)
            os.link(source, target, src_dir_fd=directory, follow_symlinks=True)
    finally:
        os.close(directory)


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_FAILED: Final = frozenset({errno.EIO, errno.EROFS})
"""What a failed disk says; a file system may make itself read-only then."""
_PROBE: Final = ".probe-{}"
_REASONS: Final[Mapping[int, str]] = {
    errno.EXDEV: "it is on another mount: mount the volume once, above both, and give both as "
    "directories of that mount",
    errno.EPERM: "this process may not link the broker's files: run as the broker's user, or with "
    "read and write access to its files (fs.protected_hardlinks), on a file system that has links",
    errno.EACCES: "this process may not write there",
    errno.EROFS: "it is read-only",
}


def spool_homes(log_dirs: Iterable[str], spools: Iterable[str]) -> dict[str, str]:
    """For each log dir that can be read, the spool on its file system, where a link has just been
    made and removed. A log dir whose disk has failed is left out, and a warning logged, while there
    is another one.

    Raises:
        ConfigurationError: a log dir has no spool, or links are refused.
    """
    known = list(spools)
    homes: dict[str, str] = {}
    failed: list[ConfigurationError] = []
    for log_dir in filter(_is_readable, log_dirs):
        try:
            homes[log_dir] = _home_of(log_dir, known)
        except ConfigurationError as error:
            cause = error.__cause__
            if not (isinstance(cause, OSError) and cause.errno in _FAILED):
                raise
            log.warning("spool.refused", log_dir=log_dir, error=str(error))
            failed.append(error)
    if failed and not homes:
        raise failed[0]
    return homes


def late_home(log_dir: str, spools: Iterable[str]) -> str | None:
    """The spool of a log dir that could not be read at the start. None, and a warning in the log,
    where it has none: its segments are held open alone.
    """
    try:
        return _home_of(log_dir, list(spools))
    except ConfigurationError as error:
        log.warning("spool.refused", log_dir=log_dir, error=str(error))
        return None


def _is_readable(log_dir: str) -> bool:
    try:
        with open(os.path.join(log_dir, META_PROPERTIES), "rb") as file:
            return bool(file.read())
    except OSError:
        return False


def _home_of(log_dir: str, spools: list[str]) -> str:
    wanted, missing = _device(log_dir), []
    for spool in spools:
        device = _device(spool)
        if isinstance(device, OSError):  # a failed disk takes log dir and spool
            missing.append(f"; {spool}: {device.strerror}")
        elif device == wanted:
            _probe(log_dir, spool)
            return spool
    raise ConfigurationError(
        f"uploader.pins.spool: none of {', '.join(spools)} is on the file system of the log dir "
        f"{log_dir}: name one directory for each mount{''.join(missing)}"
    )


def _device(path: str) -> int | OSError:
    try:
        return os.stat(path).st_dev
    except OSError as error:
        return error


def _probe(log_dir: str, spool: str) -> None:
    """A second name for a small file of the broker's, for a moment."""
    source = os.path.join(log_dir, META_PROPERTIES)
    target = os.path.join(spool, _PROBE.format(os.getpid()))
    try:
        with suppress(FileNotFoundError):
            os.unlink(target)
        os.link(source, target)
        os.unlink(target)
    except OSError as error:
        if error.errno in _FULL:
            return  # links are allowed, and there will be room
        reason = _REASONS.get(error.errno or 0, error.strerror)
        raise ConfigurationError(
            f"uploader.pins.spool: {spool} cannot take links from the log dir {log_dir}: {reason}"
        ) from error

"""The spool: hard links to the files of segments that are not stored yet.

A restart of the sidecar closes its descriptors, so that deleted segments would be lost. The links
keep them. They are in a directory of the sidecar, on the same mount as the log dir and outside it:

    <spool>/<cluster>/<topic>-<partition>/<topic id>/<base offset>-<next offset>.log | .index | …

A link copies no bytes, but keeps them on the disk after the broker has unlinked its own name. So
the limits of pins also apply to the spool.

The `.log` is linked first and the `.index` last. A kill in between leaves a `.log` without an
`.index`: its records are complete and indexes can be rebuilt, but optional files may be missing.

An empty file `<base offset>-<next offset>.committed` marks a segment that is known to be committed.
After a restart the broker's checkpoint may have dropped the leader epochs that would prove it. The
file `leader-epoch-checkpoint` beside the segments has the epochs that the sidecar remembers
(`RememberedEpochs`).
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
    """The links of one closed segment in the spool. Implements `pins.SpooledFiles`."""

    directory: str
    segment: ClosedSegment

    def path(self, kind: FileKind) -> str:
        """Return the path of a file's link, whether or not it exists."""
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
        """Open a file and return its descriptor; None if there is no such link. Raises OSError."""
        try:
            return os.open(self.path(kind), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None

    def leads_to(self, identity: FileIdentity) -> bool:
        """Return whether the link of the `.log` leads to this inode. Raises OSError."""
        try:
            status = os.stat(self.path(FileKind.LOG))
        except FileNotFoundError:
            return False
        return (status.st_dev, status.st_ino) == (identity.device, identity.inode)

    def is_last_name(self) -> bool:
        """Return whether only the spool keeps the `.log`. Raises OSError."""
        try:
            return os.stat(self.path(FileKind.LOG)).st_nlink == 1
        except FileNotFoundError:
            return False

    def is_complete(self) -> bool:
        """Return whether all files were linked, and not only a part of them before a kill."""
        return os.path.exists(self.path(FileKind.INDEX))

    def is_committed(self) -> bool:
        """Return whether the segment is marked as committed; False also on a disk error."""
        return os.path.exists(self.mark)

    def mark_committed(self) -> None:
        """Create the file that marks the segment as committed. Raises OSError."""
        with open(self.mark, "ab"):
            pass

    def remove(self) -> None:
        """Remove the links. Log those that cannot be removed; the next start removes them.

        The `.log` is removed last: the next start finds a segment by its `.log`, also if a kill has
        left only a part of the links.
        """
        try:
            _unlink(self.mark)
            for kind in reversed(_ORDER):
                _unlink(self.path(kind))
        except OSError as error:
            log.warning("spool.not_removed", path=self.path(FileKind.LOG), error=str(error))


class Spool:
    """The spool directories of this broker.

    Args:
        spools: The spool directory of each log dir that could be read at the start.
        cluster: Name of the cluster's directory in the spool.
        find_spool: Returns the spool directory of another log dir when a partition appears in it;
            None if it has none.
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
        """Segments of an earlier process that no partition has taken over yet, by their directory
        in the spool. The limits of pins apply to them, too.
        """

    @property
    def homes(self) -> list[str]:
        """The directories of this cluster in all spools, without duplicates."""
        return list(dict.fromkeys(home for home in self._homes.values() if home is not None))

    def place(self, directory: str, topic_id: str) -> str | None:
        """Return the spool directory of the partition in this directory; None without a spool."""
        home = self._home(os.path.dirname(directory))
        return None if home is None else os.path.join(home, os.path.basename(directory), topic_id)

    def places(self, directory: str, topic_id: str) -> list[str]:
        """Return all spool directories that may have segments of the partition, its own first.

        After a move between log dirs, the spool of the earlier log dir may still have some.
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
        """Link the files of a pinned segment into the spool.

        Returns:
            The links. None if the segment's end is not known, the broker has unlinked the `.log`
            already, or the disk refuses the links, which is logged. The pin is valid all the same.
        """
        if pinned.segment.next_base is None:
            return None
        spooled = SpooledSegment(place, pinned.segment)
        try:
            if pinned.unlinked():
                return None
            os.makedirs(place, exist_ok=True)
            # The mark may be of an earlier file of this name. It is removed before the `.log` is
            # linked: otherwise a kill in between would leave an uncommitted file with a mark.
            _unlink(spooled.mark)
            for kind in _ORDER:
                if kind in pinned.descriptors:
                    _link_unless_obsolete(kind, pinned.descriptors[kind], spooled.path(kind))
        except OSError as error:
            # Links that are only a part of the segment would look,
            # after a restart, like those that a kill has interrupted.
            spooled.remove()
            log.warning("spool.failed", path=spooled.path(FileKind.LOG), error=str(error))
            return None
        pinned.own_links = 1
        return spooled


def spooled_in(place: str) -> Iterator[SpooledSegment]:
    """Yield the segments in one directory of the spool, by rising base offset. Raises OSError.

    They count as marked for deletion: in the log dir, the broker may have deleted them.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for name in sorted(os.listdir(place)):
            match = _LOG_NAME.fullmatch(name)
            if match is not None:
                base, following = BaseOffset(int(match[1])), BaseOffset(int(match[2]))
                yield SpooledSegment(
                    place, ClosedSegment(base, following, marked_for_deletion=True)
                )


def sweep(place: str) -> None:
    """Remove files without a `.log`, such as a mark that a kill has left. Raises OSError."""
    left = list(spooled_in(place))
    whole = {spooled.path(kind) for spooled in left for kind in _ORDER}
    whole |= {spooled.mark for spooled in left}
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
    """Link a file as `_link` does, but skip a producer snapshot that was unlinked meanwhile.

    The broker deletes all but the newest snapshots, before the segments that they belong to.
    """
    try:
        _link(descriptor, target)
    except FileNotFoundError:
        if kind is not FileKind.SNAPSHOT:
            raise


def _link(descriptor: int, target: str) -> None:
    """Link an open file under the path `target`, and replace another file of that path.

    The descriptor is the source, not a path, because the broker may have renamed the file.

    Raises:
        OSError: the file was unlinked (ENOENT), or the file system refuses the link.
    """
    directory = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        source = _OPEN_FILE.format(descriptor)
        try:
            # Python uses linkat(2) with AT_SYMLINK_FOLLOW only if it gets a directory's descriptor.
            # Without that flag, the link would be to the symbolic link in /proc, another mount.
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
"""Errors of a failed disk. EROFS: a file system may become read-only after an I/O error."""
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
    """Find the spool of each log dir that can be read, and test that it takes hard links.

    A log dir whose disk has failed is logged and left out, unless every disk has failed.

    Returns:
        The spool directory of each log dir.

    Raises:
        ConfigurationError: a log dir has no spool on its mount, or hard links are refused.
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
    """Return the spool directory of a log dir that could not be read at the start.

    None, with a warning in the log, if there is none: the log dir's segments are then only pinned,
    and do not survive a restart after their deletion.
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
        if isinstance(device, OSError):  # perhaps the spool on the failed disk of the log dir
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
    """Link a small file of the broker into the spool, and remove the link, to test permissions.

    Raises:
        ConfigurationError: the link is refused for a reason other than a full disk.
    """
    source = os.path.join(log_dir, META_PROPERTIES)
    target = os.path.join(spool, _PROBE.format(os.getpid()))
    try:
        with suppress(FileNotFoundError):
            os.unlink(target)
        os.link(source, target)
        os.unlink(target)
    except OSError as error:
        if error.errno in _FULL:
            return  # the links are allowed; retention will free space
        reason = _REASONS.get(error.errno or 0, error.strerror)
        raise ConfigurationError(
            f"uploader.pins.spool: {spool} cannot take links from the log dir {log_dir}: {reason}"
        ) from error

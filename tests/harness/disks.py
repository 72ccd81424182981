"""Disks for a log dir that a test fills, breaks or removes while a broker uses them."""

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, Protocol

from tests.harness.waiting import wait_until

Failure = Literal["unreadable", "torn", "absent"]
"""Ways in which a disk fails.

`unreadable`: each read and write returns EIO; written data exists again after the repair.
`torn`: the same, and data that was not synced is lost, as after a power failure.
`absent`: the mount is gone, and an empty directory takes its place.
"""

_SIZE: Final = 128 * 1024 * 1024
_INODES: Final = 8192
_UNMOUNT_SECONDS: Final = 60.0
_EXT4_SHUTDOWN: Final = 0x8004587D  # EXT4_IOC_SHUTDOWN
_SHUTDOWN_FLAGS: Final[dict[Failure, int]] = {
    "unreadable": 0,  # EXT4_GOING_FLAGS_DEFAULT: writes everything first
    "torn": 2,  # EXT4_GOING_FLAGS_NOLOGFLUSH
}


class Disk(Protocol):
    """A directory that is a separate disk, or that simulates one."""

    path: Path

    def fill(self) -> None:
        """Fill the disk, so that not even a new file fits. Repeat the call after deletions."""
        ...

    def fail(self, failure: Failure) -> None:
        """Break the disk while processes use it."""
        ...

    @property
    def needs_closed_files(self) -> bool:
        """Whether each process must close its files on this disk before `repair`."""
        ...

    def repair(self) -> None:
        """Free the room, or bring the disk back, with its content."""
        ...


class LoopDisk:
    """An ext4 file system in a file, on a loop device. Needs root, see `can_make_loop_disks`.

    Args:
        path: The mount point; the image is the file beside it with the suffix `.img`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._failure: Failure | None = None
        self._ballast = path / "ballast"
        path.mkdir(parents=True)
        image = path.with_suffix(".img")
        with image.open("wb") as file:
            file.truncate(_SIZE)
        _run("mkfs.ext4", "-q", "-F", "-b", "4096", "-N", str(_INODES), str(image))
        # The device survives an unmount, so that the same one can be mounted again.
        self._device = _run("losetup", "--find", "--show", str(image)).strip()
        try:
            self._mount()
        except BaseException:
            _run("losetup", "--detach", self._device)
            raise

    def fill(self) -> None:
        """Use up all inodes, and the blocks for every user but root.

        A broker that runs out of blocks can fail in the middle of an append, in a memory-mapped
        index (SIGBUS). It then keeps bytes in a log that it has refused. Without inodes it fails
        cleanly, with the same ENOSPC, when it creates the next segment.
        """
        self._ballast.mkdir(exist_ok=True)
        try:
            free = os.statvfs(self.path)
            if free.f_bavail:
                number = len(list(self._ballast.glob("blocks-*")))
                with (self._ballast / f"blocks-{number}").open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)
            for number in range(_INODES):
                (self._ballast / f"inode-{number}").touch()
        except OSError as error:
            if "No space left" not in str(error):
                raise

    def fail(self, failure: Failure) -> None:
        """Shut the file system down, or unmount it while processes use it."""
        self._failure = failure
        if failure == "absent":
            _run("umount", "--lazy", str(self.path))
            return
        root = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(root, _EXT4_SHUTDOWN, struct.pack("I", _SHUTDOWN_FLAGS[failure]))
        finally:
            os.close(root)

    @property
    def needs_closed_files(self) -> bool:
        """True after a shutdown: the file system comes back with the next mount only."""
        return self._failure in _SHUTDOWN_FLAGS

    def repair(self) -> None:
        """Remove the files that fill it, or mount it again."""
        if self._failure is None:
            shutil.rmtree(self._ballast, ignore_errors=True)
            return
        if self.needs_closed_files:
            wait_until(self._unmounted, _UNMOUNT_SECONDS, f"{self.path} to be unmounted", 0.2)
        self._mount()
        self._failure = None

    def close(self) -> None:
        """Release mount and device, at the latest when the last process closes its files."""
        subprocess.run(["umount", "--lazy", str(self.path)], check=False, stderr=subprocess.DEVNULL)
        _run("losetup", "--detach", self._device)

    def _mount(self) -> None:
        _run("mount", self._device, str(self.path))

    def _unmounted(self) -> bool:
        done = subprocess.run(["umount", str(self.path)], check=False, capture_output=True)
        return done.returncode == 0


class Folder:
    """A plain directory, for hosts where mounts are not allowed.

    Each failure, and a lack of room, puts a file in the place of the directory. A broker that
    creates the next segment gets ENOTDIR, while its open files continue to work.
    """

    needs_closed_files = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self._aside = path.with_name(f"{path.name}.aside")
        path.mkdir(parents=True)

    def fill(self) -> None:
        """Simulate a full disk in the same way as `fail`."""
        if not self._aside.exists():
            self.fail("absent")

    def fail(self, failure: Failure) -> None:  # noqa: ARG002 - all failures are the same here
        """Put a file in the place of the directory."""
        self.path.rename(self._aside)
        self.path.touch()

    def repair(self) -> None:
        """Put the directory back."""
        self.path.unlink()
        self._aside.rename(self.path)


@contextmanager
def make_disk(path: Path) -> Iterator[Disk]:
    """Create the most realistic disk that this process can, at `path`, which must not exist."""
    if not can_make_loop_disks(path.parent):
        yield Folder(path)
        return
    disk = LoopDisk(path)
    try:
        yield disk
    finally:
        disk.close()


def can_make_loop_disks(directory: Path) -> bool:
    """Return whether this process may mount an ext4 file system from a loop device."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None or shutil.which("losetup") is None:
        return False
    directory.mkdir(parents=True, exist_ok=True)
    probe = directory / "probe"
    try:
        LoopDisk(probe).close()
    except (subprocess.CalledProcessError, OSError):
        return False
    finally:
        probe.with_suffix(".img").unlink(missing_ok=True)
        if probe.exists():
            probe.rmdir()
    return True


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout

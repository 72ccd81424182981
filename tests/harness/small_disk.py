"""A disk that is full until the test frees room."""

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.harness.sidecar import Sidecar

_BLOCK = 4096


class SmallDisk(Protocol):
    """A store's root on a full disk, and a command prefix for the sidecar."""

    root: Path
    launcher: list[str]
    refusal: str
    """Error text of the system when there is no room."""

    def make_room(self, sidecar: Sidecar) -> None:
        """Provide enough room from now on."""
        ...


@dataclass
class Tmpfs:
    """A real file system without free blocks."""

    root: Path
    launcher: list[str]
    refusal: str = "No space left on device"

    def make_room(self, sidecar: Sidecar) -> None:
        assert sidecar.process.running
        (self.root.parent / "ballast").unlink()


@dataclass
class FileSizeLimit:
    """A limit of file size, for hosts where mounts are not allowed."""

    root: Path
    launcher: list[str]
    refusal: str = "File too large"

    def make_room(self, sidecar: Sidecar) -> None:
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(sidecar.pid, resource.RLIMIT_FSIZE, unlimited)


@contextmanager
def tmpfs(directory: Path, room: int) -> Iterator[SmallDisk]:
    """Mount a tmpfs of 8 MiB with `room` free bytes."""
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(directory)], check=True)
    try:
        _fill(directory / "ballast", room)
        yield Tmpfs(directory / "store", [])
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def _fill(ballast: Path, room: int) -> None:
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(_BLOCK))
    os.truncate(ballast, ballast.stat().st_size - room)


@contextmanager
def file_size_limit(directory: Path, room: int) -> Iterator[SmallDisk]:
    """Limit every file to `room` bytes."""
    yield FileSizeLimit(directory / "store", ["prlimit", f"--fsize={room}:unlimited"])


def can_mount(directory: Path) -> bool:
    """Return whether this process may mount a file system."""
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(directory)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        return False
    subprocess.run(["umount", str(directory)], check=True)
    return True

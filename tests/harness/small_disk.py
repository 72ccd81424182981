"""A disk that is full, until somebody makes room."""

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
    """A store's root, and what stands before the sidecar's program."""

    root: Path
    launcher: list[str]
    refusal: str
    """What the system says when there is no room."""

    def make_room(self, sidecar: Sidecar) -> None:
        """From now on there is enough."""
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
    """Where nothing may be mounted: files cannot grow beyond a limit of the process."""

    root: Path
    launcher: list[str]
    refusal: str = "File too large"

    def make_room(self, sidecar: Sidecar) -> None:
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(sidecar.pid, resource.RLIMIT_FSIZE, unlimited)


@contextmanager
def tmpfs(directory: Path, room: int) -> Iterator[SmallDisk]:
    """8 MiB, of which `room` bytes are free."""
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
    """No file may have more than `room` bytes."""
    yield FileSizeLimit(directory / "store", ["prlimit", f"--fsize={room}:unlimited"])


def can_mount(directory: Path) -> bool:
    """Whether this process may mount a file system."""
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(directory)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        return False
    subprocess.run(["umount", str(directory)], check=True)
    return True

"""Run one process from start to end, and measure it."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lib.clock import monotonic

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Run:
    """One process: bytes of the `.log` objects, seconds from start to end, CPU seconds, memory."""

    size: int
    seconds: float
    cpu_seconds: float
    peak_resident_bytes: int

    @property
    def megabytes_per_second(self) -> float:
        """MB/s of archived bytes."""
        return self.size / self.seconds / 1e6

    @property
    def cpu_per_gib(self) -> float:
        """CPU seconds of the process per GiB."""
        return self.cpu_seconds * _GIB / self.size


def timed(
    size: int, line: Sequence[str], directory: Path, more: Mapping[str, str], given: str = ""
) -> tuple[Run, str]:
    """Run a process; return its figures and its output.

    Args:
        size: Bytes of the `.log` objects that it handles.
        line: Command line.
        directory: Directory for its output and its log.
        more: Further environment variables.
        given: Its standard input.

    Raises:
        RuntimeError: The exit code is not 0.
    """
    output, log = directory / "output.txt", directory / "process.log"
    environment = {**os.environ, **more, "PYTHONDONTWRITEBYTECODE": ""}
    began = monotonic()
    with output.open("wb") as out, log.open("wb") as errors:
        process = subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=out, stderr=errors, env=environment
        )
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        with process.stdin as pipe:
            pipe.write(given.encode())
        _, status, usage = os.wait4(process.pid, 0)
    seconds = monotonic() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{line} ended with {process.returncode}:\n{log.read_text()}")
    cpu = usage.ru_utime + usage.ru_stime
    return Run(size, seconds, cpu, usage.ru_maxrss * 1024), output.read_text()

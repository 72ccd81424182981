"""What the kernel says of a process: processor time and memory."""

import os
import re
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_USER, _SYSTEM = 11, 12  # of /proc/PID/stat, counted behind the command's closing parenthesis


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads so far, in steps of 10 ms."""
    fields = _stat(pid)
    return (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS


def has_ended(pid: int) -> bool:
    """Whether a process has ended that nobody has waited for yet."""
    return _stat(pid)[0] == "Z"


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def peak_resident_bytes(pid: int) -> int:
    """The most memory that the process has ever had resident (VmHWM)."""
    return _status_bytes(pid, "VmHWM")


LEAST_PRIORITY = 19
"""Of niceness, for what shall give way to everything else."""


def give_way(pid: int) -> None:
    """Let everything else come before the session of this process, which was started with `nice`.

    Where the kernel schedules by session (autogroup), niceness counts within the session alone, and
    the session has one of its own. In service, a service manager's CPU weight does this.
    """
    group = Path(f"/proc/{pid}/autogroup")
    if group.exists():
        group.write_text(str(LEAST_PRIORITY))


def machine() -> str:
    """The machine's shape in one line."""
    cpus = re.findall(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    memory = re.findall(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    system = os.uname()
    model = cpus[0].strip() if cpus else system.machine
    gib = int(memory[0]) / (1 << 20) if memory else 0
    return f"{len(os.sched_getaffinity(0))} cores ({model}), {gib:.0f} GiB, Linux {system.release}"


def _status_bytes(pid: int, name: str) -> int:
    found = re.search(rf"{name}:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    if found is None:
        raise ProcessLookupError(f"process {pid} has no {name}: it has ended")
    return int(found[1]) * 1024

"""The kernel's figures of a process: CPU time and memory."""

import os
import re
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_USER, _SYSTEM = 11, 12  # fields of /proc/PID/stat after the command's closing parenthesis


def cpu_seconds(pid: int) -> float:
    """Return user and system time of all threads so far, in steps of 10 ms."""
    fields = _stat(pid)
    return (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS


def has_ended(pid: int) -> bool:
    """Return whether a process has ended that was not waited for yet."""
    return _stat(pid)[0] == "Z"


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def peak_resident_bytes(pid: int) -> int:
    """Return the peak resident memory of the process (VmHWM)."""
    return _status_bytes(pid, "VmHWM")


def resident_bytes(pid: int) -> int:
    """Return the resident memory of the process now (VmRSS)."""
    return _status_bytes(pid, "VmRSS")


LOWEST_PRIORITY = 19
"""Niceness of processes that yield to everything else."""


def give_way(pid: int) -> None:
    """Lower the priority of the session of process `pid`, which was started with `nice`.

    If the kernel schedules by session (autogroup), niceness counts only within the session, and the
    session has a niceness of its own. In production a service manager's CPU weight does this.
    """
    group = Path(f"/proc/{pid}/autogroup")
    if group.exists():
        group.write_text(str(LOWEST_PRIORITY))


def machine() -> str:
    """Return the machine's CPU and memory in one line."""
    cpus = re.findall(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    memory = re.findall(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    system = os.uname()
    model = cpus[0].strip() if cpus else system.machine
    gib = int(memory[0]) / (1 << 20) if memory else 0
    return f"{len(os.sched_getaffinity(0))} cores ({model}), {gib:.0f} GiB, Linux {system.release}"


def _status_bytes(pid: int, name: str) -> int:
    match = re.search(rf"{name}:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    if match is None:
        raise ProcessLookupError(f"process {pid} has no {name}: it has ended")
    return int(match[1]) * 1024

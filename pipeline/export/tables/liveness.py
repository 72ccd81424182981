"""Check whether the process that holds a lease still runs, if this machine can tell."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

_PROC: Final = Path("/proc")
_STARTED: Final = 19
"""Index of the start time in `stat`, counted from 0 after the process's name: see `proc(5)`."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """Identity of one process, different from that of every other process at any time.

    Attributes:
        machine: boot id of the machine, and its namespace of process ids; empty if unknown.
        pid: process id in that namespace.
        started: start time in the kernel's ticks. It distinguishes processes with a reused pid.
        host: host name, for messages.
    """

    machine: str
    pid: int
    started: int
    host: str


def process_here(pid: int | None = None, proc: Path = _PROC) -> ProcessId:
    """Return the identity of a process of this machine; of the calling process if `pid` is None."""
    pid = os.getpid() if pid is None else pid
    started = _started(proc, pid)
    machine = "" if started is None else _machine(proc)
    return ProcessId(machine, pid, started or 0, socket.gethostname())


def state_of(process: ProcessId, proc: Path = _PROC) -> Literal["runs", "gone", "unknown"]:
    """Return whether a process runs; "unknown" if it is of another machine or another container."""
    if not process.machine or process.machine != _machine(proc):
        return "unknown"
    return "runs" if _started(proc, process.pid) == process.started else "gone"


def _machine(proc: Path) -> str:
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {(proc / 'self/ns/pid').readlink()}"
    except OSError:
        return ""


def _started(proc: Path, pid: int) -> int | None:
    try:
        stat = (proc / str(pid) / "stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[_STARTED - 1])

"""Whether the process that holds a lease still runs, where this machine can tell."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

_PROC: Final = Path("/proc")
_STARTED: Final = 19
"""Which field behind a process's name in `stat` says when it began, from 0: `proc(5)`."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process, unlike any other that ever ran.

    Attributes:
        machine: this boot of this machine, and its namespace of process ids; empty where unknown.
        pid: its number there.
        started: when it began, in the kernel's ticks, so that a number used again is another.
        host: for people.
    """

    machine: str
    pid: int
    started: int
    host: str


def process_here(pid: int | None = None, proc: Path = _PROC) -> ProcessId:
    """One of this machine's; the one that asks with None."""
    pid = os.getpid() if pid is None else pid
    started = _started(proc, pid)
    machine = "" if started is None else _machine(proc)
    return ProcessId(machine, pid, started or 0, socket.gethostname())


def state_of(process: ProcessId, proc: Path = _PROC) -> Literal["runs", "gone", "unknown"]:
    """Unknown where it ran on another machine, or in another container."""
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

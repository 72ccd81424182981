"""Standing back for the broker: it and its users come first on the machine's CPUs."""

import contextlib
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

_AUTOGROUP: Final = Path("/proc/self/autogroup")


def stand_back(niceness: int) -> None:
    """Lower this process's priority by so much, as `nice` does.

    Where the kernel groups processes by session (autogroup), a process's own niceness counts only
    within its session: there the group's is set too. In a container, CPU shares say the rest.
    """
    if niceness == 0:
        return
    os.setpriority(os.PRIO_PROCESS, 0, max(niceness, os.getpriority(os.PRIO_PROCESS, 0)))
    with contextlib.suppress(OSError):  # no autogroups here, or not ours to set
        _AUTOGROUP.write_text(str(niceness))


def begin_upload_thread(scheduling: Literal["idle", "normal"]) -> Callable[[], None]:
    """What each upload thread calls first: if `idle`, all but one then run when a CPU is idle.

    SCHED_IDLE gives way at once to whatever else wakes up, at the disk too (where its scheduler
    knows priorities), and cannot be left again without privilege. It has a share still, but a small
    one (3 in 1,027 against one busy thread). So one thread stays as nice as the process: where no
    CPU is ever idle, the archive goes on all the same. All other threads, which answer, watch and
    commit, are left alone.
    """
    numbers = itertools.count()

    def begin() -> None:
        if next(numbers):
            with contextlib.suppress(OSError):  # a sandbox may not allow it
                os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # 0: this thread

    return begin if scheduling == "idle" else lambda: None

"""CPU priority of the sidecar: the broker and its clients have precedence on the machine."""

import contextlib
import os
from pathlib import Path
from typing import Final

_AUTOGROUP: Final = Path("/proc/self/autogroup")


def stand_back(niceness: int) -> None:
    """Raise this process's niceness to at least `niceness`, as `nice` does.

    If the kernel schedules processes by session (autogroup), a process's niceness counts only
    within its session. The function then also sets the niceness of the session's autogroup. In a
    container, CPU shares decide about the rest.
    """
    if niceness == 0:
        return
    os.setpriority(os.PRIO_PROCESS, 0, max(niceness, os.getpriority(os.PRIO_PROCESS, 0)))
    with contextlib.suppress(OSError):  # no autogroups, or no permission
        _AUTOGROUP.write_text(str(niceness))

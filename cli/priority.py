"""Standing back for the broker: it and its users come first on the machine's CPUs."""

import contextlib
import os
from pathlib import Path
from typing import Final

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

"""Runs a command that must not outlive the process that started it.

Used as a script, `tether.py PARENT_PID COMMAND...`: asks Linux to kill this process when its parent
ends, then becomes the command. It is a script of its own because the request must be made between
fork and exec, where a process with threads may not run Python code safely.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Become the command given on the command line."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the request was made
        sys.exit(1)
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as error:
        sys.exit(f"{command[0]}: {error}")


if __name__ == "__main__":
    main()

"""Run a command that must not outlive the process that started it.

Used as a script, `tether.py PARENT_PID COMMAND...`: it asks Linux to kill this process when its
parent ends, and then becomes the command. It is a separate script because the request must be made
between the fork and exec system calls, where a process with threads cannot safely run Python code.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Replace this process by the command on the command line."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the request was made
        sys.exit(1)
    try:
        os.execvp(command[0], command)  # noqa: S606 - a shell is not wanted
    except OSError as error:
        sys.exit(f"{command[0]}: {error}")


if __name__ == "__main__":
    main()

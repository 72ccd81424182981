"""Appends to the active segments of a log dir at a steady rate, as a broker does.

A separate script: `appender.py LOG_DIR BASE_OFFSET PARTITIONS APPENDS_PER_SECOND`. It ends at
SIGTERM, and prints the number of appends per second.
"""

import os
import signal
import sys
from itertools import cycle
from pathlib import Path
from threading import Event
from time import monotonic

_TICK_SECONDS = 0.01
_APPEND = os.urandom(200)


def main() -> None:
    """Append until SIGTERM."""
    log_dir, base, partitions, rate = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    stopping = Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    name = f"{base:020d}.log"
    paths = sorted(path / name for path in log_dir.iterdir() if path.is_dir())[:partitions]
    files = [os.open(path, os.O_WRONLY | os.O_APPEND) for path in paths]
    turn = cycle(files)
    began, done = monotonic(), 0
    while not stopping.wait(_TICK_SECONDS):
        due = int((monotonic() - began) * rate) - done
        for _ in range(due):
            os.write(next(turn), _APPEND)
        done += due
    print(done / (monotonic() - began))


if __name__ == "__main__":
    main()

"""Signal handling of commands that start processes of their own."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM and SIGINT.

    SIGTERM then ends a command as Ctrl-C does, and the command cleans up its processes and files.
    The same applies to SIGINT in a shell's background job, which otherwise ignores it.
    """

    def end(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = {name: signal.signal(name, end) for name in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)

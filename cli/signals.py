"""How commands end that start processes of their own."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does, so that its processes and files go away. So does
    SIGINT in a shell's background job, where SIGINT is ignored otherwise.
    """

    def end(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = {name: signal.signal(name, end) for name in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)

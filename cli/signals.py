"""Handlers of SIGTERM and SIGINT while a command runs."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def handled_signals(handler: Callable[[], object]) -> Iterator[None]:
    """Call `handler` on SIGTERM and SIGINT, each time; restore the former handlers at the end.

    A shell starts background jobs with SIGINT ignored; the handler replaces that, too.
    """
    before = {
        number: signal.signal(number, lambda *_: handler())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM and SIGINT.

    SIGTERM then ends a command as Ctrl-C does, and the command cleans up its processes and files.
    """

    def end() -> NoReturn:
        raise KeyboardInterrupt

    with handled_signals(end):
        yield

"""Handlers of SIGTERM and SIGINT while a command runs."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

_STOPPING: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def handled_signals(handler: Callable[[], object]) -> Iterator[None]:
    """Call `handler` on SIGTERM and SIGINT, each time; restore the former handlers at the end.

    A shell starts background jobs with SIGINT ignored; the handler replaces that, too.
    """
    before = {number: signal.signal(number, lambda *_: handler()) for number in _STOPPING}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextmanager
def stopping(*, wanted: bool) -> Iterator[threading.Event]:
    """Yield an event that SIGTERM or SIGINT sets, if that is wanted; a second signal has its
    former effect.
    """
    stop = threading.Event()
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in _STOPPING}

    def heard() -> None:
        stop.set()
        for number, former in before.items():
            signal.signal(number, former)

    with handled_signals(heard):
        yield stop


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM and SIGINT.

    SIGTERM then ends a command as Ctrl-C does, and the command cleans up its processes and files.
    """

    def end() -> NoReturn:
        raise KeyboardInterrupt

    with handled_signals(end):
        yield


def end_at_sigterm(code: int) -> None:
    """Raise SystemExit with the code on SIGTERM, until a command handles it.

    The kernel ignores SIGTERM for process 1 of a container until a handler is installed.
    """

    def end(_signal: int, _frame: object) -> NoReturn:
        raise SystemExit(code)

    signal.signal(signal.SIGTERM, end)


def end_silently_at_sigint() -> None:
    """Let SIGINT end the process at once, without a traceback, unless it is ignored."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

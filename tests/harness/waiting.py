"""Waits for a condition with a deadline: the only module in which tests let time pass."""

from collections.abc import Callable
from threading import Event
from time import monotonic
from typing import TypeVar

from tests.harness.ci import EXPIRED, STALL_SECONDS

POLL_SECONDS = 0.02

_Value = TypeVar("_Value")
_never = Event()


def wait_until(
    condition: Callable[[], object], timeout: float, what: str, every: float = POLL_SECONDS
) -> None:
    """Poll `condition` until it is true; AssertionError after `timeout` seconds.

    The interval is 20 ms, or `every` seconds for an expensive condition. `what` completes the
    message "timed out after 5 s waiting for ...".
    """
    wait_for(lambda: condition() or None, timeout, what, every)


def wait_for(
    probe: Callable[[], _Value | None], timeout: float, what: str, every: float = POLL_SECONDS
) -> _Value:
    """Poll `probe` until it returns something other than None, and return that.

    In CI the deadline is `STALL_SECONDS` later.
    """
    timeout += STALL_SECONDS
    deadline = monotonic() + timeout
    while (value := probe()) is None:
        if monotonic() >= deadline:
            message = f"{EXPIRED} {timeout:g} s waiting for {what}"
            raise AssertionError(message)
        _never.wait(every)
    return value


def holds_for(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Poll `condition` every 20 ms for `seconds`; AssertionError as soon as it is false."""
    deadline = monotonic() + seconds
    while monotonic() < deadline:
        assert condition(), f"no longer: {what}"
        _never.wait(POLL_SECONDS)

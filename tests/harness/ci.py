"""Differences of test runs in CI."""

import os

import pytest

from sidetier.brokers.errors import ServerTimeoutError


def in_ci() -> bool:
    """Return whether this run decides about a change, so that no test may be skipped."""
    return os.environ.get("CI", "").lower() in {"1", "true"}


STALL_SECONDS = 120.0 if in_ci() else 0.0
"""Extra time of deadlines in CI, in seconds: a shared machine may stall for a minute.

A run that passes does not take longer, because a wait ends as soon as its condition holds.
"""


EXPIRED = "timed out after"
"""How the message of an expired wait begins."""


class TooLittleHappenedError(AssertionError):
    """A search for faults that found none, because a slow machine examined too few cases."""


class ExpiredWaitsError(AssertionError):
    """A search for faults that found none, but some of its waits have expired."""


def _was_too_slow(error: BaseException) -> bool:
    slow = (ServerTimeoutError, TooLittleHappenedError, ExpiredWaitsError)
    # Only the first line: the rest of a report quotes logs.
    return EXPIRED in str(error).partition("\n")[0] or isinstance(error, slow)


SEARCHES = pytest.mark.flaky(reruns=1, reruns_delay=10, condition=_was_too_slow)
"""Retry marker for tests that look for faults at random moments.

Only an expired wait, and a run with too few cases, is tried again. A fault that was found once
counts.
"""

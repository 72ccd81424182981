"""What is different where a run decides about a change."""

import os

import pytest

from sidetier.sandbox.errors import ServerTimeoutError


def in_ci() -> bool:
    """Whether this run decides about a change; then nothing may be left out."""
    return os.environ.get("CI", "").lower() in {"1", "true"}


STALL_SECONDS = 120.0 if in_ci() else 0.0
"""By how much deadlines are later in CI, where a shared machine may stand still for a minute.

It costs a run that passes nothing: a wait ends as soon as what it waits for is there.
"""


class TooLittleHappenedError(AssertionError):
    """A search for faults that found none, on a machine too slow to look at enough."""


def _was_too_slow(error: BaseException) -> bool:
    slow = (ServerTimeoutError, TooLittleHappenedError)
    return "timed out after" in str(error) or isinstance(error, slow)


SEARCHES = pytest.mark.flaky(reruns=1, reruns_delay=10, condition=_was_too_slow)
"""For tests that look for faults at random moments: what they find once is a finding.

Only a wait that ran out, and a run in which too little happened, is tried again.
"""

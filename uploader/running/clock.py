"""The clocks of the daemon. Tests replace them."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Clock:
    """`monotonic` in seconds, for waiting; `wall` in seconds since 1970, for times in reports."""

    monotonic: Callable[[], float]
    wall: Callable[[], float]


SYSTEM_CLOCK: Final = Clock(time.monotonic, time.time)  # noqa: TID251 - the daemon's only use of them

"""Run a bounded copy of one partition by several attempts, of which one at a time writes.

Spark starts an attempt again when it fails, and starts a second attempt beside a slow one. All
attempts use the partition's transactional id: the newest attempt fences the others and continues
from the progress. A fenced attempt must not fence the newest one back at once, or both would abort
each other's transactions for ever. A fenced attempt must not end either. If it fails, Spark counts
a failure and starts another attempt, which fences the one that writes. If it succeeds, Spark kills
the attempt that writes. So a fenced attempt waits.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

import structlog

from sidetier.segments.errors import ProducerFencedError
from sidetier.segments.offsets import Offset

STANDBY_SECONDS: Final = 60.0
_LONGEST_STANDBY_SECONDS: Final = 960.0
_LOOK_SECONDS: Final = 1.0
_NEVER: Final = threading.Event()

log = structlog.get_logger("sidetier.mirror")


class Step(Enum):
    """What a fenced attempt does next."""

    WAIT = auto()
    TAKE_OVER = auto()
    END = auto()


@dataclass(slots=True)
class Standby:
    """Decide what a fenced attempt does. No I/O.

    The attempt takes over when the progress does not change: the attempt that fenced it may be
    dead, and Spark starts no other attempt while this one runs. Each takeover doubles the patience,
    so that two slow attempts do not keep each other from committing.

    Args:
        end: The end of the offsets to copy, exclusive.
        patience: Seconds without progress after which the attempt takes over.
    """

    end: Offset
    patience: float = STANDBY_SECONDS
    _position: Offset | None = field(default=None, init=False)
    _moved_at: float = field(default=0.0, init=False)

    def begin(self, now: float) -> None:
        """Start to wait after the attempt was fenced; `now` is in seconds of a monotonic clock."""
        self._position = None
        self._moved_at = now

    def step(self, position: Offset | None, now: float) -> Step:
        """Return the next step; `position` is the progress, None if it cannot be read now."""
        if position is not None and position >= self.end:
            return Step.END
        if position is not None and position != self._position:
            self._position = position
            self._moved_at = now
        if now - self._moved_at < self.patience:
            return Step.WAIT
        self.patience = min(2 * self.patience, _LONGEST_STANDBY_SECONDS)
        return Step.TAKE_OVER


def run_attempt(
    copy: Callable[[], None],
    progress: Callable[[], Offset | None],
    standby: Standby,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] = _NEVER.wait,
) -> None:
    """Copy up to the end, or wait until another attempt has done it.

    Args:
        copy: Copies from the progress on, with a new producer at each call.
        progress: Returns the offset of the next source record; None if it cannot be read now.
        standby: Decides what this attempt does after it was fenced.
        clock: Returns seconds of a monotonic clock.
        pause: Waits for the given number of seconds.

    Raises:
        SidetierError: Any error of `copy` except ProducerFencedError.
    """
    while True:
        try:
            copy()
        except ProducerFencedError as error:
            log.warning("mirror.attempt_stands_by", reason=str(error))
        else:
            return
        standby.begin(clock())
        while (step := standby.step(progress(), clock())) is Step.WAIT:
            pause(_LOOK_SECONDS)
        if step is Step.END:
            return
        log.warning("mirror.attempt_takes_over", next_patience_seconds=standby.patience)

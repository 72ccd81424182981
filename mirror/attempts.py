"""A bounded copy of one partition by several attempts, of which one at a time writes.

Spark starts an attempt again where it fails, and a second one beside a slow one. All attempts have
the partition's transactional id: the newest fences the others and goes on from the progress. A
fenced attempt must not fence back at once, or both would abort each other's transactions for ever.
If it ended instead, Spark would count a failure, start another attempt, and that would fence the
one that writes; or it would count a success, and kill the one that writes. So it stands by.
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
    """Decides what a fenced attempt does; no I/O.

    It takes over where the progress stands still: the attempt that has fenced it may be dead, and
    Spark starts no other one as long as this one runs. Each take-over doubles the patience, so that
    two attempts that are both slow do not keep each other from committing.

    Args:
        end: The offset after the last that is copied.
        patience: Seconds without progress after which the attempt takes over.
    """

    end: Offset
    patience: float = STANDBY_SECONDS
    _position: Offset | None = field(default=None, init=False)
    _moved_at: float = field(default=0.0, init=False)

    def begin(self, now: float) -> None:
        """Note that the attempt was fenced; `now` is of a monotonic clock."""
        self._position = None
        self._moved_at = now

    def step(self, position: Offset | None, now: float) -> Step:
        """What to do, given the progress; None where it cannot be read now."""
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
        progress: The offset of the next source record; None where it cannot be read now.
        standby: Decides what happens once this attempt is fenced.
        clock: Seconds of a monotonic clock.
        pause: Waits for so many seconds.

    Raises:
        SidetierError: what `copy` raises, but for a ProducerFencedError.
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

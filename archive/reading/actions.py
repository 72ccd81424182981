"""What a partition waits for, and what is to be done for it: plain values."""

from dataclasses import dataclass
from enum import Enum, auto

from sidetier.archive.objects.segment import StoredLog
from sidetier.archive.reading.opening import Stuck
from sidetier.segments.arrow import Buffer
from sidetier.segments.errors import SidetierError
from sidetier.segments.offsets import Offset


class Stage(Enum):
    """What a partition waits for."""

    OPENING = auto()
    """Where its offset lies is to be found out, once `due` has come."""
    READING = auto()
    """Its ranges."""
    STUCK = auto()
    """Who else holds its offset, or what is missing, is to be found out."""
    STOPPED = auto()
    """To be told to go on: a gap, or an error that does not pass by itself."""


@dataclass(frozen=True, slots=True)
class Target:
    """The offset to open at; `waiting_for` a transaction to be decided, headers alone count."""

    offset: Offset
    waiting_for: Offset | None = None


@dataclass(slots=True, eq=False)
class Range:
    """Bytes of a `.log` that were asked for; `data` or `error` once they have come.

    `waited` when whoever takes records had to wait for it.
    """

    log: StoredLog
    start: int
    end: int
    data: Buffer | None = None
    error: SidetierError | None = None
    dropped: bool = False
    waited: bool = False

    @property
    def size(self) -> int:
        """As asked for."""
        return self.end - self.start

    @property
    def has_come(self) -> bool:
        """Whether it can be taken."""
        return self.data is not None or self.error is not None

    @property
    def is_last(self) -> bool:
        """Whether the `.log` ends with it."""
        return self.end >= self.log.size


@dataclass(frozen=True, slots=True)
class OpenStep:
    """Find out where the target lies."""

    ticket: int
    target: Target
    max_age: float


@dataclass(frozen=True, slots=True)
class GoOnStep:
    """Find out who holds what a segment does not."""

    ticket: int
    stuck: Stuck


@dataclass(frozen=True, slots=True)
class LookStep:
    """Compare what is known of the archive with the store."""


@dataclass(frozen=True, slots=True)
class FetchStep:
    """Read a range."""

    range: Range


Step = OpenStep | GoOnStep | LookStep | FetchStep

"""The stages of a partition, and the steps that a request thread carries out for it. Plain
values.
"""

from dataclasses import dataclass
from enum import Enum, auto

from sidetier.archive.objects.segment import StoredLog
from sidetier.archive.reader.opening import Stuck
from sidetier.segments.arrow import Buffer
from sidetier.segments.errors import SidetierError
from sidetier.segments.offsets import Offset


class Stage(Enum):
    """What a partition waits for."""

    OPENING = auto()
    """The position of its offset in the store, which is looked up once `due` has come."""
    READING = auto()
    """Its ranges."""
    STUCK = auto()
    """Another segment that covers its offset, or the reason why the offset is missing."""
    STOPPED = auto()
    """`seek` or `resume`, after a gap or an error that does not pass by itself."""


@dataclass(frozen=True, slots=True)
class Target:
    """The offset to open at. With `waiting_for`, the first offset of an open transaction, only
    headers are read until that transaction is decided.
    """

    offset: Offset
    waiting_for: Offset | None = None


@dataclass(slots=True, eq=False)
class Range:
    """A requested range of a `.log`. `data` or `error` is set once the request has ended.

    `waited` is True if the thread that takes records had to wait for it.
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
        """Requested size, in bytes."""
        return self.end - self.start

    @property
    def has_come(self) -> bool:
        """Whether the request has ended."""
        return self.data is not None or self.error is not None

    @property
    def is_last(self) -> bool:
        """Whether the range reaches the end of the `.log`."""
        return self.end >= self.log.size


@dataclass(frozen=True, slots=True)
class OpenStep:
    """Look up the position of the target."""

    ticket: int
    target: Target
    max_age: float


@dataclass(frozen=True, slots=True)
class GoOnStep:
    """Find another segment that covers the missing offset."""

    ticket: int
    stuck: Stuck


@dataclass(frozen=True, slots=True)
class LookStep:
    """Compare the known state of the archive with the store."""


@dataclass(frozen=True, slots=True)
class FetchStep:
    """Read a range."""

    range: Range


Step = OpenStep | GoOnStep | LookStep | FetchStep

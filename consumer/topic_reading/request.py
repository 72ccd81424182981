"""Which records of a topic are read. Needs no package of an extra."""

from dataclasses import dataclass, field
from typing import Final

from sidetier.archive.positions import BEGINNING, END, Position
from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES
from sidetier.consumer.sources import Mode

ANY: Final = None
"""Value of a header that may have any value."""
HeaderFilter = tuple[str, bytes | None]
COLUMNS: Final = ("offset", "timestamp", "timestamp_type", "key", "value", "headers")


@dataclass(frozen=True, slots=True)
class Filters:
    """Conditions that a record must meet.

    Attributes:
        keys: The key is one of these; empty for any key.
        headers: Each of these headers occurs, with this value or with `ANY`.
        contains: The value contains each of these.
    """

    keys: tuple[bytes, ...] = ()
    headers: tuple[HeaderFilter, ...] = ()
    contains: tuple[bytes, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.columns)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the conditions need."""
        used = {"key": self.keys, "headers": self.headers, "value": self.contains}
        return tuple(name for name, wanted in used.items() if wanted)


@dataclass(frozen=True, slots=True)
class TopicReadRequest:
    """A range of one topic, and the records of it that are wanted.

    Attributes:
        partitions: Empty for all partitions of the topic.
        bootstrap: Addresses of the brokers, in place of the configured ones.
        skip_gaps: Report a gap and continue after it; otherwise it is an error.
        follow: Continue to read without an end.
        limit: Maximum number of records over all partitions; None for no limit.
        with_tail: Also read tail packs; only with `Mode.TIERED_STORAGE_ONLY`.
        columns: Columns to return. `Mode.TIERED_STORAGE_ONLY` reads only these, and other modes
            return all.
    """

    topic: str
    partitions: tuple[int, ...] = ()
    begin: Position = BEGINNING
    end: Position = END
    mode: Mode = Mode.TIERED_STORAGE_ONLY
    bootstrap: str | None = None
    isolation: str = "read_committed"
    with_tail: bool = False
    skip_gaps: bool = False
    follow: bool = False
    limit: int | None = None
    columns: tuple[str, ...] = COLUMNS
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES
    filters: Filters = field(default_factory=Filters)

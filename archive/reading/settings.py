"""What bounds a reader, and what it shows."""

from dataclasses import dataclass
from typing import Final

from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES, LARGEST_MAX_BATCH_BYTES
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.isolation import IsolationLevel

__all__ = ["IsolationLevel", "ReaderSettings"]

MIB: Final = 1024**2
LEAST_MEMORY: Final = MIB


@dataclass(frozen=True, slots=True)
class ReaderSettings:
    """How an `ArchiveReader` works.

    Attributes:
        isolation: what is shown of transactions. Control batches never are.
        memory_budget: bytes of the store's objects that are held over all partitions, fetched or on
            their way: the one bound. Where nothing is under way and nothing can be taken, or
            one partition has long stood still beside others, its next piece is read though there is
            no room for it, one at a time: the rest of a record batch, however large it is, or 64
            KiB. So what is waited for always comes. A batch that the end
            of a range has cut is held twice for a moment, one of each partition. What `take` has
            handed out does not count, nor what one partition's bytes have been decoded to, 4 MiB or
            one batch, nor what a search for a timestamp reads, 4 MiB or one batch.
        fetch_threads: requests that are made at once, over all partitions.
        first_range: bytes of the first ranged read after a seek; each one after it is twice as
            large, up to `largest_range`.
        largest_range: bytes of the largest ranged read.
        look_interval: seconds that must pass before the end of an archive is looked at again: what
            is new there is seen at most so much later, at one request per look.
        most_view_age: seconds after which what is known of an archive is compared with the store
            while its middle is read, so that a fork or a recreated topic is noticed.
        failed_pause: seconds that a partition stands still after a failure that may pass; then it
            goes on where it was, without being asked.
        max_batch_bytes: bytes of the records of one compressed batch, decompressed: a bound against
            decompression bombs. A larger batch ends reading with BatchTooLargeError: it is stored,
            and so never a `Gap`.
        columns: of `RECORD_SCHEMA`, those that are decoded; None for all. `offset` always is.

    Raises:
        ConfigurationError: a bound that nothing could work with.
    """

    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    memory_budget: int = 64 * MIB
    fetch_threads: int = 6
    first_range: int = MIB
    largest_range: int = 8 * MIB
    look_interval: float = 5.0
    most_view_age: float = 60.0
    failed_pause: float = 5.0
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES
    columns: tuple[str, ...] | None = None

    @property
    def decoded_columns(self) -> tuple[str, ...] | None:
        """`columns`, and `offset`."""
        if self.columns is None or "offset" in self.columns:
            return self.columns
        return ("offset", *self.columns)

    def __post_init__(self) -> None:
        if self.memory_budget < LEAST_MEMORY:
            raise ConfigurationError(
                f"memory.budget {self.memory_budget}: at least {LEAST_MEMORY} bytes are needed"
            )
        if not 0 < self.max_batch_bytes <= LARGEST_MAX_BATCH_BYTES:
            raise ConfigurationError(
                f"max.batch.bytes {self.max_batch_bytes}: must be above 0 and at most "
                f"{LARGEST_MAX_BATCH_BYTES} bytes"
            )
        if self.fetch_threads < 1:
            raise ConfigurationError(f"fetch.threads {self.fetch_threads}: at least 1 is needed")
        if self.look_interval <= 0:
            raise ConfigurationError(f"look interval {self.look_interval}: must be above 0 seconds")
        if not 0 < self.first_range <= self.largest_range:
            raise ConfigurationError(
                f"the first range, {self.first_range} bytes, must be above 0 and not above the "
                f"largest, {self.largest_range}"
            )

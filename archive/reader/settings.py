"""Settings of a reader."""

from dataclasses import dataclass
from typing import Final

from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES, LARGEST_MAX_BATCH_BYTES
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.isolation import IsolationLevel

__all__ = ["IsolationLevel", "ReaderSettings"]

MIB: Final = 1024**2
MIN_MEMORY: Final = MIB


@dataclass(frozen=True, slots=True)
class ReaderSettings:
    """Settings of an `ArchiveReader`.

    Attributes:
        isolation: Which records of transactions are returned. Control batches never are.
        memory_budget: Maximum bytes of objects that are held or being fetched, over all partitions.
            One range at a time may exceed it, so that no partition waits forever: if no request is
            in progress and nothing can be taken, or if one partition was idle for long beside
            others, its next piece is read anyway. That piece is the rest of a record batch, of any
            size, or 64 KiB. A batch that the end of a range cuts is held twice for a moment, one
            batch per partition. The limit does not include the records that `take` has returned,
            the decoded records of one partition (4 MiB or one batch), and the range that a search
            for a timestamp reads (4 MiB or one batch).
        fetch_threads: Maximum number of concurrent requests, over all partitions.
        first_range: Bytes of the first ranged read after a seek. Each later one is twice as large,
            up to `largest_range`.
        largest_range: Bytes of the largest ranged read.
        look_interval: Minimum seconds between two checks of an archive's end. New records are seen
            at most this much later, at one request per check.
        max_view_age: Seconds after which the snapshot of the archive is compared with the store
            while its middle is read, so that a divergence or a recreated topic is noticed.
        failed_pause: Seconds that a partition pauses after a failure that may pass. Then it
            continues by itself where it was.
        max_batch_bytes: Maximum bytes of the records of one compressed batch, decompressed: a limit
            against decompression bombs. A larger batch ends reading with BatchTooLargeError, and
            never becomes a `Gap`: it is stored.
        with_tail: Also read the records above the archive end offsets that tail packs have. Once
            for all partitions of a store, that costs a listing for each broker at each look, and a
            request for each new pack.
        columns: Columns of `RECORD_SCHEMA` that are decoded; None for all. `offset` always is.

    Raises:
        ConfigurationError: A limit is out of its range.
    """

    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    memory_budget: int = 64 * MIB
    fetch_threads: int = 6
    first_range: int = MIB
    largest_range: int = 8 * MIB
    look_interval: float = 5.0
    max_view_age: float = 60.0
    failed_pause: float = 5.0
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES
    columns: tuple[str, ...] | None = None
    with_tail: bool = False

    @property
    def decoded_columns(self) -> tuple[str, ...] | None:
        """`columns`, with `offset`."""
        if self.columns is None or "offset" in self.columns:
            return self.columns
        return ("offset", *self.columns)

    def __post_init__(self) -> None:
        if self.memory_budget < MIN_MEMORY:
            raise ConfigurationError(
                f"memory.budget {self.memory_budget}: at least {MIN_MEMORY} bytes are needed"
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

"""Options of one task."""

from dataclasses import dataclass

from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES
from sidetier.segments.isolation import IsolationLevel

MIB = 1024**2


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of one task.

    Attributes:
        columns: columns of `RECORD_SCHEMA`, in the order of the result; None for all.
        isolation: isolation level.
        fail_on_data_loss: whether offsets that are not stored are an error.
        memory_budget: maximum bytes of stored segments in memory, fetched or being fetched.
        most_records: maximum records of one batch.
        max_batch_bytes: maximum size of one stored record batch, decompressed.
    """

    columns: tuple[str, ...] | None = None
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    fail_on_data_loss: bool = True
    memory_budget: int = 64 * MIB
    most_records: int = 1 << 20
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES

"""How one task reads."""

from dataclasses import dataclass

from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES
from sidetier.segments.isolation import IsolationLevel

MIB = 1024**2


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How one task reads.

    Attributes:
        columns: of `RECORD_SCHEMA`, in the order in which they are handed out; None for all.
        isolation: what is shown of transactions.
        fail_on_data_loss: whether offsets that are not stored are an error.
        memory_budget: bytes of stored segments that are held, fetched or on their way.
        most_records: of one batch.
        max_batch_bytes: of the records of one stored batch, decompressed.
    """

    columns: tuple[str, ...] | None = None
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    fail_on_data_loss: bool = True
    memory_budget: int = 64 * MIB
    most_records: int = 1 << 20
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES

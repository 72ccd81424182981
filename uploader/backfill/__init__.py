"""Archive the closed segments in log dirs once."""

from sidetier.uploader.backfill.plan import BackfillPlan, DueSegment, PartitionPlan
from sidetier.uploader.backfill.run import (
    Backfill,
    BackfillAdapters,
    BackfillReport,
    BackfillRequest,
    PartitionOutcome,
)

__all__ = [
    "Backfill",
    "BackfillAdapters",
    "BackfillPlan",
    "BackfillReport",
    "BackfillRequest",
    "DueSegment",
    "PartitionOutcome",
    "PartitionPlan",
]

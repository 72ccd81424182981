"""Copy an archive into topics of a running cluster, and compare."""

from sidetier.mirror.restore.run import (
    Restore,
    RestorePlan,
    RestoreReport,
    RestoreRequest,
    open_restore,
)

__all__ = ["Restore", "RestorePlan", "RestoreReport", "RestoreRequest", "open_restore"]

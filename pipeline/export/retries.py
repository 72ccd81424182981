"""Decide whether a continuous export runs another round after a round has failed.

Another round plans again, and compares what was exported with the archive at that time. So it can
succeed if the archive has changed in between: its end was quarantined (a divergence), or all of it
was moved away (`retire`). If exported records were discarded, the next round itself refuses to go
on. If the archive has not changed, a missing segment stays missing.
"""

from collections.abc import Callable
from typing import Final

from sidetier.archive.errors import ArchiveReplacedError
from sidetier.pipeline.errors import MissingRecordsError
from sidetier.pipeline.export.errors import ReadingsDifferError
from sidetier.pipeline.export.tables.errors import NotCommittedError
from sidetier.pipeline.export.tables.progress import Offsets
from sidetier.pipeline.planning.planner import Planner
from sidetier.segments.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    SidetierError,
)

_MAY_COME_OF_IT: Final = (
    MissingRecordsError,
    NotCommittedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    ReadingsDifferError,
)
"""Errors that a reader gets if its plan names objects that have been moved or removed since."""


def should_retry(
    error: SidetierError, planner: Planner, offsets_without_epoch: Callable[[], Offsets]
) -> bool:
    """Return whether the next round can succeed after this round has failed.

    The planner forgets archives that were replaced since it read them first; otherwise it would
    refuse them forever. If a replaced archive may have caused the error, this makes one request for
    each archive that the planner has read.

    Args:
        error: the error that ended this round.
        planner: the planner of all rounds.
        offsets_without_epoch: returns the next offsets, by partition, that have no known leader
            epoch.

    Returns:
        False if the archive was replaced below an offset of `offsets_without_epoch`: the next round
        could not tell which records were replaced, and would skip the new ones.
    """
    is_replaced = isinstance(error, ArchiveReplacedError)
    if not is_replaced and not isinstance(error, _MAY_COME_OF_IT):
        return error.retry
    try:
        blind = offsets_without_epoch()
        replaced = planner.renew()
    except SidetierError as failure:
        # This cannot be decided now. If the next round fails the same way, it is decided then.
        return is_replaced or failure.retry or error.retry
    if any(first < blind.get(tp, 0) for tp, first in replaced.items()):
        return False
    return is_replaced or bool(replaced) or error.retry

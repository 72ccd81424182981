"""Whether a round that has failed is worth another one: for exports that go on and on.

Another round plans again, and compares what was exported with what is there then. So it can succeed
where the archive has changed meanwhile: its end was set aside (a fork), or all of it (`retire`).
What the next round then refuses, as records that were thrown away, is not for it to decide. Where
the archive is what it was, a segment that is missing is missing.
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
"""What one meets who reads by a plan what is not there any more."""


def should_retry(
    error: SidetierError, planner: Planner, offsets_without_epoch: Callable[[], Offsets]
) -> bool:
    """Whether the next round can succeed where this one has met `error`. Archives that were
    replaced since the planner has seen them are forgotten, or it would refuse them for ever.

    Returns False where `offsets_without_epoch` gives, by partition, a next offset without a known
    leader epoch, and the archive differs below it: the next round could not tell which records were
    replaced, and would skip their replacements.

    A request for each archive that was seen, where the error may come of that.
    """
    is_replaced = isinstance(error, ArchiveReplacedError)
    if not is_replaced and not isinstance(error, _MAY_COME_OF_IT):
        return error.retry
    try:
        blind = offsets_without_epoch()
        replaced = planner.renew()
    except SidetierError as failure:
        # It cannot be told now; the next round meets the same, and asks again.
        return is_replaced or failure.retry or error.retry
    if any(first < blind.get(tp, 0) for tp, first in replaced.items()):
        return False
    return is_replaced or bool(replaced) or error.retry

"""Whether a round that has failed is worth another one: for exports that go on and on.

Another round plans again, and compares what was exported with what is there then. So it can succeed
where the archive has changed meanwhile: its end was set aside (a fork), or all of it (`retire`).
What the next round then refuses, as records that were thrown away, is not for it to decide. Where
the archive is what it was, a segment that is missing is missing.
"""

from typing import Final

from sidetier.archive.errors import ArchiveReplacedError
from sidetier.pipeline.errors import MissingRecordsError
from sidetier.pipeline.export.errors import ReadingsDifferError
from sidetier.pipeline.export.tables.errors import NotCommittedError
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


def is_worth_another(error: SidetierError, planner: Planner) -> bool:
    """Whether the next round can succeed where this one has met `error`. Archives that were
    replaced since the planner has seen them are forgotten, or it would refuse them for ever.

    A request for each archive that was seen, where the error may come of that.
    """
    is_replaced = isinstance(error, ArchiveReplacedError)
    if is_replaced or isinstance(error, _MAY_COME_OF_IT):
        is_replaced |= _renewed(planner)
    return is_replaced or error.retry


def _renewed(planner: Planner) -> bool:
    try:
        return planner.renew()
    except SidetierError as error:
        return error.retry  # it cannot be told now; the next round meets the same, and asks again

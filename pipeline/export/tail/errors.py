"""Errors of reading from the brokers.

::

    SidetierError
    ├── ArchiveError
    │   ├── BehindError
    │   │   └── BrokerBehindError   the broker's log ends below what was archived or exported
    │   └── StillOnBrokerError      retry = True: a run ends above the present archive end
    └── BrokerReadError             retry = True: the broker is away, or has deleted the records
"""

from sidetier.pipeline.export.errors import BehindError
from sidetier.segments.errors import ArchiveError, SidetierError


class BrokerBehindError(BehindError):
    """The broker's log ends below what was archived or exported: it is another log."""


class StillOnBrokerError(ArchiveError):
    """A run that was begun with `--tail kafka` is resumed without it, before its end is
    archived.
    """

    retry = True


class BrokerReadError(SidetierError):
    """Records could not be read from the broker. The next run may find them in the archive."""

    retry = True

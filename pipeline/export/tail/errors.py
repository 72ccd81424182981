"""What reading from the brokers can meet.

::

    SidetierError
    ├── ArchiveError
    │   ├── BehindError
    │   │   └── BrokerBehindError   the broker's log ends below what was archived, or exported
    │   └── StillOnBrokerError      retry = True: a run goes farther than the archive does yet
    └── BrokerReadError             retry = True: the broker is away, or has deleted it meanwhile
"""

from sidetier.pipeline.export.errors import BehindError
from sidetier.segments.errors import ArchiveError, SidetierError


class BrokerBehindError(BehindError):
    """The broker's log ends below what was archived, or exported: it is another log."""


class StillOnBrokerError(ArchiveError):
    """A run that was begun with `--tail kafka` goes on, without, before it is archived that far."""

    retry = True


class BrokerReadError(SidetierError):
    """Records could not be read from the broker; the archive may have them by the next run."""

    retry = True

"""What an export into a table can meet, besides what `pipeline/export/errors.py` has.

::

    SidetierError
    ├── ConfigurationError
    │   └── MissingJarsError        Spark does not know the table's format
    ├── ArchiveError
    │   ├── LostProgressError       the table has a history, and the offsets are not in it
    │   ├── BrokenProgressError     two commits do not follow each other
    │   └── BehindError
    │       └── RecordsGoneError    the archive ends below what comes next
    ├── NotCommittedError           retry = True: the write failed and has left nothing to be seen
    │   ├── CommitTimedOutError     it took longer than it may
    │   └── RefusedRowsError        retry = False: the rows do not fit the table
    └── StrayCommitError            the write succeeded, and the table does not say what it should
"""

from sidetier.pipeline.export.errors import BehindError
from sidetier.segments.errors import ArchiveError, ConfigurationError, SidetierError


class MissingJarsError(ConfigurationError):
    """Spark does not know the format; the text names the coordinates of the jar."""


class LostProgressError(ArchiveError):
    """The commit that had the offsets is no longer in the table's history, or there was none."""


class BrokenProgressError(ArchiveError):
    """A commit does not begin where the one before it ended: two writers were at work."""


class RecordsGoneError(BehindError):
    """Between the table's offsets and the archive's lie records that are not stored any more."""


class NotCommittedError(SidetierError):
    """The write failed; readers of the table see what they saw before."""

    retry = True


class CommitTimedOutError(NotCommittedError):
    """The write took longer than `coordinator.writestatus.timeout`, and was given up."""


class RefusedRowsError(NotCommittedError):
    """The table has other columns, or other types, than the rows."""

    retry = False


class StrayCommitError(SidetierError):
    """After a commit the table's offsets are not those of the commit."""

"""Errors of exports to tables, besides those of `pipeline/export/errors.py`.

::

    SidetierError
    ├── ConfigurationError
    │   └── MissingJarsError        Spark does not know the table's format
    ├── ArchiveError
    │   ├── LostProgressError       the table has commits, but the offsets are not in them
    │   ├── BrokenProgressError     two commits do not follow each other
    │   └── BehindError
    │       └── RecordsGoneError    the archive ends below the table's next offset
    ├── NotCommittedError           retry = True: the write failed; readers see no change
    │   ├── CommitTimedOutError     the write took longer than its time limit
    │   └── RefusedRowsError        retry = False: the rows do not fit the table
    └── StrayCommitError            the write succeeded, but the table has other offsets
"""

from sidetier.pipeline.export.errors import BehindError
from sidetier.segments.errors import ArchiveError, ConfigurationError, SidetierError


class MissingJarsError(ConfigurationError):
    """Spark does not know the table's format. The message names the coordinates of the jar."""


class LostProgressError(ArchiveError):
    """The commit with the offsets is not in the table's history any more, or there was none."""


class BrokenProgressError(ArchiveError):
    """A commit does not start where the one before it ended: two writers were at work."""


class RecordsGoneError(BehindError):
    """The archive ends below the table's next offset."""


class NotCommittedError(SidetierError):
    """The write failed. Readers of the table see what they saw before."""

    retry = True


class CommitTimedOutError(NotCommittedError):
    """The write took longer than `coordinator.writestatus.timeout` and was cancelled."""


class RefusedRowsError(NotCommittedError):
    """The table has other columns or types than the rows."""

    retry = False


class StrayCommitError(SidetierError):
    """After a commit, the table's last commit is another one."""

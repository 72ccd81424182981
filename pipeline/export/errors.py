"""What an export refuses.

::

    SidetierError
    ├── MisfitError             a record does not fit what it is to become
    ├── ReadingsDifferError     one range of offsets was read twice, and gave different records
    ├── ConfigurationError
    │   └── OtherExportError        the output was made with other settings
    └── ArchiveError
        ├── ArchiveConflictError
        │   ├── OtherWriterError        another export writes to the same output
        │   └── ForeignFileError        a file of our name that no export of ours has written
        └── MalformedObjectError
            └── NewerStateError         a manifest of a later version of Sidetier
"""

from sidetier.segments.errors import (
    ArchiveConflictError,
    ConfigurationError,
    MalformedObjectError,
    SidetierError,
)
from sidetier.segments.offsets import Offset, TopicPartition


class MisfitError(SidetierError):
    """A record does not fit the schema, the partitioner or the format; the text names it."""

    def __init__(self, tp: TopicPartition, offset: Offset, reason: str) -> None:
        super().__init__(
            f"{tp} offset {offset}: {reason}; --dead-letters DIR sets such records aside"
        )
        self.tp = tp
        self.offset = offset
        self.reason = reason

    def __reduce__(self) -> tuple[type["MisfitError"], tuple[TopicPartition, Offset, str]]:
        """So that it can be sent from executors."""
        return MisfitError, (self.tp, self.offset, self.reason)


class ReadingsDifferError(SidetierError):
    """The same offsets gave other records than before: the archive was changed meanwhile."""


class OtherExportError(ConfigurationError):
    """The output is of an export with other settings; the text names them."""


class OtherWriterError(ArchiveConflictError):
    """Another export was at work on the same output, and has committed, or claimed it, first."""


class ForeignFileError(ArchiveConflictError):
    """Where a file of ours belongs lies one that no export of ours has written."""


class NewerStateError(MalformedObjectError):
    """The state was written by a later version, and says things that are not known here."""

"""What an export refuses.

::

    SidetierError
    ├── MisfitError             a record does not fit what it is to become
    ├── NewerSchemaError        a record has a newer schema than the rows of a table
    ├── ReadingsDifferError     one range of offsets was read twice, and gave different records
    ├── ConfigurationError
    │   └── OtherExportError        the output was made with other settings
    └── ArchiveError
        ├── OtherTopicError         the topic was deleted, and created again with the same name
        ├── LogTruncatedError       brokers have thrown away what was exported
        ├── BehindError             what can be read ends below what was exported
        ├── ArchiveConflictError
        │   ├── OtherWriterError        another export writes to the same output
        │   └── ForeignFileError        a file of our name that no export of ours has written
        └── MalformedObjectError
            └── NewerStateError         a manifest of a later version of Sidetier
"""

from collections.abc import Sequence
from typing import Final

from sidetier.pipeline.export.epoch_history import Truncated
from sidetier.segments.errors import (
    ArchiveConflictError,
    ArchiveError,
    ConfigurationError,
    MalformedObjectError,
    SidetierError,
)
from sidetier.segments.offsets import Offset, TopicPartition

_MOST_SHOWN: Final = 10


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


class NewerSchemaError(SidetierError):
    """A record has a newer schema than the rows have, which would leave its new fields out."""


class ReadingsDifferError(SidetierError):
    """The same offsets gave other records than before: the archive was changed meanwhile."""


class OtherExportError(ConfigurationError):
    """The output is of an export with other settings; the text names them."""


class OtherTopicError(ArchiveError):
    """The topic that the brokers have is not the one whose records were archived, or exported."""


class LogTruncatedError(ArchiveError):
    """An unclean election has thrown away records that were exported; nothing was written since."""

    def __init__(self, found: Sequence[Truncated], way_on: str) -> None:
        shown = "; ".join(str(one) for one in found[:_MOST_SHOWN])
        more = f"; and {len(found) - _MOST_SHOWN} more" if len(found) > _MOST_SHOWN else ""
        super().__init__(
            "the brokers have thrown away records that were exported already (an unclean leader "
            f"election), and have others in their place now: {shown}{more}. Nothing was written. "
            f"{way_on}"
        )


class BehindError(ArchiveError):
    """What can be read of a partition ends below what was exported of it: `fact` tells where. The
    text goes on with what may have happened, and the way on.
    """

    def __init__(self, tp: TopicPartition, fact: str, way_on: str) -> None:
        super().__init__(f"{fact}: {way_on}")
        self.tp = tp
        self.fact = fact


class OtherWriterError(ArchiveConflictError):
    """Another export was at work on the same output, and has committed, or claimed it, first."""


class ForeignFileError(ArchiveConflictError):
    """Where a file of ours belongs lies one that no export of ours has written."""


class NewerStateError(MalformedObjectError):
    """The state was written by a later version, and says things that are not known here."""


def refuse_later(version: int, known: int, what: str, where: str) -> None:
    """Raises NewerStateError where what is stored is of a later version than is known here."""
    if version > known:
        raise NewerStateError(
            f"{where}: version {version} of {what}, {known} is known here: use the version of "
            "Sidetier that wrote it, or a later one"
        )

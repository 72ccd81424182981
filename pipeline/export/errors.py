"""Errors of exports.

::

    SidetierError
    ├── MisfitError             a record does not fit the schema, partitioner or format
    ├── NewerSchemaError        a record has a newer schema than the rows of a table
    ├── RecordCountError        records that were read are neither written nor reported
    ├── ReadingsDifferError     the same offsets were read twice, with different records
    ├── BrokerReadError         retry = True: the broker is away, or has deleted the records
    ├── NotCommittedError       retry = True: the write to a table failed; readers see no change
    │   ├── CommitTimedOutError     the write took longer than its time limit
    │   └── RefusedRowsError        retry = False: the rows do not fit the table
    ├── StrayCommitError        the write to a table succeeded, but the table has other offsets
    ├── ConfigurationError
    │   ├── OtherExportError        the output was written with other settings
    │   └── MissingJarsError        Spark does not know the table's format
    └── ArchiveError
        ├── OtherTopicError         the topic was deleted and recreated with the same name
        ├── LogTruncatedError       the brokers have discarded records that were exported
        ├── BehindError             the readable log ends below what was exported
        │   └── BrokerBehindError       archive and broker both end there: it is another log
        ├── StillOnBrokerError      retry = True: a run ends above the present archive end
        ├── LostProgressError       the table has commits, but the offsets are not in them
        ├── BrokenProgressError     two commits of a table do not follow each other
        ├── ArchiveConflictError
        │   ├── OtherWriterError        another export writes to the same output
        │   └── ForeignFileError        a file with one of our names that no export has written
        └── MalformedObjectError
            └── NewerStateError         a later version of Sidetier has written the state
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

_MAX_SHOWN: Final = 10


class MisfitError(SidetierError):
    """A record does not fit the schema, the partitioner or the format. The message names the
    record.
    """

    def __init__(self, tp: TopicPartition, offset: Offset, reason: str) -> None:
        super().__init__(
            f"{tp} offset {offset}: {reason}; --dead-letters stores such records elsewhere"
        )
        self.tp = tp
        self.offset = offset
        self.reason = reason

    def __reduce__(self) -> tuple[type["MisfitError"], tuple[TopicPartition, Offset, str]]:
        """Let Spark executors pickle the error."""
        return MisfitError, (self.tp, self.offset, self.reason)


class NewerSchemaError(SidetierError):
    """A record has a newer schema than the rows of the table, which would drop its new fields."""


class RecordCountError(SidetierError):
    """The records that were read are not those that were written, left out or reported.

    The next offsets do not pass them.

    Args:
        where: what was counted: a file, a Kafka partition, a commit.
        fact: both numbers, in words.
    """

    def __init__(self, where: str, fact: str) -> None:
        super().__init__(
            f"{where}: {fact}. Records were lost or repeated, and the command stops here: please "
            "report this, with the options of the command"
        )
        self._parts = (where, fact)

    def __reduce__(self) -> tuple[type["RecordCountError"], tuple[str, str]]:
        """Let Spark executors pickle the error."""
        return RecordCountError, self._parts


class ReadingsDifferError(SidetierError):
    """The same offsets gave other records than before: the archive was changed in between."""


class OtherExportError(ConfigurationError):
    """The output belongs to an export with other settings. The message names them."""


class OtherTopicError(ArchiveError):
    """The brokers' topic is not the topic whose records were archived or exported."""


class LogTruncatedError(ArchiveError):
    """An unclean leader election has discarded records that were exported. This run has written
    nothing.
    """

    def __init__(self, gone: Sequence[Truncated], remedy: str) -> None:
        shown = "; ".join(str(discarded) for discarded in gone[:_MAX_SHOWN])
        more = f"; and {len(gone) - _MAX_SHOWN} more" if len(gone) > _MAX_SHOWN else ""
        super().__init__(
            "the brokers have discarded records that were exported (an unclean leader election), "
            f"and other records have their offsets now: {shown}{more}. Nothing was written. "
            f"{remedy}"
        )


class BehindError(ArchiveError):
    """The readable log of a partition ends below the offset up to which it was exported.

    Args:
        fact: both offsets, in words. It begins the message.
        remedy: the possible causes and what to do. It ends the message.
    """

    def __init__(self, tp: TopicPartition, fact: str, remedy: str) -> None:
        super().__init__(f"{fact}: {remedy}")
        self.tp = tp
        self.fact = fact


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


class OtherWriterError(ArchiveConflictError):
    """Another export works on the same output, and was the first to commit or to claim it."""


class ForeignFileError(ArchiveConflictError):
    """The key of one of our files holds an object that no export of Sidetier has written."""


class NewerStateError(MalformedObjectError):
    """A later version of Sidetier has written the state, in a form that this version
    cannot read.
    """


def refuse_later(version: int, known: int, kind: str, where: str) -> None:
    """Raise NewerStateError if the stored version of a `kind` of state is later than `known`."""
    if version > known:
        raise NewerStateError(
            f"{where}: version {version} of {kind}, {known} is known here: upgrade "
            "Sidetier to the version that wrote it, or a later one"
        )


class MissingJarsError(ConfigurationError):
    """Spark does not know the table's format. The message names the coordinates of the jar."""


class LostProgressError(ArchiveError):
    """The commit with the offsets is no longer in the table's history, or never existed."""


class BrokenProgressError(ArchiveError):
    """A commit does not start where the one before it ended: two writers were at work."""


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

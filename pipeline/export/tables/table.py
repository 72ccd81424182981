"""What an export asks of a table, whatever its format."""

from typing import Protocol

from pyspark.sql import DataFrame

from sidetier.pipeline.export.tables.chunks import Ranges
from sidetier.pipeline.export.tables.progress import Offsets, Progress


class Table(Protocol):
    """A table with commits that carry a `Progress`."""

    @property
    def name(self) -> str:
        """What it is called, for errors."""
        ...

    def recover(self) -> None:
        """Undo what writers that are gone have left; called only where none is at work."""
        ...

    def progress(self) -> Progress | None:
        """What the last commit of ours says, of those that readers see; None: nothing yet.

        Raises:
            LostProgressError: there was one, or may have been, and it is not to be found.
            BrokenProgressError: the last commits do not follow each other.
            NewerStateError, MalformedObjectError: see `from_properties`.
        """
        ...

    def write(self, frame: DataFrame, progress: Progress, seconds: float) -> None:
        """Put the rows in, together with `progress`, in one commit, or nothing.

        A kill at any moment leaves what was there before, or the whole commit. Without rows there
        is a commit too.

        Raises:
            OtherWriterError: the table says another thing than `progress.since`; nothing is
                written.
            CommitTimedOutError: it has taken more than so many seconds.
            NotCommittedError: Spark or the table has refused it.
        """
        ...


class Source(Protocol):
    """Where the records come from."""

    @property
    def cluster(self) -> str:
        """The name of the cluster."""
        ...

    def stored(self, held: Offsets) -> Ranges:
        """Of each partition that is exported, from where to where its records can be read now.

        Where one begins that is not in `held`, is what its export begins with.
        """
        ...

    def frame(self, ranges: Ranges) -> DataFrame:
        """Their records, as rows."""
        ...

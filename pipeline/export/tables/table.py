"""What an export asks of a table, whatever its format."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from pyspark.sql import DataFrame

from sidetier.pipeline.export.epoch_history import Truncated
from sidetier.pipeline.export.errors import BehindError
from sidetier.pipeline.export.histories import Positions
from sidetier.pipeline.export.tables.chunks import Ranges
from sidetier.pipeline.export.tables.progress import Offsets, Progress, Tail
from sidetier.pipeline.planning.log_offsets import UndecidedTail
from sidetier.segments.offsets import TopicPartition


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

    def truncated(self, positions: Positions) -> tuple[Truncated, ...]:
        """What below these was thrown away since by the brokers, as far as that can be known; of
        topics that are exported.
        """
        ...

    def stored(
        self,
        held: Offsets,
        tail: Offsets | None = None,
        behind: list[BehindError] | None = None,
    ) -> Ranges:
        """Of each partition that is exported, from where to where its records can be read now; an
        archive may not have what is in `tail` yet: it came from the brokers.

        Where one begins that is not in `held`, is what its export begins with. `behind` collects
        the errors of partitions whose log on the brokers ends below what is held; they are left
        out.

        Raises:
            BehindError: there is such a partition, and no list for it.
        """
        ...

    def undecided(self, reached: Offsets) -> Mapping[TopicPartition, UndecidedTail]:
        """Of the partitions whose next offset is the last stable offset, what waits there for a
        transaction; by the look that `stored` has taken.
        """
        ...

    def within(self, ranges: Ranges, most_bytes: int) -> Ranges:
        """The first parts of these ranges that have about so many archived bytes in all. What only
        the brokers have counts nothing.
        """
        ...

    def frame(self, ranges: Ranges) -> DataFrame:
        """Their records, as rows."""
        ...

    def topic_ids(self, tps: Iterable[TopicPartition]) -> Mapping[str, str]:
        """Of which topics these partitions are, as far as the last look shows it."""
        ...

    def tail(self, ranges: Ranges) -> Tail:
        """What of these ranges, as `stored` has given them or less, only the brokers have; of which
        topics they are, and what is known of the epoch history below their ends. Of an empty range
        nothing is told of the epoch history.
        """
        ...

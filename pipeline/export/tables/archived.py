"""What an export reads: archived records, as planning and the data source give them."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from sidetier.pipeline.export.tables.chunks import Ranges
from sidetier.pipeline.export.tables.progress import Offsets
from sidetier.pipeline.planning.limits import Edge
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.request import ReadRequest
from sidetier.pipeline.planning.split import OffsetRange, Plan
from sidetier.segments.offsets import Offset

Frames = Callable[[Plan], DataFrame]
"""The records of a plan, as rows."""


@dataclass(frozen=True, slots=True)
class ArchivedRecords:
    """A `Source`. Where `request` begins counts for a table that has no offsets yet; a partition
    that is new to a table with offsets begins at its earliest.
    """

    cluster: str
    planner: Planner
    request: ReadRequest
    frames: Frames

    def stored(self, held: Offsets) -> Ranges:
        """See `Source`.

        Raises:
            NoSuchTopicError, ConfigurationError, ArchiveError, StorageError: as `Planner.resolve`.
        """
        request = replace(self.request, starting=Edge.EARLIEST) if held else self.request
        resolved = self.planner.resolve(request)
        ends = self.planner.ends(resolved, request.isolation)
        return {tp: within_stored(asked, ends[tp], held.get(tp)) for tp, asked in resolved.items()}

    def frame(self, ranges: Ranges) -> DataFrame:
        """See `Source`.

        Raises:
            MissingRecordsError, ArchiveError, StorageError: as `Planner.plan`.
        """
        return self.frames(self.planner.plan_ranges(ranges, self.request))


def within_stored(asked: OffsetRange, end: Offset, held: Offset | None) -> OffsetRange:
    """A range that ends where what is stored ends, if not before.

    One that ends below what a table holds already is behind us: nothing of it is left. But where
    the archive itself ends there, it ends there.
    """
    until = min(asked.until, end)
    if held is not None and until < held <= end:
        until = held
    return OffsetRange(asked.first, until if held is not None else max(asked.first, until))

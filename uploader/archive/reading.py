"""Reading an archive in the leader's name: Pinterest's archive is taken over first."""

from collections.abc import Callable
from dataclasses import dataclass, field

from sidetier.segments.offsets import TopicPartition
from sidetier.uploader.archive.archive_state import ArchiveState, Leader
from sidetier.uploader.archive.archive_writer import ArchiveWriter
from sidetier.uploader.archive.takeover.local import LocalLog
from sidetier.uploader.archive.takeover.run import TakeoverReport

ReadArchive = Callable[[ArchiveWriter, TopicPartition, Leader], ArchiveState]


def read_only(archive_writer: ArchiveWriter, tp: TopicPartition, leader: Leader) -> ArchiveState:
    """As it is; of Pinterest's the next offset is not known. Raises as `ArchiveWriter.load`."""
    return archive_writer.load(tp, leader, derive=False)


@dataclass(frozen=True, slots=True)
class TakingOver:
    """Reads, and takes over where that is needed; `local` looks at this broker's log then, and
    `reports` tells afterwards what was found.
    """

    local: Callable[[], LocalLog]
    reports: list[TakeoverReport] = field(default_factory=list)

    def __call__(
        self, archive_writer: ArchiveWriter, tp: TopicPartition, leader: Leader
    ) -> ArchiveState:
        """Raises as `ArchiveWriter.load` and `take_over`, and what `local` raises."""
        archive = read_only(archive_writer, tp, leader)
        if not archive.is_pinterest:
            return archive
        archive, report = archive_writer.take_over(tp, archive, leader, self.local())
        self.reports.append(report)
        return archive

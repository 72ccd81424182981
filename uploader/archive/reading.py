"""Read an archive for the leader. An archive of Pinterest's uploader is taken over first."""

from collections.abc import Callable
from dataclasses import dataclass, field

from sidetier.segments.offsets import TopicPartition
from sidetier.uploader.archive.archive_state import ArchiveState, Leader
from sidetier.uploader.archive.archive_writer import ArchiveWriter
from sidetier.uploader.archive.takeover.local import LocalLog
from sidetier.uploader.archive.takeover.run import TakeoverReport

ReadArchive = Callable[[ArchiveWriter, TopicPartition, Leader], ArchiveState]


def read_only(archive_writer: ArchiveWriter, tp: TopicPartition, leader: Leader) -> ArchiveState:
    """Read the archive without changing it. Raises as `ArchiveWriter.load`.

    The archive end offset is None where Pinterest's uploader wrote `offset.wm`.
    """
    return archive_writer.load(tp, leader, derive=False)


@dataclass(frozen=True, slots=True)
class TakingOver:
    """Reads an archive, and takes it over where Pinterest's uploader wrote `offset.wm`.

    Attributes:
        local: Returns this broker's log for the comparison; called only for a takeover.
        reports: The reports of the takeovers that were made.
    """

    local: Callable[[], LocalLog]
    reports: list[TakeoverReport] = field(default_factory=list)

    def __call__(
        self, archive_writer: ArchiveWriter, tp: TopicPartition, leader: Leader
    ) -> ArchiveState:
        """Read the archive, and take it over where needed.

        Raises as `ArchiveWriter.load` and `take_over`, and what `local` raises.
        """
        archive = read_only(archive_writer, tp, leader)
        if not archive.is_pinterest:
            return archive
        archive, report = archive_writer.take_over(tp, archive, leader, self.local())
        self.reports.append(report)
        return archive

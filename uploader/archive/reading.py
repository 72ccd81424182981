"""Reading an archive in the leader's name: the peer's archive is taken over first."""

from collections.abc import Callable
from dataclasses import dataclass, field

from sidetier.segments.offsets import TopicPartition
from sidetier.uploader.archive.keeper import ArchiveKeeper
from sidetier.uploader.archive.known import Archive, Leader
from sidetier.uploader.archive.takeover.local import LocalLog
from sidetier.uploader.archive.takeover.run import TakeoverReport

ReadArchive = Callable[[ArchiveKeeper, TopicPartition, Leader], Archive]


def read_only(keeper: ArchiveKeeper, tp: TopicPartition, leader: Leader) -> Archive:
    """As it is; of the peer's the next offset is not known. Raises as `ArchiveKeeper.load`."""
    return keeper.load(tp, leader, derive=False)


@dataclass(frozen=True, slots=True)
class TakingOver:
    """Reads, and takes over where that is needed; `local` looks at this broker's log then, and
    `reports` tells afterwards what was found.
    """

    local: Callable[[], LocalLog]
    reports: list[TakeoverReport] = field(default_factory=list)

    def __call__(self, keeper: ArchiveKeeper, tp: TopicPartition, leader: Leader) -> Archive:
        """Raises as `ArchiveKeeper.load` and `take_over`, and what `local` raises."""
        archive = read_only(keeper, tp, leader)
        if not archive.is_peers:
            return archive
        archive, report = keeper.take_over(tp, archive, leader, self.local())
        self.reports.append(report)
        return archive

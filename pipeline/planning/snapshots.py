"""What the archives of partitions show now, as long as they are those that were seen before."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from sidetier.archive.errors import ArchiveReplacedError
from sidetier.archive.objects.gaps import Gaps
from sidetier.archive.view import ArchiveView
from sidetier.pipeline.planning.archives import Archives
from sidetier.pipeline.planning.helpers import Helpers
from sidetier.segments.offsets import Offset, TopicPartition


@dataclass(frozen=True, slots=True)
class ArchiveSnapshots:
    """Every method but `renew` raises ArchiveReplacedError where an archive was replaced since it
    was seen first; all raise what `PartitionArchive.look` does.
    """

    archives: Archives
    helpers: Helpers

    def all(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, ArchiveView | None]:
        """Of each partition its view now, None where nothing is stored."""
        return self.helpers.of_each(self.one, tps)

    def gaps(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Gaps]:
        """What is recorded as lost before it was stored; a listing for each topic."""
        topics = [list(some) for _, some in groupby(sorted(tps), lambda tp: tp.topic)]
        found = self.helpers.each(self.archives.gaps, topics)
        return {tp: gaps for some in found for tp, gaps in some.items()}

    def reaching(self, tp: TopicPartition, until: Offset) -> ArchiveView | None:
        """The view that was seen last, or a newer one where that does not reach so far."""
        view = self.one(tp, float("inf"))
        return self.one(tp) if view is None or view.end < until else view

    def one(self, tp: TopicPartition, max_age: float = 0.0) -> ArchiveView | None:
        """One partition's view, of at most so many seconds ago."""
        look = self.archives.of(tp).look(max_age)
        for change in look.changes:
            if change.message is not None:
                raise ArchiveReplacedError(change.message, change.first)
        return look.view

    def renew(self) -> dict[TopicPartition, Offset]:
        """Look, and forget what is seen to be replaced: from which offset on it is. Nothing is
        forgotten where one cannot be looked at.
        """
        firsts = self.helpers.of_each(self._replaced_from, self.archives.known)
        found = {tp: first for tp, first in firsts.items() if first is not None}
        for tp in found:
            self.archives.forget(tp)
        return found

    def _replaced_from(self, tp: TopicPartition) -> Offset | None:
        changes = self.archives.of(tp).look().changes
        return min((one.first for one in changes if one.message is not None), default=None)

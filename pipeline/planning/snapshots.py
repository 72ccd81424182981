"""Snapshots of archives, with a check that each archive is the one that was seen first."""

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
    """Snapshots of archives.

    Every method except `renew` raises ArchiveReplacedError if an archive was replaced after it was
    first seen. All raise the errors of `PartitionArchive.look`.
    """

    archives: Archives
    helpers: Helpers

    def all(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, ArchiveView | None]:
        """Return the present snapshot of each partition; None where nothing is stored."""
        return self.helpers.of_each(self.one, tps)

    def gaps(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Gaps]:
        """Read the recorded gaps of the partitions. One listing for each topic."""
        topics = [list(group) for _, group in groupby(sorted(tps), lambda tp: tp.topic)]
        by_topic = self.helpers.each(self.archives.gaps, topics)
        return {tp: gaps for group in by_topic for tp, gaps in group.items()}

    def reaching(self, tp: TopicPartition, until: Offset) -> ArchiveView | None:
        """Return the cached snapshot if it reaches `until`; otherwise a new one."""
        view = self.one(tp, float("inf"))
        return self.one(tp) if view is None or view.end < until else view

    def one(self, tp: TopicPartition, max_age: float = 0.0) -> ArchiveView | None:
        """Return a partition's snapshot that is at most `max_age` seconds old."""
        snapshot = self.archives.of(tp).look(max_age)
        for change in snapshot.changes:
            if change.message is not None:
                raise ArchiveReplacedError(change.message, change.first)
        return snapshot.view

    def renew(self) -> dict[TopicPartition, Offset]:
        """Take a new snapshot of each archive, and drop the cache of those that were replaced.

        If one snapshot fails, nothing is dropped.

        Returns:
            For each replaced archive, the first offset whose records are different.
        """
        firsts = self.helpers.of_each(self._replaced_from, self.archives.known)
        replaced = {tp: first for tp, first in firsts.items() if first is not None}
        for tp in replaced:
            self.archives.forget(tp)
        return replaced

    def _replaced_from(self, tp: TopicPartition) -> Offset | None:
        changes = self.archives.of(tp).look().changes
        return min((change.first for change in changes if change.message is not None), default=None)

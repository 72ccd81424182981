"""One partition that is in the live cluster, and may be archived."""

from dataclasses import dataclass
from typing import Final, Self
from uuid import UUID

from sidetier.archive.view import ArchiveView
from sidetier.endpoint.catalog import (
    ArchiveState,
    Catalog,
    Partition,
    parse_topic_id,
    state_of,
)
from sidetier.endpoint.live.logs import LiveLogs
from sidetier.endpoint.live.side import Age
from sidetier.segments.errors import (
    DamagedSegmentError,
    SidetierError,
    StoreUnavailableError,
    UnsupportedFormatError,
)
from sidetier.segments.offsets import Offset, OffsetRange

_UNKNOWN: Final = Offset(-1)
LEADER_AGE: Final = 2.0
"""Maximum age of the live bounds that show where an archived record lies, in seconds."""


@dataclass(slots=True)
class JoinedPartition:
    """Both sides of a partition, for one request.

    Attributes:
        live: The live cluster.
        catalog: The topics.
        partition: The partition.
        topic_id: The topic's id that the client asks for; None if it asks by name.
        view: The archive, as it was read last; None if there is none of this topic.
        state: The state of the archive then, for `Catalog.wait_for_change`.
        failure: Why the archive could not be read.
    """

    live: LiveLogs
    catalog: Catalog
    partition: Partition
    topic_id: UUID | None = None
    view: ArchiveView | None = None
    state: ArchiveState = None
    failure: SidetierError | None = None

    @classmethod
    def of(
        cls, catalog: Catalog, partition: Partition, topic_id: UUID | None = None
    ) -> Self | None:
        """Return both sides of a partition; None if the archive alone has it.

        While it is not known whether the live cluster has a topic, its leader counts as away.
        """
        live = catalog.live
        if live is None or live.watch.is_gone(partition.tp.topic):
            return None
        return cls(live, catalog, partition, topic_id)

    @property
    def live_id(self) -> UUID | None:
        """The topic's id in the live cluster; None from brokers before 2.8."""
        topic = self.live.topics.topics.get(self.partition.tp.topic)
        return None if topic is None else topic.topic_id

    def is_other_topic(self) -> bool:
        """Whether the live topic has another id than the client asks for."""
        return None not in {self.topic_id, self.live_id} and self.topic_id != self.live_id

    def is_archive_of_other_topic(self) -> bool:
        """Whether the archive that was read has another id than the client asks for.

        Only then if the id of the live topic is not known: `archived` compares with that.

        Raises:
            ConfigurationError, ArchiveError, StorageError: The topic's store cannot be listed.
        """
        if self.view is None or self.topic_id is None or self.live_id is not None:
            return False
        return not self.catalog.has_topic_id(self.partition, self.view, self.topic_id)

    def archived(self, age: Age) -> OffsetRange | None:
        """Read the archive, and return its offsets; None if there are none.

        The archive of a new topic is not found at once, unless it is read NOW.
        """
        tp, partition = self.partition.tp, self.partition
        self.failure = self.view = None
        topic = self.catalog.topic(tp.topic)
        if age is not Age.NOW and (topic is None or tp.partition not in topic.stored):
            self.state = self._known_state()
            return None
        view = None
        try:
            if age is Age.KNOWN:
                self.catalog.read_soon(tp)
                latest = partition.archive.latest
                view = None if latest is None else latest.view
            else:
                view = partition.view(0.0 if age is Age.NOW else None)
        except SidetierError as error:
            self.failure = error
        self.state = self._known_state() if view is None else state_of(view)
        if view is None or not self._is_of_live_topic(view):
            return None
        self.view = view
        return OffsetRange(view.start, view.end)

    def tailed(self) -> tuple[Partition, ArchiveView] | None:
        """Return the archive with its tail; None if the leader is there, if tails are not read, or
        if there is neither of this topic.

        Raises:
            ConfigurationError, ArchiveError, StorageError: As `Partition.view`.
        """
        tp = self.partition.tp
        partition = self.catalog.tailed(tp)
        if partition is None or self.live.reads.bounds(tp, LEADER_AGE) is not None:
            return None
        view = partition.view()
        return None if view is None or not self._is_of_live_topic(view) else (partition, view)

    def _known_state(self) -> ArchiveState:
        latest = self.partition.archive.latest
        return None if latest is None else state_of(latest.view)

    def _is_of_live_topic(self, view: ArchiveView) -> bool:
        """Whether an archive is that of the live topic, and not of one that was deleted."""
        own = parse_topic_id(view.watermark.topic_id)
        if None in {own, self.live_id}:
            # Without ids, only the cluster shows it.
            if not self.live.is_checked:
                self.failure = StoreUnavailableError(
                    f"{view.where}: the store could not be read yet to find out whether this is "
                    "the archive of the live cluster"
                )
            return self.live.is_checked
        return own == self.live_id

    def store_below(self, *, isolated: bool) -> Offset:
        """Return the offset below which the store is preferred, if both sides have an offset.

        A client that is isolated reads the archive up to its last stable offset: the marker of an
        open transaction may be on the broker alone.
        """
        if self.view is None:
            return Offset(0)
        below = self.live.store_below(self.partition.tp)
        if not isolated or below <= self.view.start:
            return below
        try:
            return min(below, last_stable_offset(self.partition, self.view, isolated=True))
        except SidetierError as error:
            self.failure = error
            return Offset(0)


def last_stable_offset(partition: Partition, view: ArchiveView, *, isolated: bool) -> Offset:
    """Return the last stable offset; -1 if damage hides it, and the client does not need it.

    The damage is in the last segment, and a `read_uncommitted` client may read others.
    """
    try:
        return partition.transactions.last_stable_offset(view)
    except (DamagedSegmentError, UnsupportedFormatError):
        if isolated:
            raise
        return _UNKNOWN

"""Where what can be read of a partition begins and ends."""

from dataclasses import dataclass, field

from sidetier.archive.objects.segment import Version
from sidetier.archive.reading.last_stable_offset import StableEnd, last_stable_offset, timestamp_at
from sidetier.archive.view import ArchiveView
from sidetier.pipeline.planning.archives import Archives
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, TopicPartition


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """How far one partition's archive goes.

    Attributes:
        start: the first offset that is stored.
        stable: one past the last that may be shown, as `Ends.of` has it.
        end: one past the last that is stored.
        topic_id: of the topic whose records these are; None where the archive does not say.
    """

    start: Offset
    stable: Offset
    end: Offset
    topic_id: str | None


@dataclass(frozen=True, slots=True)
class UndecidedTail:
    """The end of a log that waits for a transaction: nothing in it commits or aborts it.

    Attributes:
        start: the first offset of the log.
        first: the last stable offset; the transaction begins there.
        until: one past the last offset that waits.
        producer_id: of the transaction; None where only the brokers have it.
        began_ms: the timestamp of its first record; None where nobody knows.
        newest_ms: the largest timestamp of the newest segments in the archive; None where nobody
            knows.
        is_archived: whether the log is the archive. Otherwise it is the brokers', up to the high
            watermark.
    """

    start: Offset
    first: Offset
    until: Offset
    producer_id: int | None
    began_ms: int | None
    newest_ms: int | None
    is_archived: bool = True


@dataclass(slots=True)
class Ends:
    """Where archives end; the last stable offset is looked for once for each version of the last
    segment.
    """

    archives: Archives
    _stable: dict[TopicPartition, tuple[Version, Offset, StableEnd]] = field(default_factory=dict)

    def of(self, tp: TopicPartition, view: ArchiveView | None, isolation: IsolationLevel) -> Offset:
        """One past the last offset that may be shown; 0 where nothing is stored.

        Raises:
            StorageError: as the port says.
        """
        if view is None:
            return Offset(0)
        if isolation is IsolationLevel.READ_UNCOMMITTED or not view.logs:
            return view.end
        return self._stable_end(tp, view).offset

    def undecided(self, tp: TopicPartition, view: ArchiveView | None) -> UndecidedTail | None:
        """What waits for a transaction; None where nothing does. The transaction's age costs a
        request or two; raises as `of`.
        """
        if view is None or not view.logs:
            return None
        stable = self._stable_end(tp, view)
        if stable.producer_id is None:
            return None
        began = timestamp_at(self.archives.opener(tp), view, stable.offset)
        return UndecidedTail(
            view.start, stable.offset, view.end, stable.producer_id, began, stable.newest_ms
        )

    def _stable_end(self, tp: TopicPartition, view: ArchiveView) -> StableEnd:
        version = view.logs[-1].version
        known = self._stable.get(tp)
        if known is None or known[:2] != (version, view.end):
            stable = last_stable_offset(self.archives.opener(tp), view)
            known = self._stable[tp] = (version, view.end, stable)
        return known[2]

    def up_to(
        self, tp: TopicPartition, view: ArchiveView, isolation: IsolationLevel, until: Offset
    ) -> Offset:
        """The same, for who reads up to an offset: below the last segment nothing is looked at, as
        who reads there decides transactions by itself.
        """
        reaches_last = bool(view.logs) and until > view.logs[-1].base_offset
        return self.of(tp, view, isolation) if reaches_last else view.end


@dataclass(frozen=True, slots=True)
class Edges:
    """One partition's, as one look has shown them; the latest offset only if it is asked for."""

    tp: TopicPartition
    view: ArchiveView | None
    isolation: IsolationLevel
    ends: Ends

    @property
    def earliest(self) -> Offset:
        """The first offset that is stored; 0 where nothing is."""
        return Offset(0) if self.view is None else self.view.start

    @property
    def latest(self) -> Offset:
        """See `Ends.of`."""
        return self.ends.of(self.tp, self.view, self.isolation)

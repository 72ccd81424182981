"""First and last readable offsets of a partition."""

from dataclasses import dataclass, field

from sidetier.archive.objects.segment import Version
from sidetier.archive.reader.last_stable_offset import last_stable_offset, timestamp_at
from sidetier.archive.view import ArchiveView
from sidetier.pipeline.planning.archives import Archives
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.segments.transactions import StableEnd


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """Offsets of one partition's archive.

    Attributes:
        start: the first stored offset.
        last_stable_offset: end (exclusive) of the offsets that may be returned; see `Ends.of`.
        end: end (exclusive) of the stored offsets.
        topic_id: id of the topic; None where the archive does not record it.
    """

    start: Offset
    last_stable_offset: Offset
    end: Offset
    topic_id: str | None


@dataclass(frozen=True, slots=True)
class UndecidedTail:
    """The end of a log that waits for a transaction: no marker in the log commits or aborts it.

    Attributes:
        start: the first offset of the log.
        first: the last stable offset, at which the transaction begins.
        until: end (exclusive) of the waiting offsets.
        producer_id: producer of the transaction; None if only the brokers know it.
        began_ms: timestamp of the transaction's first record; None if unknown.
        newest_ms: largest timestamp of the newest segments in the archive; None if unknown.
        is_archived: whether the log is the archive. Otherwise it is the brokers' log up to the high
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
    """Ends of archives. Caches the last stable offset for each version of the last segment."""

    archives: Archives
    _stable: dict[TopicPartition, tuple[Version, Offset, StableEnd]] = field(default_factory=dict)

    def of(self, tp: TopicPartition, view: ArchiveView | None, isolation: IsolationLevel) -> Offset:
        """Return the end (exclusive) of the offsets that may be returned; 0 where nothing is
        stored.
        """
        if view is None:
            return Offset(0)
        if isolation is IsolationLevel.READ_UNCOMMITTED or not view.logs:
            return view.end
        return self._stable_end(tp, view).offset

    def undecided(self, tp: TopicPartition, view: ArchiveView | None) -> UndecidedTail | None:
        """Return the offsets that wait for a transaction; None if none do.

        The transaction's age costs a request or two. Raises as `of`.
        """
        if view is None or not view.logs:
            return None
        stable = self._stable_end(tp, view)
        if stable.producer_id is None:
            return None
        began = timestamp_at(self.archives.source(tp), view, stable.offset)
        return UndecidedTail(
            view.start, stable.offset, view.end, stable.producer_id, began, stable.newest_ms
        )

    def _stable_end(self, tp: TopicPartition, view: ArchiveView) -> StableEnd:
        version = view.logs[-1].version
        known = self._stable.get(tp)
        if known is None or known[:2] != (version, view.end):
            stable = last_stable_offset(self.archives.source(tp), view)
            known = self._stable[tp] = (version, view.end, stable)
        return known[2]

    def up_to(
        self, tp: TopicPartition, view: ArchiveView, isolation: IsolationLevel, until: Offset
    ) -> Offset:
        """Return the same as `of` for a reader that ends at offset `until`.

        If `until` is not above the last segment's base offset, no segment is read: the reader finds
        the markers of its transactions in the following segments.
        """
        reaches_last = bool(view.logs) and until > view.logs[-1].base_offset
        return self.of(tp, view, isolation) if reaches_last else view.end


@dataclass(frozen=True, slots=True)
class Edges:
    """Earliest and latest offset of one partition in one snapshot of its archive.

    The latest offset is computed only when it is used.
    """

    tp: TopicPartition
    view: ArchiveView | None
    isolation: IsolationLevel
    ends: Ends

    @property
    def earliest(self) -> Offset:
        """The first stored offset; 0 where nothing is stored."""
        return Offset(0) if self.view is None else self.view.start

    @property
    def latest(self) -> Offset:
        """Return the end (exclusive) of what readers of this isolation level may read."""
        return self.ends.of(self.tp, self.view, self.isolation)

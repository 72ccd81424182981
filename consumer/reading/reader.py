"""Many partitions read from their archives, within one bound of memory."""

from sidetier.consumer.archive.bounds import ArchiveBounds
from sidetier.consumer.reading.observer import ReadingObserver
from sidetier.consumer.reading.settings import ReaderSettings
from sidetier.consumer.reading.taken import Taken
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.endpoints import ArchiveAccess


class ArchiveReader:
    """Reads partitions from the store, ahead of who takes the records.

    Every method may be called from any thread at any time. `take` hands out each partition's
    records in order of offsets, each offset once, from where it was assigned or sought.
    """

    def __init__(
        self,
        archive: ArchiveAccess,
        settings: ReaderSettings | None = None,
        observer: ReadingObserver | None = None,
    ) -> None:
        raise NotImplementedError

    def bounds(self, tp: TopicPartition, *, max_age: float = 0.0) -> ArchiveBounds | None:
        """From where to where the archive can be read; None where there is none.

        A look makes a request or two (the first one a listing: one for every 1,000 objects). With
        `max_age` a look that is at most so many seconds old will do.

        Raises:
            WrongPlaceError: nothing is stored here, but under another number of entropy bits.
            ArchiveError: what is stored is not what it should be.
            StorageError: as the port says.
        """
        raise NotImplementedError

    def offset_for_time(self, tp: TopicPartition, timestamp_ms: int) -> Offset | None:
        """The offset of the first record with this timestamp or a later one, as Kafka's
        ListOffsets means it; None where the archive has none, or there is no archive.

        Raises:
            As `bounds`; and DamagedSegmentError.
        """
        raise NotImplementedError

    def assign(self, tp: TopicPartition, offset: int) -> None:
        """Read a partition from this offset on; what was fetched of it before is dropped."""
        raise NotImplementedError

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Go on from another offset, or the same after a `Hole` or `Failed`.

        Raises:
            KeyError: the partition is not assigned.
        """
        raise NotImplementedError

    def unassign(self, tp: TopicPartition) -> None:
        """Forget a partition: nothing of it comes from `take` any more. No error if unknown."""
        raise NotImplementedError

    def pause(self, tp: TopicPartition) -> None:
        """Hand out nothing and fetch nothing until `resume`; what was fetched is dropped, the
        position is kept. Raises KeyError where it is not assigned.
        """
        raise NotImplementedError

    def resume(self, tp: TopicPartition) -> None:
        """Go on after `pause`, or at once after `Failed`; raises KeyError as `pause`."""
        raise NotImplementedError

    def position(self, tp: TopicPartition) -> Offset:
        """The next offset that will be handed out; raises KeyError as `pause`."""
        raise NotImplementedError

    def take(self, max_records: int, timeout: float) -> list[Taken]:
        """What is there of all partitions, in turn: at most so many records in all.

        Waits up to `timeout` seconds for the first; an empty list when nothing came, or `close` was
        called. At most one `Records` of a partition, and nothing behind its `Hole` or `Failed`. One
        caller at a time: others wait.

        Raises:
            ValueError: fewer than one record asked for.
        """
        raise NotImplementedError

    def close(self) -> None:
        """End all reading; a `take` that waits returns. May be called twice. Requests that are
        under way are abandoned after 2 seconds. The stores are closed by who opened them.
        """
        raise NotImplementedError

"""Find the live tail packs of a cluster, and read their rows.

Requests: one listing of the brokers; for each broker one GET of the index object, then one LIST for
every 1,000 packs; for each pack one ranged GET of its end (two if the index of the pack does not
fit in it; one more for the header of an encrypted pack). Packs never change, so their rows are
cached by key and etag. The index object is read before the listing: a pack that cleaning has
written since is then live by its number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sidetier.archive.tail.merge import ArchivedPart, MergedTail, PackedRow, PackRef
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import BrokerId, TopicPartition
from sidetier.storage.port import RemoteStorage


@dataclass(frozen=True, slots=True)
class TailContents:
    """The live packs of a cluster in one store.

    Attributes:
        packs: The packs, by broker and number.
        rows: The rows by partition, in order of broker and number.
        problems: Packs and index objects that cannot be read: the reason, by key. A pack that the
            index names and that is not stored is one of them.
        requests: Number of requests that this reading took.
    """

    packs: tuple[PackRef, ...]
    rows: Mapping[TopicPartition, Sequence[PackedRow]]
    problems: Mapping[str, str]
    requests: int

    def merged(self, tp: TopicPartition, archived: ArchivedPart) -> MergedTail:
        """Merge the rows of a partition. Raises as `merge`."""
        raise NotImplementedError


class TailInventory:
    """Reads the live packs of a cluster in one store. Thread-safe; keeps rows between readings.

    Args:
        store: The store.
        layout: How keys are made.
        concurrency: Maximum number of requests at the same time.
        max_cached_rows: Maximum number of rows that are kept for the next reading.
    """

    def __init__(
        self,
        store: RemoteStorage,
        layout: ArchiveLayout,
        *,
        concurrency: int = 16,
        max_cached_rows: int = 2_000_000,
    ) -> None:
        raise NotImplementedError

    def brokers(self) -> list[BrokerId]:
        """List the brokers that have a tail. One request."""
        raise NotImplementedError

    def packs(self, broker: BrokerId) -> list[PackRef]:
        """List the live packs of a broker, by number.

        Raises:
            MalformedObjectError: Its index object does not parse.
        """
        raise NotImplementedError

    def rows(self, pack: PackRef) -> tuple[PackedRow, ...]:
        """Read the rows of a pack, or take them from the cache.

        Raises:
            ObjectNotFoundError: The pack was deleted since it was listed.
            MalformedObjectError: It is damaged, or was written by a newer version.
        """
        raise NotImplementedError

    def read(self, brokers: Sequence[BrokerId] | None = None) -> TailContents:
        """Read all live packs, of all brokers or of some. Lists again if a pack was deleted."""
        raise NotImplementedError

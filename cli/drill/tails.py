"""The tails of the partitions of a drill, promoted into a temporary directory.

The steps are those of `sidetier tail promote`. What they write stays in the directory, so the
archive does not change.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.tail.survey import PartitionTail, survey
from sidetier.cli.tail import promote_tails
from sidetier.config.model import Config
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.factory import open_storage
from sidetier.storage.overlay import OverlayStorage
from sidetier.storage.provider import OpenStores
from sidetier.storage.settings import StorageEndpoint


@dataclass(frozen=True, slots=True)
class DrilledTails:
    """The archive, and the tails that were promoted.

    Attributes:
        archive: The archive with the promoted tails. It is written in the directory only.
        found: The tails that have records.
        starts: Where the tails that `promote` was called for begin.
        problems: Why one of them is not, or not completely, promoted.
    """

    config: Config
    archive: ArchiveAccess
    directory: Path
    found: Mapping[TopicPartition, PartitionTail]
    starts: dict[TopicPartition, Offset] = field(default_factory=dict)
    problems: dict[TopicPartition, str] = field(default_factory=dict)

    def promote(self, tp: TopicPartition) -> None:
        """Promote the tail of a partition, if it has one.

        Raises:
            StorageError: The packs or the archive cannot be read.
            OSError: The directory cannot be written.
        """
        tail = self.found.get(tp)
        if tail is None or tp in self.starts:
            return
        [done] = promote_tails(self.config, self.archive, [tail], self.directory)
        merged = done.tail.merged
        if merged is not None:
            self.starts[tp] = merged.start
        if done.problem is not None:
            self.problems[tp] = f"{tp}: its tail cannot be promoted: {done.problem}"


@contextmanager
def drilled_tails(
    config: Config, archive: ArchiveAccess, parent: Path | None
) -> Iterator[DrilledTails]:
    """Read the packs; the directory is removed at the end.

    Args:
        config: The configuration.
        archive: The archive, which is read only.
        parent: Directory for the files; None for the system's directory of temporary files.

    Raises:
        StorageError: The packs cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="sidetier-drill-tails-", dir=parent) as root:

        def opened(endpoint: StorageEndpoint) -> OverlayStorage:
            directory = tempfile.mkdtemp(prefix="store-", dir=root)
            above = open_storage(StorageEndpoint(f"file://{directory}"))
            return OverlayStorage(archive.stores.at(endpoint), above)

        with closing(OpenStores(archive.provider, opened)) as stores:
            access = ArchiveAccess(archive.provider, stores, archive.layout)
            found = {
                tail.tp: tail
                for tail in survey(archive).partitions
                if tail.has_records or tail.problem is not None
            }
            yield DrilledTails(config, access, Path(root), found)

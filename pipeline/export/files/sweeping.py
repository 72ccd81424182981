"""Removal of files of withdrawn runs. Names select candidates; each file's metadata decides."""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from sidetier.pipeline.export.files.names import parse_file_name, topic_prefix
from sidetier.pipeline.export.files.sink import noted
from sidetier.segments.errors import ObjectNotFoundError, PreconditionFailedError
from sidetier.storage.port import IfMatch, RemoteStorage


@dataclass(frozen=True, slots=True)
class Sweep:
    """One search for files of this topic that no manifest names.

    Attributes:
        directories: directories to search.
        named: keys that manifests name.
        named_from: the offset from which on `named` has all files, by Kafka partition.
        generation: generation of the run that sweeps. Only files of earlier runs are removed, so a
            late sweep cannot remove newer files.
        waiting: Kafka partitions whose files stay, because their replacements are not written yet.
    """

    topic: str
    directories: tuple[str, ...]
    named: AbstractSet[str]
    named_from: Mapping[int, int]
    generation: int
    waiting: frozenset[int] = frozenset()

    def suspects(self, store: RemoteStorage) -> Iterator[str]:
        """Yield keys that may belong to withdrawn runs by their names. Their metadata is not read
        yet.
        """
        for directory in self.directories:
            for row in store.list_objects(topic_prefix(directory, self.topic)):
                name = parse_file_name(row.key.rpartition("/")[2])
                if name is None or name.tp.topic != self.topic or row.key in self.named:
                    continue
                if name.tp.partition in self.waiting:
                    continue
                if name.start >= self.named_from.get(name.tp.partition, 0):
                    yield row.key

    def run(self, store: RemoteStorage) -> int:
        """Remove the files; return their number. After a kill, another sweep removes the rest.

        Raises:
            StorageError: see `RemoteStorage`.
        """
        return sum(self._remove(store, key) for key in self.suspects(store))

    def _remove(self, store: RemoteStorage, key: str) -> int:
        try:
            head = store.head_object(key)
            note = noted(head)
            if note is None or note.generation >= self.generation:
                return 0
            store.delete_object(key, condition=IfMatch(head.etag))
        except (ObjectNotFoundError, PreconditionFailedError):
            return 0
        return 1

"""Files of runs that were given up: found by their names, told by what they say, and removed."""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from sidetier.pipeline.export.files.names import parse_file_name, topic_prefix
from sidetier.pipeline.export.files.sink import noted
from sidetier.segments.errors import ObjectNotFoundError, PreconditionFailedError
from sidetier.storage.port import IfMatch, RemoteStorage


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is to be removed: a file of this topic that no manifest names.

    Attributes:
        directories: below which it may lie.
        named: keys that manifests name.
        named_from: by Kafka partition, the offset from which on `named` has all files.
        generation: of the run that sweeps; only what an earlier one has written is removed, so
            that a late sweep cannot touch what is newer than itself.
        waiting: Kafka partitions whose files stay, since those in their place are not written yet.
    """

    topic: str
    directories: tuple[str, ...]
    named: AbstractSet[str]
    named_from: Mapping[int, int]
    generation: int
    waiting: frozenset[int] = frozenset()

    def suspects(self, store: RemoteStorage) -> Iterator[str]:
        """Keys whose names say so; the files are to be asked."""
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
        """Remove them; returns how many there were. A kill leaves the rest for another sweep.

        Raises:
            StorageError: as the port says.
        """
        return sum(self._remove(store, key) for key in self.suspects(store))

    def _remove(self, store: RemoteStorage, key: str) -> int:
        try:
            head = store.head_object(key)
            found = noted(head)
            if found is None or found.generation >= self.generation:
                return 0
            store.delete_object(key, condition=IfMatch(head.etag))
        except (ObjectNotFoundError, PreconditionFailedError):
            return 0
        return 1

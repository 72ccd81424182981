"""The archive of a synthetic log, as `sidetier backfill` stores it, in memory for damage."""

from dataclasses import replace
from pathlib import Path

import yaml

from sidetier.archive.access import ArchiveAccess, open_archive
from sidetier.cli.main import run
from sidetier.config.storage import StorageConfig
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, TopicPartition
from sidetier.storage.fake import Contents, FakeStorage
from sidetier.storage.port import ObjectHead, StoredObject
from sidetier.storage.provider import OpenStores, PatternEndpointProvider
from sidetier.storage.settings import StorageEndpoint
from tests.harness.log_dir import LogDir, PartitionLog

LAYOUT = ArchiveLayout("prod-a", 3)
TP = TopicPartition("orders", 0)
RECORDS = 60
"""Records of a segment, so many that its indexes have entries."""


def archive_log(root: Path) -> tuple[PartitionLog, dict[str, StoredObject]]:
    """Archive five segments of 60 records: three of leader epoch 0, and two of epoch 4.

    Returns:
        The log, and all objects with their metadata and checksums.
    """
    log_dir, store = LogDir(root / "logs"), root / "store"
    log = log_dir.create(TP.topic, TP.partition)
    log.closed_segments(3, RECORDS)
    log.lead(4)
    log.closed_segments(2, RECORDS)
    log_dir.checkpoint_high_watermarks()
    storage = {"url": f"file://{store}", "prefix_entropy_bits": 3}
    config = root / "sidetier.yaml"
    settings = {
        "cluster": {"name": LAYOUT.cluster},
        "log_dirs": [str(log_dir)],
        "storage": storage,
        "uploader": {"threads": 2, "pins": {"min_free_disk": "0"}},
    }
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    assert run(["backfill", "--config", str(config)]) == 0
    with open_archive(LAYOUT.cluster, StorageConfig.model_validate(storage)) as archive:
        stored = archive.default_store
        objects = {
            row.key: replace(
                stored.get_object(row.key), head=stored.head_object(row.key, with_checksum=True)
            )
            for row in stored.list_objects("")
        }
    return log, objects


class StoredArchive:
    """Objects in memory that a test damages without the store's notice, as a disk does."""

    def __init__(self, objects: dict[str, StoredObject]) -> None:
        self._contents = Contents()
        self._contents.objects.update(objects)
        self.store = FakeStorage(contents=self._contents)
        provider = PatternEndpointProvider(StorageEndpoint("memory://archive"))
        stores = OpenStores(provider, lambda _: self.store)
        self.access = ArchiveAccess(provider, stores, LAYOUT)

    def key(self, base: int, kind: FileKind = FileKind.LOG) -> str:
        return LAYOUT.object_key(TP, BaseOffset(base), kind)

    def data(self, key: str) -> bytes:
        return self._contents.objects[key].data

    def head(self, key: str) -> ObjectHead:
        return self._contents.objects[key].head

    def remove(self, key: str) -> None:
        del self._contents.objects[key]

    def rot(self, key: str, data: bytes) -> None:
        """Change the bytes of an object, which keeps its etag, metadata and checksum."""
        stored = self._contents.objects[key]
        self._contents.objects[key] = StoredObject(replace(stored.head, size=len(data)), data)

    def rot_bit(self, key: str, position: int) -> None:
        data = bytearray(self.data(key))
        data[position] ^= 1
        self.rot(key, bytes(data))

    def note(self, key: str, **notes: str | None) -> None:
        """Change values in an object's metadata; None removes one. `_` in names means `-`."""
        stored = self._contents.objects[key]
        changes = {name.replace("_", "-"): value for name, value in notes.items()}
        metadata = {**stored.head.metadata, **changes}
        kept = {name: value for name, value in metadata.items() if value is not None}
        self._contents.objects[key] = replace(stored, head=replace(stored.head, metadata=kept))

"""Archives on the file-system store, as a sidecar leaves them."""

import os
from contextlib import closing
from dataclasses import astuple
from pathlib import Path
from unittest.mock import patch
from uuid import uuid4

from lib.log_dirs import LogDir, Shape, make_log_dir
from lib.options import work_directory
from sidetier.archive.objects.watermark import Watermark, encode_watermark
from sidetier.brokers.cache import fetch_once
from sidetier.segments.indexes import TIMEINDEX_ENTRY_BYTES, last_timestamp
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.notes import MAX_TIMESTAMP_KEY, NEXT_OFFSET_KEY
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.local import LocalStorage
from sidetier.storage.port import PutOptions

LAYOUT = ArchiveLayout("bench", 5)
_VERSION = 2


def stored(shape: Shape) -> Path:
    """Return the root of an archive in the cache, created if missing; it must not be changed."""
    parts = "-".join(str(int(part)) for part in (_VERSION, *astuple(shape)))
    return fetch_once(f"bench-planning-{parts}", lambda folder: _fill(folder, shape)).resolve()


def _fill(root: Path, shape: Shape) -> None:
    """Store a log dir as a sidecar stores it, without syncing files."""
    with (
        work_directory() as directory,
        closing(LocalStorage(root)) as store,
        patch.object(os, "fsync", lambda _handle: None),
    ):
        log_dir = make_log_dir(directory / "log-dir", shape)
        for tp in shape.topic_partitions():
            for base in shape.bases:
                _put(store, log_dir, tp, base)
            watermark = Watermark(
                BaseOffset(shape.bases[-1]), Offset(shape.next_offset), nonce=uuid4().hex
            )
            store.put_object(LAYOUT.watermark_key(tp), BytesBody(encode_watermark(watermark)))


def _put(store: LocalStorage, log_dir: LogDir, tp: TopicPartition, base: int) -> None:
    notes = {NEXT_OFFSET_KEY: str(base + log_dir.shape.offsets)}
    for kind in (FileKind.INDEX, FileKind.TIMEINDEX, FileKind.LOG):
        data = (log_dir.path / str(tp) / segment_file_name(BaseOffset(base), kind)).read_bytes()
        if kind is FileKind.TIMEINDEX:
            notes[MAX_TIMESTAMP_KEY] = str(last_timestamp(data[-TIMEINDEX_ENTRY_BYTES:], len(data)))
        metadata = notes if kind is FileKind.LOG else {}
        key = LAYOUT.object_key(tp, BaseOffset(base), kind)
        store.put_object(key, BytesBody(data), PutOptions(metadata=metadata))

"""A sidecar writes a chapter once an archive has a thousand segments."""

from pathlib import Path

import pytest

from sidetier.archive.objects.chapters import (
    SEGMENTS,
    chapter_entry,
    read_chapter,
    stored_chapters,
)
from sidetier.archive.objects.segment import segment_files
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.factory import open_plain
from sidetier.storage.settings import StorageEndpoint
from tests.harness.archive_objects import file_store
from tests.harness.log_dir import LogDir
from tests.harness.sidecar import Sidecar, basic_settings, merged
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.integration

WAIT = 120.0


def test_long_archive_gets_its_chapter(tmp_path: Path) -> None:
    log_dir = LogDir(tmp_path / "logs")
    log_dir.create("orders").closed_segments(SEGMENTS + 1)
    log_dir.checkpoint_high_watermarks()
    store = file_store(tmp_path / "store")
    settings = merged(basic_settings([log_dir.path], store), {"leadership": {"source": "static"}})
    objects = open_plain(StorageEndpoint(store.settings["url"]))
    layout, tp = ArchiveLayout("test", 5), TopicPartition("orders", 0)

    def topic_ids() -> set[str | None]:
        prefix = f"_sidetier/test/chapters/{tp}/"
        found = objects.list_directories(prefix)
        return {name.removeprefix(prefix).rstrip("/") for name in found}

    with Sidecar(tmp_path / "sidecar", settings, store) as sidecar:
        wait_until(topic_ids, WAIT, "a chapter")
        assert sidecar.stop() == 0
    (topic_id,) = topic_ids()
    (chapter,) = stored_chapters(objects, layout, tp, topic_id)
    prefix = layout.partition_prefix(tp)
    stored = list(segment_files(objects.list_objects(prefix), prefix))[:SEGMENTS]
    expected = [
        chapter_entry(segment.base_offset, segment.log, objects.head_object(segment.log.key))
        for segment in stored
    ]
    assert None not in expected
    assert read_chapter(objects, chapter) == expected
    assert int(chapter.start) == stored[0].base_offset

"""A file-system store on a full disk: the watermark waits, and catches up once space is freed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.archive_check import ArchiveReader, ArchiveWatch, compare, wait_until_stored
from tests.harness.archive_objects import file_store
from tests.harness.copied_log_dir import CopiedLogDir, Original, static_settings
from tests.harness.local_segments import SEGMENT_BYTES
from tests.harness.sidecar import Sidecar
from tests.harness.small_disk import SmallDisk, can_mount, file_size_limit, tmpfs

pytestmark = pytest.mark.integration


@pytest.fixture(params=["blocks", "file size"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk]:
    """A small disk. Without the right to mount, a file size limit replaces it."""
    if request.param == "blocks" and can_mount(tmp_path):
        with tmpfs(tmp_path / "disk", 8 * SEGMENT_BYTES) as small:
            yield small
    else:
        with file_size_limit(tmp_path / "disk", SEGMENT_BYTES * 3 // 4) as small:
            yield small


def test_full_disk_blocks_the_watermark_until_space_is_freed(
    disk: SmallDisk, original: Original, tmp_path: Path
) -> None:
    store = file_store(disk.root)
    copied = CopiedLogDir(tmp_path / "data", original)
    copied.add("t")
    settings = static_settings([copied], store)
    with Sidecar(tmp_path, settings, launcher=disk.launcher) as sidecar:
        failed = sidecar.wait_for_event("segment.upload_failed")
        assert failed["kind"] == "StoreFullError"
        assert disk.refusal in failed["error"]
        row = sidecar.partition("t")
        assert row is not None
        assert row["state"] in {"waiting", "uploading"}
        mark = ArchiveReader(store.objects).mark("t")
        assert mark is None or mark.next < original.bases[-1]
        assert sidecar.get("/healthz")[0] == 200
        disk.make_room(sidecar)
        with ArchiveWatch(store.objects):
            wait_until_stored(store.objects, "t", 0, original.bases[-1])
        assert sidecar.seen("gap.recorded") == []
        assert sidecar.stop() == 0
    compare(store.objects, copied.sent())
    assert list((disk.root / ".sidetier" / "tmp").iterdir()) == []

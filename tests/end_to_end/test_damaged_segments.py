"""Damage in a broker's log dir blocks the watermark and is reported, or is repaired."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness.archive_check import ArchiveReader, ArchiveWatch, compare, wait_until_stored
from tests.harness.archive_objects import ArchiveStore, file_store
from tests.harness.copied_log_dir import CopiedLogDir, Original, static_settings
from tests.harness.sidecar import Sidecar
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.integration

DAMAGED = 3
"""The segment that is damaged, counted from 0."""


@dataclass(frozen=True, slots=True)
class Files:
    """The files of the segment to damage."""

    log: Path
    index: Path
    timeindex: Path


def _cut(path: Path, by: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-by])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _cut_last_batch(files: Files) -> None:
    """Cut at a batch boundary, so that the rest consists of complete batches."""
    data, at, last = files.log.read_bytes(), 0, 0
    while at < len(data):
        last = at
        at += 12 + int.from_bytes(data[at + 8 : at + 12])
    files.log.write_bytes(data[:last])


def _preallocate(files: Files) -> None:
    """Restore the state after a kill: the entries, and zeros up to the size that the broker
    preallocates.
    """
    for path, size in ((files.index, 10_485_760), (files.timeindex, 10_485_756)):
        path.write_bytes(path.read_bytes().ljust(size, b"\0"))


HOLDING: dict[str, tuple[Callable[[Files], object], str]] = {
    "cut-tail": (lambda files: _cut(files.log, 10), "ends"),
    "cut-at-a-batch": (_cut_last_batch, "the next segment begins at"),
    "flipped-bit": (lambda files: _flip(files.log), "CRC32C"),
    "empty-log": (lambda files: files.log.write_bytes(b""), "no record batch"),
    "zeros": (lambda files: files.log.write_bytes(bytes(files.log.stat().st_size)), "magic"),
}

REPAIRED: dict[str, Callable[[Files], object]] = {
    "preallocated-index": _preallocate,
    "missing-index": lambda files: files.index.unlink(),
    "missing-time-index": lambda files: files.timeindex.unlink(),
    "flipped-index": lambda files: _flip(files.index),
    "cut-index": lambda files: _cut(files.index, 3),
}


def _files(directory: Path, original: Original) -> Files:
    name = f"{original.bases[DAMAGED]:020d}"
    return Files(*(directory / f"{name}.{kind}" for kind in ("log", "index", "timeindex")))


@pytest.fixture
def store(tmp_path: Path) -> ArchiveStore:
    return file_store(tmp_path / "store")


def test_damaged_log_blocks_the_watermark_and_is_reported(
    original: Original, store: ArchiveStore, tmp_path: Path
) -> None:
    log_dir = CopiedLogDir(tmp_path / "data", original)
    for name, (damage, _) in HOLDING.items():
        damage(_files(log_dir.add(name), original))
    log_dir.add("sound")
    held = original.bases[DAMAGED]
    with (
        Sidecar(tmp_path, static_settings([log_dir], store)) as sidecar,
        ArchiveWatch(store.objects),
    ):
        wait_until_stored(store.objects, "sound", 0, original.bases[-1])
        for name, (_, reason) in HOLDING.items():
            wait_until_stored(store.objects, name, 0, held)
            failed = sidecar.wait_for_event("segment.upload_failed", topic=name, base_offset=held)
            assert failed["kind"] == "DamagedSegmentError"
            assert reason in failed["error"]
            assert str(log_dir.path / f"{name}-0" / f"{held:020d}.log") in failed["error"]
            row = sidecar.partition(name)
            assert row is not None
            assert row["next_offset"] == held
            assert row["last_error"] == failed["error"]
        assert sidecar.metric("sidetier_errors_total", kind="DamagedSegmentError") >= len(HOLDING)
        assert sidecar.stop() == 0
    stored = ArchiveReader(store.objects).views()
    assert all(held not in stored[name, 0].files for name in HOLDING)


def test_damaged_index_is_rebuilt_like_the_brokers(
    original: Original, store: ArchiveStore, tmp_path: Path
) -> None:
    log_dir = CopiedLogDir(tmp_path / "data", original)
    sound = _files(original.directory, original)
    assert sound.index.stat().st_size >= 16, "an index without entries shows nothing"
    for name, damage in REPAIRED.items():
        damage(_files(log_dir.add(name), original))
    with Sidecar(tmp_path, static_settings([log_dir], store)) as sidecar:
        for name in REPAIRED:
            wait_until_stored(store.objects, name, 0, original.bases[-1])
        assert sidecar.stop() == 0
    views = ArchiveReader(store.objects).views()
    for name in REPAIRED:
        for path in (sound.index, sound.timeindex):
            stored = store.objects.read(views[name, 0].prefix + path.name)
            assert stored == path.read_bytes(), (name, path.suffix)
    compare(store.objects, log_dir.sent())


def test_zero_byte_index_is_stored_unchanged(
    original: Original, store: ArchiveStore, tmp_path: Path
) -> None:
    log_dir = CopiedLogDir(tmp_path / "data", original)
    files = _files(log_dir.add("empty"), original)
    files.index.write_bytes(b"")
    with Sidecar(tmp_path, static_settings([log_dir], store)) as sidecar:
        wait_until_stored(store.objects, "empty", 0, original.bases[-1])
        assert sidecar.stop() == 0
    view = ArchiveReader(store.objects).views()["empty", 0]
    assert store.objects.read(view.prefix + files.index.name) == b""
    compare(store.objects, log_dir.sent())


def _mark(store: ArchiveStore, topic: str) -> tuple[str, bytes]:
    for key in store.objects.listing():
        if key.endswith(f"/{topic}-0/offset.wm"):
            return key, store.objects.read(key) or b""
    raise AssertionError(f"{topic} has no watermark")


def test_malformed_watermark_stays_unchanged_and_is_reported(
    original: Original, store: ArchiveStore, tmp_path: Path
) -> None:
    log_dir = CopiedLogDir(tmp_path / "data", original)
    directories = {name: log_dir.add(name, segments=6) for name in ("bad", "good")}
    settings = static_settings([log_dir], store)
    with Sidecar(tmp_path, settings) as sidecar:
        for name in directories:
            wait_until_stored(store.objects, name, 0, original.bases[6])
        assert sidecar.stop() == 0
    key, _ = _mark(store, "bad")
    (tmp_path / "store" / key).write_bytes(b"12x\n")
    before = store.objects.listing()
    with Sidecar(tmp_path, settings) as sidecar:
        for directory in directories.values():
            log_dir.grow(directory, 12)
        wait_until_stored(store.objects, "good", 0, original.bases[12])
        failed = sidecar.wait_for_event("request.failed", topic="bad")
        assert failed["kind"] == "MalformedObjectError"
        assert key in failed["error"]
        row = sidecar.partition("bad")
        assert row is not None
        assert key in row["waiting_for"]
        sidecar.wait_until_ready()  # a blocked partition keeps it ready
        assert sidecar.stop() == 0
    assert store.objects.read(key) == b"12x\n"
    assert {k for k in store.objects.listing() - before if "/bad-0/" in k} == set()


def test_watermark_behind_the_disk_continues_and_one_ahead_of_it_alarms(
    original: Original, store: ArchiveStore, tmp_path: Path
) -> None:
    """Ahead of the disk, the cluster has lost stored records, so nothing can be added."""
    full = CopiedLogDir(tmp_path / "full", original)
    full.add("ahead")
    full.add("behind", segments=4)
    with Sidecar(tmp_path / "first", static_settings([full], store)) as sidecar:
        wait_until_stored(store.objects, "ahead", 0, original.bases[-1])
        wait_until_stored(store.objects, "behind", 0, original.bases[4])
        assert sidecar.stop() == 0
    before = _mark(store, "ahead")
    short = CopiedLogDir(tmp_path / "short", original)
    short.add("ahead", segments=5)
    short.add("behind", segments=9)
    with (
        Sidecar(tmp_path / "second", static_settings([short], store)) as sidecar,
        ArchiveWatch(store.objects),
    ):
        wait_until_stored(store.objects, "behind", 0, original.bases[9])

        def shown() -> bool:
            error = (sidecar.partition("ahead") or {}).get("last_error")
            return f"the archive reaches {original.bases[-1]}" in (error or "")

        wait_until(shown, 30, "an alarm about the watermark ahead of the disk")
        assert sidecar.seen("gap.recorded") == []
        assert sidecar.stop() == 0
    assert _mark(store, "ahead") == before

"""The reduced overhead of tasks in a reused Python worker."""

import gc
import importlib
import sys
import zipfile
import zipimport
from pathlib import Path

import pytest

from sidetier.pipeline.spark.worker_reuse import FrozenObjects, cache_zip_importers


def test_zip_is_read_again_only_if_the_file_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "modules.zip"

    def write(**modules: str) -> None:
        with zipfile.ZipFile(archive, "w") as made:
            for name, text in modules.items():
                made.writestr(f"zipped_package/{name}.py", text)

    write(__init__="", first="VALUE = 1")
    monkeypatch.syspath_prepend(str(archive))
    assert importlib.import_module("zipped_package.first").VALUE == 1
    read: list[str] = []
    reading = zipimport._read_directory  # type: ignore[attr-defined]

    def noted(path: str) -> object:
        read.append(path)
        return reading(path)

    monkeypatch.setattr(zipimport, "_read_directory", noted)
    importlib.invalidate_caches()
    assert read.count(str(archive)) >= 2  # as it is: for the zip, and for each package in it
    cache_zip_importers()
    read.clear()
    importlib.invalidate_caches()
    assert str(archive) not in read

    write(__init__="", first="VALUE = 1", second="VALUE = 2")
    importlib.invalidate_caches()
    assert str(archive) in read
    assert importlib.import_module("zipped_package.second").VALUE == 2
    archive.unlink()
    importlib.invalidate_caches()
    for name in ("zipped_package.first", "zipped_package.second", "zipped_package"):
        sys.modules.pop(name, None)


def test_only_objects_that_exist_after_the_first_task_are_excluded_from_collection() -> None:
    gc.unfreeze()
    frozen = FrozenObjects()
    try:
        frozen.freeze()
        count = gc.get_freeze_count()
        assert count > len(sys.modules)
        made = [[number] for number in range(1000)]
        frozen.freeze()
        assert count - 100 < gc.get_freeze_count() <= count
        assert any(item is made[0] for item in gc.get_objects())
    finally:
        gc.unfreeze()

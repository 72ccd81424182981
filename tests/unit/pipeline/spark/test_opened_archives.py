"""The archives that a process keeps open."""

import os
from pathlib import Path

import pytest

from sidetier.config.storage import StorageConfig
from sidetier.pipeline.spark import settings
from sidetier.pipeline.spark.settings import ArchivePlace, close_all, opened


def place(directory: Path) -> ArchivePlace:
    return ArchivePlace("prod-a", StorageConfig(url=f"file://{directory}"))


def test_archive_is_opened_once_per_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened(place(tmp_path))
    assert opened(place(tmp_path)) is first
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert opened(place(tmp_path)) is not first
    close_all()


def test_only_the_last_few_archives_stay_open(tmp_path: Path) -> None:
    first = opened(place(tmp_path / "0"))
    for number in range(1, settings._MAX_OPEN + 1):
        opened(place(tmp_path / str(number)))
    assert opened(place(tmp_path / "0")) is not first
    close_all()

"""Hints from the file system."""

import errno
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from watchdog.observers import Observer

from sidetier.leadership.kraft.follower import DirectoryWatch
from tests.harness.waiting import wait_until


@pytest.fixture
def hinted() -> Event:
    return Event()


@pytest.fixture
def watch(tmp_path: Path, hinted: Event) -> Iterator[DirectoryWatch]:
    watch = DirectoryWatch(tmp_path / "watched", hinted.set)
    yield watch
    watch.stop()


def touch_until_hinted(path: Path, hinted: Event) -> None:
    hinted.clear()

    def touched() -> bool:
        with path.open("ab") as file:
            file.write(b"x")
        return hinted.is_set()

    wait_until(touched, 5, "a hint")


def test_appends_and_new_files_cause_hints(
    tmp_path: Path, watch: DirectoryWatch, hinted: Event
) -> None:
    (tmp_path / "watched").mkdir()
    watch.ensure()
    touch_until_hinted(tmp_path / "watched" / "0.log", hinted)
    touch_until_hinted(tmp_path / "watched" / "0.log", hinted)


def test_directory_that_appears_later_or_again_is_watched(
    tmp_path: Path, watch: DirectoryWatch, hinted: Event
) -> None:
    watch.ensure()
    (tmp_path / "watched").mkdir()
    watch.ensure()
    touch_until_hinted(tmp_path / "watched" / "0.log", hinted)
    (tmp_path / "watched").rename(tmp_path / "old")
    (tmp_path / "watched").mkdir()
    watch.ensure()
    touch_until_hinted(tmp_path / "watched" / "0.log", hinted)


def test_watch_gives_up_once_without_inotify(
    tmp_path: Path,
    watch: DirectoryWatch,
    hinted: Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "watched").mkdir()
    tries: list[None] = []

    def refuse(_: object) -> None:
        tries.append(None)
        raise OSError(errno.EMFILE, "inotify instance limit reached")

    monkeypatch.setattr(Observer, "start", refuse)
    watch.ensure()
    watch.ensure()
    assert len(tries) == 1
    assert not hinted.is_set()


def test_no_hint_after_stop(tmp_path: Path, watch: DirectoryWatch, hinted: Event) -> None:
    (tmp_path / "watched").mkdir()
    watch.ensure()
    touch_until_hinted(tmp_path / "watched" / "0.log", hinted)
    watch.stop()
    watch.stop()
    hinted.clear()
    (tmp_path / "watched" / "1.log").touch()
    assert not hinted.wait(0.1)

"""The watch on real directories: events, events that the kernel dropped, and its end."""

import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from watchdog.observers.inotify_c import InotifyEvent, InotifyFD

from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.watching.watch import HintBoard, Hints, InotifyWatch, Watcher
from tests.harness.inotify import overflow
from tests.harness.waiting import wait_for, wait_until

SECONDS = 20
IN_Q_OVERFLOW = 0x4000
"""inotify(7): such an event has -1 for its watch descriptor, and no name."""


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    path = tmp_path / "logs" / "t-0"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def board() -> HintBoard:
    return HintBoard(wake=lambda: None, now=lambda: 0.0, capacity=100)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def watcher(partition: Path, board: HintBoard, registry: CollectorRegistry) -> Iterator[Watcher]:
    watcher = Watcher([str(partition.parent)], board, "inotify", Metrics(registry))
    yield watcher
    watcher.stop()


def overflows(registry: CollectorRegistry) -> float | None:
    return registry.get_sample_value("sidetier_watcher_overflows_total")


def hints(board: HintBoard) -> Hints:
    def taken() -> Hints | None:
        hints = board.take()
        return hints if hints.everything or hints.directories else None

    return wait_for(taken, SECONDS, "a hint")


def roll(partition: Path, base_offset: int) -> None:
    (partition / f"{base_offset:020d}.log").touch()


def test_roll_is_a_hint_for_its_directory(
    watcher: Watcher, partition: Path, board: HintBoard, registry: CollectorRegistry
) -> None:
    watcher.start()
    roll(partition, 100)
    assert hints(board) == Hints({str(partition): 0.0}, everything=False)
    assert overflows(registry) == 0


def test_new_leader_epoch_is_a_hint_for_its_directory(
    watcher: Watcher, partition: Path, board: HintBoard
) -> None:
    """The broker writes the checkpoint to a temporary file and renames it."""
    watcher.start()
    temporary = partition / "leader-epoch-checkpoint.tmp"
    temporary.touch()
    temporary.rename(partition / "leader-epoch-checkpoint")
    assert hints(board) == Hints({str(partition): 0.0}, everything=False)


def test_dropped_events_cause_a_full_rescan_and_the_watch_continues(
    watcher: Watcher,
    partition: Path,
    board: HintBoard,
    registry: CollectorRegistry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reader waits until more has happened than the kernel's queue holds."""
    go_on = threading.Event()
    plain = InotifyFD.read_events

    def held(self: InotifyFD) -> list[InotifyEvent]:
        go_on.wait(SECONDS)
        return plain(self)

    monkeypatch.setattr(InotifyFD, "read_events", held)
    watcher.start()
    overflow(partition)
    roll(partition, 100)
    created_meanwhile = partition.with_name("t-1")
    created_meanwhile.mkdir()
    assert board.take() == Hints({}, everything=False)
    go_on.set()
    wait_until(lambda: board.take().everything, SECONDS, "a look at everything")
    wait_until(lambda: overflows(registry) == 1, SECONDS, "the count")
    assert not watcher.keep_alive(), "it lives"
    for directory in (partition, created_meanwhile):
        roll(directory, 200)
        assert str(directory) in hints(board).directories


def test_raw_overflow_event_is_reported(
    watcher: Watcher, board: HintBoard, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [struct.pack("iIII", -1, IN_Q_OVERFLOW, 0, 0)]
    plain = InotifyFD._read_event_buffer

    def read(self: InotifyFD, size: int) -> bytes:
        return events.pop() if events else plain(self, size)

    monkeypatch.setattr(InotifyFD, "_read_event_buffer", read)
    watcher.start()
    assert hints(board) == Hints({}, everything=True)
    wait_until(lambda: overflows(registry) == 1, SECONDS, "the count")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_dead_reader_is_detected_and_replaced(
    watcher: Watcher, partition: Path, board: HintBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its thread receives events: without it the others would wait forever."""

    def broken(self: InotifyFD, event: InotifyEvent) -> None:
        raise RuntimeError(f"{self} cannot handle {event}")

    watcher.start()
    with monkeypatch.context() as patch:
        patch.setattr(InotifyFD, "handle_event", broken)
        roll(partition, 100)
        wait_until(watcher.keep_alive, SECONDS, "its death to be noticed")
    roll(partition, 200)
    assert str(partition) in hints(board).directories


def test_watch_that_cannot_start_leaves_no_thread(partition: Path, board: HintBoard) -> None:
    absent = [str(partition / "absent"), str(partition / "absent too")]
    watcher = Watcher(absent, board, "auto", Metrics(CollectorRegistry()))
    before = threading.active_count()
    watcher.start()
    assert watcher.polling
    wait_until(lambda: threading.active_count() == before, SECONDS, "its threads to end")


def test_unreadable_log_dir_is_watched_once_it_is_back(partition: Path, board: HintBoard) -> None:
    """The other log dirs are watched from the start."""
    away = partition.parent.with_name("away")
    log_dirs = [str(away), str(partition.parent)]
    watcher = Watcher(log_dirs, board, "auto", Metrics(CollectorRegistry()))
    watcher.start()
    try:
        assert not watcher.polling
        roll(partition, 100)
        assert str(partition) in hints(board).directories
        assert not watcher.keep_alive(), "it is still away"
        back = away / "t-1"
        back.mkdir(parents=True)
        assert watcher.keep_alive(), "everything must be listed"
        assert not watcher.keep_alive()
        roll(back, 100)
        assert str(back) in hints(board).directories
    finally:
        watcher.stop()


def test_step_of_an_emitter_that_is_stopped_logs_no_error(
    watcher: Watcher, caplog: pytest.LogCaptureFixture
) -> None:
    """Watchdog checks for a stop before each step; the stop may come after the check."""
    watcher.start()
    watch = watcher._watch
    assert isinstance(watch, InotifyWatch)
    assert watch._observer is not None
    [emitter] = watch._observer.emitters
    watcher.stop()
    emitter.queue_events(0.1)
    assert caplog.records == []

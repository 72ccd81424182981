"""The daemon's inbox, timers, workers, hints and bandwidth limit; time is injected."""

import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest

from sidetier.segments.offsets import TopicPartition
from sidetier.uploader.clock import Timers
from sidetier.uploader.sending.throttle import Throttle
from sidetier.uploader.watching.watch import HintBoard
from sidetier.uploader.workers import Finished, Task, WorkerDied, WorkerPool

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


class Now:
    """A clock that moves only when the test moves it."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


# -- throttle -------------------------------------------------------------------------------------


def throttle(rate: float | None, now: Now) -> tuple[Throttle, list[float]]:
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        now.seconds += seconds
        return False

    return Throttle(rate, now, wait), waits


def test_throttle_without_a_limit_never_waits() -> None:
    capped, waits = throttle(None, Now())
    capped.acquire(10**12)
    assert waits == []


def test_bandwidth_limit_holds_over_many_reads() -> None:
    now = Now()
    capped, _ = throttle(1000, now)
    for _ in range(50):
        capped.acquire(100)
    assert now.seconds - 100 == pytest.approx(5.0, abs=0.26)


def test_read_above_the_rate_waits_in_proportion() -> None:
    capped, waits = throttle(1000, Now())
    capped.acquire(10_000)
    assert sum(waits) == pytest.approx(10.0, abs=0.26)


def test_idle_hour_allows_no_burst() -> None:
    now = Now()
    capped, waits = throttle(1000, now)
    now.seconds += 3600
    capped.acquire(1000)
    assert sum(waits) == pytest.approx(0.75)


def test_wait_of_the_throttle_is_reported() -> None:
    told: list[float] = []
    capped = Throttle(1000, Now(), lambda _: True, told.append)
    capped.acquire(1000)
    assert sum(told) == pytest.approx(1.0, abs=0.26)


# -- hints ----------------------------------------------------------------------------------------


def board(capacity: int = 10) -> tuple[HintBoard, list[bool], Now]:
    woken: list[bool] = []
    now = Now()
    return HintBoard(lambda: woken.append(True), now, capacity), woken, now


def test_hints_for_one_directory_merge_with_the_time_of_the_first() -> None:
    hints, woken, now = board()
    for _ in range(3):
        hints.touch("/a")
        now.seconds += 1
    hints.touch("/b")
    taken = hints.take()
    assert taken.directories == {"/a": 100.0, "/b": 103.0}
    assert not taken.everything
    assert woken == [True], "once, until they are taken"


def test_taken_hints_are_cleared_and_the_next_hint_wakes_again() -> None:
    hints, woken, _ = board()
    hints.touch("/a")
    hints.take()
    assert hints.take().directories == {}
    hints.touch("/a")
    assert len(woken) == 2


def test_hints_beyond_the_capacity_request_a_full_rescan() -> None:
    hints, woken, _ = board(capacity=2)
    for name in "abc":
        hints.touch(name)
    taken = hints.take()
    assert taken.everything
    assert len(taken.directories) == 2
    assert len(woken) == 1
    assert not hints.take().everything


def test_full_rescan_request_wakes_once() -> None:
    hints, woken, _ = board()
    hints.touch_everything()
    hints.touch_everything()
    hints.touch("/a")
    assert hints.take().everything
    assert len(woken) == 1


# -- timers ---------------------------------------------------------------------------------------


def test_timers_fire_once_when_they_are_due() -> None:
    now = Now()
    timers = Timers(now)
    timers.at(105, B)
    timers.at(103, A)
    assert timers.next_in() == 3
    assert list(timers.due()) == []
    now.seconds = 104
    assert list(timers.due()) == [A]
    assert list(timers.due()) == []
    assert timers.next_in() == 1
    now.seconds = 200
    assert list(timers.due()) == [B]


def test_repeated_timer_is_kept_once() -> None:
    """A waiting partition is handled often and asks for the same time each time."""
    now = Now()
    timers = Timers(now)
    for _ in range(1000):
        timers.at(101, A)
    now.seconds = 101
    assert list(timers.due()) == [A]
    timers.at(102, A)
    now.seconds = 102
    assert list(timers.due()) == [A]


def test_only_the_earliest_timer_of_a_partition_is_kept() -> None:
    """When it fires, the partition is handled as a whole and asks for its next time itself."""
    now = Now()
    timers = Timers(now)
    for when in (107, 103, 105, 101, 109):
        timers.at(when, A)
    timers.at(102, B)
    assert timers.next_in() == 1
    now.seconds = 101
    assert list(timers.due()) == [A]
    now.seconds = 200
    assert list(timers.due()) == [B]
    timers.at(205, A)
    assert timers.next_in() == 5
    now.seconds = 205
    assert list(timers.due()) == [A]


def test_later_timers_do_not_accumulate() -> None:
    """A waiting partition asks at each call, always for a slightly later time."""
    now = Now()
    timers = Timers(now)
    for late in range(1000):
        timers.at(101 + late, A)
    assert len(timers._heap) == 1


# -- workers ------------------------------------------------------------------------------


class Owner:
    """The daemon's side of a pool."""

    def __init__(self, size: int = 2) -> None:
        self._incoming: queue.SimpleQueue[Finished[Any] | WorkerDied] = queue.SimpleQueue()
        self.pool: WorkerPool[Any] = WorkerPool("test", size, self._incoming.put)

    def submit(self, work: Callable[[], object]) -> None:
        self.pool.submit(Task(work, lambda error: f"failed: {error}"))

    def take(self) -> Finished[Any]:
        """The next result of a task."""
        finished = self._incoming.get(timeout=5)
        assert isinstance(finished, Finished)
        self.pool.release()
        return finished

    def take_death(self) -> None:
        assert self._incoming.get(timeout=5) == WorkerDied("test")


def test_a_task_runs_on_a_worker_and_its_event_comes_back() -> None:
    owner = Owner()
    threads: list[str] = []

    def work() -> int:
        threads.append(threading.current_thread().name)
        return 7

    owner.submit(work)
    finished = owner.take()
    assert (finished.pool, finished.event, finished.error) == ("test", 7, None)
    assert threads[0].startswith("test-")
    assert owner.pool.free == 2
    owner.pool.stop()


def test_an_error_becomes_an_event_and_the_worker_goes_on() -> None:
    owner = Owner(1)
    owner.submit(lambda: 1 // 0)
    finished = owner.take()
    assert isinstance(finished.error, ZeroDivisionError)
    assert finished.event == f"failed: {finished.error}"
    owner.submit(lambda: "well")
    assert owner.take().event == "well"
    assert owner.pool.death is None
    owner.pool.stop()


def test_a_worker_is_busy_until_its_result_is_taken() -> None:
    owner = Owner(1)
    gate = threading.Event()
    owner.submit(gate.wait)
    assert (owner.pool.free, owner.pool.busy) == (0, 1)
    with pytest.raises(RuntimeError, match="no free worker"):
        owner.submit(gate.wait)
    gate.set()
    owner.take()
    assert owner.pool.busy == 0
    owner.pool.stop()


def test_death_of_a_worker_is_recorded_and_wakes_the_owner() -> None:
    owner = Owner(1)

    def die() -> None:
        raise SystemExit("out of memory")

    owner.submit(die)
    owner.take_death()
    assert isinstance(owner.pool.death, SystemExit)
    owner.pool.stop()


def test_stop_ends_idle_threads_at_once_and_busy_ones_after_their_task() -> None:
    owner = Owner(2)
    gate = threading.Event()
    owner.submit(gate.wait)
    owner.pool.stop()
    owner.pool.stop()
    idle = [t for t in owner.pool._threads if not t.is_alive()]
    assert len(idle) <= 1
    gate.set()
    for thread in owner.pool._threads:
        thread.join(5)
        assert not thread.is_alive()
    assert owner.take().event is True

"""A store that fails or hangs beside a store that works."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from sidetier.segments.errors import (
    ObjectNotFoundError,
    SegmentGoneError,
    StoreUnavailableError,
)
from sidetier.segments.offsets import LeaderEpoch, TopicPartition
from sidetier.storage.fake import FakeStorage
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.workers import SharedPool, StoreGate, Task, most_for_one
from tests.harness.daemons import RunningDaemon, Site, place_of, stored_next
from tests.harness.log_dir import LogDir, PartitionLog

AWAY = StoreUnavailableError("connection refused")


@pytest.mark.parametrize(
    ("threads", "stores", "most"),
    [(8, 1, 8), (8, 2, 6), (32, 2, 24), (8, 3, 6), (2, 2, 1), (1, 2, 1), (8, 20, 1), (1, 1, 1)],
)
def test_one_store_leaves_some_threads_to_the_others(threads: int, stores: int, most: int) -> None:
    assert most_for_one(threads, stores) == most


# -- the gate -------------------------------------------------------------------------------------


@dataclass
class Store:
    """A gate and the jobs that pass it."""

    gate: StoreGate = field(default_factory=StoreGate)
    now: float = 0.0

    def begin(self) -> Callable[[Exception | None], None]:
        """Begin a job; call the returned function to end it."""
        assert self.gate.admits(self.now)
        began, probe = self.now, self.gate.enter()
        return lambda error: self.gate.leave(error, began=began, now=self.now, probe=probe)

    @property
    def admits(self) -> bool:
        return self.gate.admits(self.now)


@pytest.fixture
def gate() -> Store:
    """A gate of a store that has not received any request."""
    return Store()


def test_first_request_to_a_store_runs_alone(gate: Store) -> None:
    end = gate.begin()
    assert not gate.admits
    end(None)
    gate.begin()
    gate.begin()
    assert gate.admits


@pytest.mark.parametrize("error", [ObjectNotFoundError("no such key")])
def test_refusal_counts_as_an_answer(gate: Store, error: Exception) -> None:
    gate.begin()(error)
    gate.begin()
    assert gate.admits


@pytest.mark.parametrize("error", [SegmentGoneError("no file"), OSError("no disk")])
def test_local_error_does_not_count_as_an_answer(gate: Store, error: Exception) -> None:
    gate.begin()(error)
    gate.begin()
    assert not gate.admits, "one at a time, as before"


def test_failed_store_is_probed_at_growing_intervals(gate: Store) -> None:
    waited = []
    for _ in range(6):
        gate.begin()(AWAY)
        began = gate.now
        while not gate.admits:
            gate.now += 0.5
        waited.append(gate.now - began)
        assert gate.now < 100
    assert waited == [1, 2, 4, 8, 10, 10]


def test_first_answer_opens_the_gate_at_once(gate: Store) -> None:
    for _ in range(3):
        gate.begin()(AWAY)
        gate.now += 10
    gate.begin()(None)
    gate.begin()
    assert gate.admits
    gate.now += 1
    gate.begin()(AWAY)
    gate.now += 1
    assert gate.admits, "the next failure is the first again"


def test_failures_of_earlier_requests_do_not_extend_the_closing_of_the_gate(gate: Store) -> None:
    gate.begin()(None)
    gate.now += 1
    under_way = [gate.begin() for _ in range(5)]
    gate.now += 1
    for end in under_way:
        end(AWAY)
    gate.now += 1
    assert gate.admits


def test_failure_of_one_object_does_not_close_the_gate_while_others_succeed(gate: Store) -> None:
    gate.begin()(None)
    gate.now += 1
    slow, quick = gate.begin(), gate.begin()
    gate.now += 1
    quick(None)
    slow(AWAY)
    assert gate.admits


def test_long_upload_does_not_delay_the_probe(gate: Store) -> None:
    gate.begin()(None)
    gate.now += 1
    long, other = gate.begin(), gate.begin()
    other(AWAY)
    gate.now += 1
    assert gate.admits
    long(None)
    assert gate.admits


class ByHand:
    """A pool of two threads whose tasks end when the test says so."""

    def __init__(self) -> None:
        self.tasks: list[Task[Any]] = []

    @property
    def free(self) -> int:
        return 2 - len(self.tasks)

    @property
    def busy(self) -> int:
        return len(self.tasks)

    def submit(self, task: Task[Any]) -> None:
        self.tasks.append(task)


def test_single_store_uses_every_thread_and_two_stores_share_them() -> None:
    hand, one, two = ByHand(), StoreGate(), StoreGate()
    pool: SharedPool[object] = SharedPool(hand, lambda: 0.0)  # type: ignore[arg-type]
    task: Task[object] = Task(lambda: None, lambda error: error)
    partition = Partition(TopicPartition("t", 0), LeaderEpoch(0))

    def answered() -> None:
        admission = hand.tasks.pop(0).admission
        assert admission is not None
        assert admission.partition is partition
        pool.left(admission, None)

    pool.submit(one, task, partition)
    answered()
    pool.submit(one, task, partition)
    assert pool.has_room(one)
    assert pool.has_room(two)
    assert not pool.has_room(one), "now that there is another"
    pool.submit(two, task, partition)
    assert not pool.has_room(two)
    answered()
    assert pool.has_room(one)


# -- the daemon -----------------------------------------------------------------------------------


@dataclass
class Two:
    """Two stores: topic `bad` goes to one of them, all other topics to the other."""

    site: Site
    log_dir: LogDir
    bad: FakeStorage
    good: FakeStorage
    first: PartitionLog
    second: PartitionLog

    def roll(self, count: int) -> None:
        for log in (self.first, self.second):
            log.closed_segments(count)
        self.log_dir.checkpoint_high_watermarks()


@pytest.fixture
def two(site: Site, log_dir: LogDir, store: FakeStorage) -> Two:
    """Two stores with one partition each."""
    bad = FakeStorage()
    places = {"bad": place_of(bad), "good": place_of(store)}
    site.places = lambda topic: places[topic]
    return Two(site, log_dir, bad, store, log_dir.create("bad"), log_dir.create("good"))


def reaches(store: FakeStorage, log: PartitionLog, until: int) -> bool:
    return stored_next(store, log.tp) == until


def stored(running: RunningDaemon, two: Two, until: int) -> None:
    running.wait(lambda: stored_next(two.good, two.second.tp) == until, "the good store's")


@pytest.mark.parametrize("operation", ["get", "list", "put"])
def test_store_that_hangs_from_the_start_does_not_starve_the_other(
    two: Two, operation: str
) -> None:
    more = [two.log_dir.create("bad", number) for number in range(1, 8)]
    for log in more:
        log.closed_segments(3)
    two.roll(3)
    with two.site.running() as running:
        with two.bad.hold(operation):
            running.wait(lambda: two.bad.count(operation) > 0, "the bad store to be asked")
            stored(running, two, 30)
            two.roll(2)
            stored(running, two, 50)
            assert stored_next(two.bad, two.first.tp) is None
        for log, end in [(two.first, 50), *((log, 30) for log in more)]:
            running.wait(partial(reaches, two.bad, log, end), "the bad store")


def test_store_that_begins_to_hang_does_not_starve_the_other(two: Two) -> None:
    two.roll(1)
    with two.site.running() as running:
        stored(running, two, 10)
        running.wait(lambda: stored_next(two.bad, two.first.tp) == 10, "the bad store")
        before = two.bad.count("put")
        with two.bad.hold("put"):
            two.roll(4)
            running.wait(lambda: two.bad.count("put") > before, "the bad store to be asked")
            stored(running, two, 50)
            two.roll(4)
            stored(running, two, 90)
        running.wait(lambda: stored_next(two.bad, two.first.tp) == 90, "the bad store")


def test_unavailable_store_is_probed_rarely_and_caught_up_with_after_the_outage(two: Two) -> None:
    logs = [two.first, *(two.log_dir.create("bad", number) for number in range(1, 20))]
    for log in logs[1:]:
        log.closed_segments(2)
    two.roll(2)
    with two.site.running(request_threads=8) as running:
        with two.bad.away():
            stored(running, two, 20)
            running.wait(lambda: two.bad.count() >= 2, "a second probe")
            assert two.bad.count() <= 3, "twenty partitions wait for it, and one asks"
        for log in logs:
            running.wait(partial(reaches, two.bad, log, 20), "all of them")

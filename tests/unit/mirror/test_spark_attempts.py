"""A fenced attempt of a task waits, takes over from a dead one, and never fights."""

from collections.abc import Callable

import pytest

from sidetier.mirror.spark_copy import STANDBY_SECONDS, Standby, Step, run_attempt
from sidetier.segments.errors import BrokerUnavailableError, ProducerFencedError
from sidetier.segments.offsets import Offset

END = Offset(100)


class Partition:
    """A partition copied by several attempts: its progress, its newest producer, and the time."""

    def __init__(self, *moves: tuple[float, int]) -> None:
        """`moves` are the times at which another attempt commits, with its progress."""
        self.moves = moves
        self.now = 0.0
        self.copies: list[float] = []

    def progress(self) -> Offset | None:
        reached = [offset for at, offset in self.moves if at <= self.now]
        return Offset(reached[-1]) if reached else None

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def run(self, copy: Callable[[int], None], patience: float = STANDBY_SECONDS) -> None:
        def attempt() -> None:
            self.copies.append(self.now)
            copy(len(self.copies))

        run_attempt(
            attempt,
            self.progress,
            Standby(END, patience),
            clock=lambda: self.now,
            pause=self.pause,
        )


def fenced(_number: int) -> None:
    raise ProducerFencedError("another process with the transactional id has started")


def fenced_once(number: int) -> None:
    if number == 1:
        fenced(number)


def test_an_attempt_without_rivals_copies_once() -> None:
    partition = Partition()
    partition.run(lambda _: None)
    assert partition.copies == [0.0]


def test_fenced_attempt_waits_until_the_other_one_is_done() -> None:
    moves = [(float(at), at // 10) for at in range(0, 1001, 10)]
    partition = Partition(*moves)
    partition.run(fenced)
    assert partition.copies == [0.0]
    assert partition.now == 1000.0


def test_fenced_attempt_takes_over_from_a_dead_one() -> None:
    partition = Partition((0.0, 10), (30.0, 50))
    partition.run(fenced_once)
    assert partition.copies == [0.0, 30.0 + STANDBY_SECONDS]


def test_progress_that_cannot_be_read_counts_as_no_progress() -> None:
    partition = Partition()
    partition.run(fenced_once)
    assert partition.copies == [0.0, STANDBY_SECONDS]


def test_two_slow_attempts_wait_longer_after_each_takeover() -> None:
    """Each needs 200 s for a commit: with a constant patience neither would ever commit."""
    partition = Partition()

    def copy(number: int) -> None:
        if number < 4:
            fenced(number)

    partition.run(copy)
    waits = [later - at for at, later in zip(partition.copies, partition.copies[1:], strict=False)]
    assert waits == [60.0, 120.0, 240.0]


def test_patience_has_an_upper_bound() -> None:
    standby = Standby(END)
    waits = []
    now = 0.0
    for _ in range(10):
        standby.begin(now)
        began = now
        while standby.step(Offset(5), now) is Step.WAIT:
            now += 1.0
        waits.append(now - began)
    assert waits[-1] == waits[-2] == 960.0


def test_other_failure_fails_the_task() -> None:
    def broken(_number: int) -> None:
        raise BrokerUnavailableError("gone")

    with pytest.raises(BrokerUnavailableError):
        Partition((0.0, 100)).run(broken)


def test_partition_copied_beyond_the_end_is_complete() -> None:
    assert Standby(END).step(Offset(120), 0.0) is Step.END

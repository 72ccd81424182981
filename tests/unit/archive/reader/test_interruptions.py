"""An exception that ends a `take` (KeyboardInterrupt, a bug) loses no result, and repeats none."""

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from sidetier.archive import segment_bytes
from sidetier.archive.errors import ArchiveReplacedError
from sidetier.archive.reader import ArchiveReader, Failed, Gap, ReachedEnd, Taken
from sidetier.archive.reader import reader as reader_module
from sidetier.archive.reader.results import NullReadingObserver
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition
from sidetier.storage.fake import FakeStorage
from tests.harness.made_archive import (
    Clock,
    MadeArchive,
    batches,
    offsets,
    reading,
    take_to_end,
)
from tests.harness.record_batches import TransactionalLog
from tests.harness.waiting import wait_until

A, B, C, D, LAST = (TopicPartition("t", number) for number in range(5))
END, GAP = Offset(40), OffsetRange(Offset(10), Offset(20))
STRIDE = 79
"""Every call takes minutes: there are about 3,000. Each run begins with another one."""
FILES = {segment_bytes.__file__, *map(str, Path(reader_module.__file__).parent.glob("*.py"))}


class FailingDecoding(NullReadingObserver):
    """Fail when B is decoded, while `fails` is set."""

    def __init__(self) -> None:
        self.fetched_partitions: set[TopicPartition] = set()
        self.fails = True

    def fetched(self, tp: TopicPartition, size: int) -> None:  # noqa: ARG002 - of the port
        self.fetched_partitions.add(tp)

    def prefetch(self, tp: TopicPartition, *, hit: bool) -> None:  # noqa: ARG002 - of the port
        if tp == B and self.fails:
            raise KeyboardInterrupt


@pytest.fixture
def store() -> FakeStorage:
    store = FakeStorage()
    for tp in (A, B, LAST):
        MadeArchive(store, tp=tp).segments(0, 20, END)
    return store


@contextmanager
def interrupted(store: FakeStorage) -> Iterator[ArchiveReader]:
    """Yield a reader whose `take` was interrupted in B after it had records of A."""
    observer = FailingDecoding()
    with reading(store, observer=observer, fetch_threads=1) as reader:
        # The only thread fetches a range of LAST after it has reported those of A and B.
        for tp in (A, B, LAST):
            reader.assign(tp, 0)
            wait_until(partial(observer.fetched_partitions.__contains__, tp), 20, f"{tp}")
        with pytest.raises(KeyboardInterrupt):
            reader.take(1000, 5)
        reader.unassign(LAST)
        observer.fails = False
        yield reader


def test_position_stays_before_the_results_that_were_not_returned(store: FakeStorage) -> None:
    with interrupted(store) as reader:
        assert reader.position(A) == 0
        taken: list[Taken] = []
        while offsets(one for one in taken if one.tp == A) != list(range(END)):
            taken += (part := reader.take(3, 5))
            assert len(offsets(part)) <= 3
        assert reader.position(A) == END


@pytest.mark.parametrize("end", ["seek", "assign", "unassign", "pause", "close"])
def test_results_that_were_not_returned_do_not_come_later(store: FakeStorage, end: str) -> None:
    with interrupted(store) as reader:
        if end == "close":
            reader.close()
            assert reader.take(1000, 0) == []
            return
        if end in {"seek", "assign"}:
            getattr(reader, end)(A, 30)
        else:
            getattr(reader, end)(A)
        taken: list[Taken] = []
        while offsets(one for one in taken if one.tp == B) != list(range(END)):
            taken += reader.take(1000, 5)
        if end == "pause":
            assert not offsets(one for one in taken if one.tp == A)
            assert reader.position(A) == 0
            reader.resume(A)
        while end != "unassign" and ReachedEnd(A, END) not in taken:
            taken += reader.take(1000, 5)
        firsts = {"seek": 30, "assign": 30, "unassign": END, "pause": 0}
        assert offsets(one for one in taken if one.tp == A) == list(range(firsts[end], END))


@pytest.mark.parametrize("end", ["close", "unassign", "assign"])
def test_an_interrupted_range_leaves_the_budget(store: FakeStorage, end: str) -> None:
    with interrupted(store) as reader:
        if end == "assign":
            reader.assign(B, END)
        for tp in (A, B):
            reader.unassign(tp)
        if end == "close":
            reader.close()
        wait_until(partial(has_no_memory, reader), 5, "all memory to be given back")


def has_no_memory(reader: ArchiveReader) -> bool:
    return reader.held_memory == 0


class Interruption:
    """Raise KeyboardInterrupt once, at the given call that a function of the reader begins, or has
    made of a function in C: there, Python handles signals.
    """

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:  # noqa: ANN401
        code = frame.f_code
        if event not in {"call", "c_return"} or code.co_name == "<genexpr>":
            return
        if code.co_filename in FILES and self.left > 0:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt

    def take(self, reader: ArchiveReader, most: int) -> list[Taken]:
        """Call `take`, which may be interrupted."""
        before = sys.getprofile()
        sys.setprofile(self)
        try:
            return reader.take(most, 5)
        finally:
            sys.setprofile(before)


def is_at_end(taken: Iterable[list[Taken]]) -> bool:
    return all(parts and isinstance(parts[-1], ReachedEnd) for parts in taken)


def with_transactions(store: FakeStorage) -> list[int]:
    """Store D, with an aborted transaction in two segments. Return the visible offsets."""
    archive, log = MadeArchive(store, tp=D), TransactionalLog()
    log.write(7, 5)
    log.write(-1, 5, transactional=False)
    archive.segment(0, log.encoded)
    log = TransactionalLog(next_offset=10)
    log.write(7, 5)
    log.mark(7, commit=False)
    log.write(7, 4)
    log.mark(7, commit=True)
    archive.segment(10, log.encoded)
    archive.mark(10, 21)
    return [*range(5, 10), *range(16, 20)]


# Python does not raise what interrupts the end of a generator that nobody reads any more.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interruption_at_any_call_loses_and_repeats_nothing(store: FakeStorage) -> None:
    with_gap = MadeArchive(store, tp=C)
    with_gap.segments(0, 10)
    with_gap.segments(20, 30)
    committed = with_transactions(store)
    number, misses = random.randrange(1, STRIDE), 0
    while misses < 3:
        sys.stdout.write(f"interrupts call {number}\n")  # shown if it hangs
        interruption = Interruption(number)
        taken: dict[TopicPartition, list[Taken]] = {tp: [] for tp in (A, B, C, D)}
        with reading(store, first_range=200, largest_range=1000) as reader:
            for tp in taken:
                reader.assign(tp, 0)
            while not is_at_end(taken.values()):
                with suppress(KeyboardInterrupt):
                    for one in interruption.take(reader, 15):
                        taken[one.tp].append(one)
                        if isinstance(one, Gap):
                            reader.seek(C, one.offsets.end)
            for tp in taken:
                reader.unassign(tp)
            wait_until(partial(has_no_memory, reader), 5, "all memory to be given back")
        assert offsets(taken[A]) == offsets(taken[B]) == list(range(END)), number
        assert offsets(taken[C]) == [*range(10), *range(20, 30)], number
        assert [one.offsets for one in taken[C] if isinstance(one, Gap)] == [GAP]
        assert offsets(taken[D]) == committed, number
        misses = misses + 1 if interruption.left else 0
        number += STRIDE
    assert number > 500, "interrupts far fewer calls than a reader makes"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interruption_at_any_call_loses_no_error_about_another_history() -> None:
    number, misses = random.randrange(1, 12), 0
    while misses < 3:
        sys.stdout.write(f"interrupts call {number}\n")  # shown if it hangs
        interruption, clock, taken = Interruption(number), Clock(), list[Taken]()
        archive = MadeArchive(FakeStorage(), tp=A)
        archive.segments(0, 20, END)
        with reading(archive.store, clock=clock) as reader:
            reader.assign(A, 0)
            take_to_end(reader)
            archive.lose(20)
            archive.segment(20, batches(20, 60, each=4))
            archive.mark(20, 60, leader_epoch=5)
            clock.now += 10
            while not taken:
                with suppress(KeyboardInterrupt):
                    taken += interruption.take(reader, 15)
        (failed,) = taken
        assert isinstance(failed, Failed), number
        assert isinstance(failed.error, ArchiveReplacedError), number
        misses = misses + 1 if interruption.left else 0
        number += 12


def test_a_pause_by_another_thread_repeats_nothing(
    store: FakeStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    gather = ArchiveReader._gather

    def paused_afterwards(reader: ArchiveReader, *given: Any) -> list[Taken]:  # noqa: ANN401
        results = gather(reader, *given)
        reader.pause(A)
        reader.resume(A)
        return results

    with reading(store) as reader:
        reader.assign(A, 0)
        taken: list[Taken] = []
        wait_until(lambda: reader.held_memory > 0, 20, "a range")
        monkeypatch.setattr(ArchiveReader, "_gather", paused_afterwards)
        taken += reader.take(5, 5)
        monkeypatch.undo()
        assert reader.position(A) == len(offsets(taken))
        taken += take_to_end(reader)
    assert offsets(taken) == list(range(END))


class Bug(NullReadingObserver):
    """Raise MemoryError when B is decoded, while `fails` is set."""

    fails = True

    def prefetch(self, tp: TopicPartition, *, hit: bool) -> None:  # noqa: ARG002 - of the port
        if tp == B and self.fails:
            raise MemoryError


def test_an_exception_in_one_partition_does_not_stop_the_others(store: FakeStorage) -> None:
    bug, clock = Bug(), Clock()
    with reading(store, observer=bug, clock=clock, failed_pause=5) as reader:
        for tp in (B, A):
            reader.assign(tp, 0)
        taken: list[Taken] = []
        errors = 0
        while not (errors and ReachedEnd(A, END) in taken):
            try:
                taken += reader.take(3, 5)
            except MemoryError:
                errors += 1
        assert errors == 1
        assert offsets(taken) == list(range(END))
        assert reader.take(3, 0.1) == []
        bug.fails = False
        clock.now += 5.1
        while ReachedEnd(B, END) not in taken:
            taken += reader.take(3, 5)
        assert offsets(one for one in taken if one.tp == B) == list(range(END))


def test_an_exception_of_a_dropped_partition_is_not_raised(store: FakeStorage) -> None:
    with reading(store, observer=Bug(), fetch_threads=1) as reader:
        for tp in (B, A):
            reader.assign(tp, 0)
        wait_until(lambda: reader.held_memory > 0, 20, "a range")
        taken: list[Taken] = []
        with suppress(MemoryError):  # B alone had a range
            taken += reader.take(3, 5)
        reader.unassign(B)
        taken += take_to_end(reader)
    assert offsets(taken) == list(range(END))

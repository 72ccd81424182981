"""Requests in the calling thread and in the threads of a pool."""

from threading import Barrier, get_ident

import pytest

from sidetier.pipeline.planning.request_pool import RequestPool


@pytest.mark.parametrize("count", [0, 1, 2, 7, 33, 5000])
def test_answers_come_in_the_order_of_the_requests(count: int) -> None:
    with RequestPool(3) as pool:
        assert list(pool.each(lambda entry: entry * 2, range(count))) == [
            item * 2 for item in range(count)
        ]


class Store:
    """A store whose answers take `seconds`, `work` of which is CPU time of the caller."""

    def __init__(self, seconds: float, work: float, opening: float = 0.0) -> None:
        self.seconds = seconds
        self.work = work
        self.now = self.worked = 0.0
        self.opening = opening
        self.askers: list[int] = []

    def ask(self, one: int) -> int:
        self.askers.append(get_ident())
        self.worked += self.work + self.opening
        self.now += self.seconds + self.opening
        self.opening = 0.0
        return one

    def pool(self) -> RequestPool:
        return RequestPool(3, lambda: self.now, lambda: self.worked)


def test_a_near_store_is_read_without_threads() -> None:
    store = Store(0.001, work=0.0009)
    with store.pool() as pool:
        assert list(pool.each(store.ask, range(500))) == list(range(500))
    assert set(store.askers) == {get_ident()}


@pytest.mark.parametrize("opening", [0.0, 5.0])
def test_far_store_is_read_by_threads_after_the_first_wait(opening: float) -> None:
    store = Store(0.03, work=0.001, opening=opening)
    with store.pool() as pool:
        assert list(pool.each(store.ask, range(500))) == list(range(500))
    assert store.askers.count(get_ident()) == 1


def test_a_known_answer_does_not_start_threads() -> None:
    store = Store(0.0001, work=0.0001)

    def ask(one: int) -> int:
        if one == 400:
            store.seconds = 0.1
        return store.ask(one)

    with store.pool() as pool:
        assert list(pool.each(ask, range(500))) == list(range(500))
    assert store.askers.count(get_ident()) == 401


@pytest.mark.parametrize("count", [4, 300])
def test_every_thread_gets_items(count: int) -> None:
    together = Barrier(3)
    first: set[int] = {get_ident()}

    def ask(_: int) -> int:
        if get_ident() not in first:
            first.add(get_ident())
            together.wait(10)
        return get_ident()

    times = iter(range(1000))
    with RequestPool(3, lambda: next(times), lambda: 0.0) as pool:
        assert len(set(pool.each(ask, range(count)))) == 4


def test_an_error_reaches_the_caller() -> None:
    with RequestPool(2) as pool, pytest.raises(ZeroDivisionError):
        list(pool.each(lambda item: 1 // (item - 50), range(100)))

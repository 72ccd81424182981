"""Thread pool for the requests of a planner."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from time import perf_counter, thread_time
from typing import Final, TypeVar

_TASKS_PER_THREAD: Final = 4
_MAX_ITEMS_PER_TASK: Final = 64
_PATIENCE: Final = 0.02
"""Seconds."""

_T = TypeVar("_T")
_A = TypeVar("_A")


class RequestPool(ThreadPoolExecutor):
    """Thread pool for requests. Its tasks must not wait for other tasks of the pool.

    Args:
        threads: number of threads.
        clock: wall-clock seconds.
        busy: CPU seconds of the calling thread.
    """

    def __init__(
        self,
        threads: int,
        clock: Callable[[], float] = perf_counter,
        busy: Callable[[], float] = thread_time,
    ) -> None:
        super().__init__(threads, "planner")
        self._thread_count = threads
        self._clock = clock
        self._busy = busy

    def each(self, request: Callable[[_T], _A], items: Sequence[_T]) -> Iterator[_A]:
        """Yield the result of `request` for each item, in order.

        The calling thread makes the requests alone until it has waited longer than it has worked,
        and for at least 20 ms. Then the pool takes over. With a fast, near store, threads would
        only compete for Python's GIL, and take two and a half times as long.
        """
        waited = worked = 0.0
        for number, item in enumerate(items):
            if waited > max(worked, _PATIENCE):
                yield from self._in_threads(request, items[number:])
                return
            begin, before = self._clock(), self._busy()
            result = request(item)
            work = self._busy() - before
            waited += self._clock() - begin - work
            worked += work if number else 0.0  # the first request may open the store
            yield result

    def of_each(self, request: Callable[[_T], _A], items: Iterable[_T]) -> dict[_T, _A]:
        """Return the result of `request` for each item, by item."""
        listed = list(items)
        return dict(zip(listed, self.each(request, listed), strict=True))

    def _in_threads(self, request: Callable[[_T], _A], items: Sequence[_T]) -> Iterator[_A]:
        """Make the requests in all threads.

        Each task gets several items, and each thread a few tasks: the hand-over to a thread costs
        more than a fast response.
        """
        size = max(
            1, min(_MAX_ITEMS_PER_TASK, len(items) // (_TASKS_PER_THREAD * self._thread_count))
        )
        chunks = [items[at : at + size] for at in range(0, len(items), size)]
        return chain.from_iterable(
            self.map(lambda chunk: [request(item) for item in chunk], chunks)
        )

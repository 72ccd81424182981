"""Thread pool of a planner."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from time import perf_counter, thread_time
from typing import Final, TypeVar

_ROUNDS: Final = 4
_MOST_AT_ONCE: Final = 64
_PATIENCE: Final = 0.02

_T = TypeVar("_T")
_A = TypeVar("_A")


class RequestPool(ThreadPoolExecutor):
    """Thread pool. Its tasks must not wait for other tasks of the pool.

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
        self._number = threads
        self._clock = clock
        self._busy = busy

    def each(self, ask: Callable[[_T], _A], of: Sequence[_T]) -> Iterator[_A]:
        """Yield `ask` of each item, in order.

        The calling thread asks alone until it has waited longer than it has worked, and for at
        least 20 ms. Then the pool takes over. With a fast, near store, threads would only compete
        for Python's GIL, and take two and a half times as long.
        """
        waited = worked = 0.0
        for number, item in enumerate(of):
            if waited > max(worked, _PATIENCE):
                yield from self._shared(ask, of[number:])
                return
            begin, before = self._clock(), self._busy()
            answer = ask(item)
            work = self._busy() - before
            waited += self._clock() - begin - work
            worked += work if number else 0.0  # the first one may have opened the store
            yield answer

    def of_each(self, ask: Callable[[_T], _A], of: Iterable[_T]) -> dict[_T, _A]:
        """Return `ask` of each item, by item."""
        items = list(of)
        return dict(zip(items, self.each(ask, items), strict=True))

    def _shared(self, ask: Callable[[_T], _A], of: Sequence[_T]) -> Iterator[_A]:
        """Ask with all threads. Each call gets several items, and each thread a few calls: for a
        short answer the hand-over to a thread costs more than the answer.
        """
        size = max(1, min(_MOST_AT_ONCE, len(of) // (_ROUNDS * self._number)))
        chunks = [of[at : at + size] for at in range(0, len(of), size)]
        return chain.from_iterable(self.map(lambda chunk: [ask(item) for item in chunk], chunks))

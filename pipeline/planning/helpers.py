"""The threads of a planner."""

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


class Helpers(ThreadPoolExecutor):
    """So many threads; what they are handed does not wait for others of them.

    `clock` tells seconds, `busy` those in which this thread has worked.
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
        """What is asked of each, in order.

        Who asks does so alone as long as answers need not be waited for: of a near store threads
        would take turns at Python's lock, and be two and a half times as long about it.
        """
        waited = worked = 0.0
        for number, one in enumerate(of):
            if waited > max(worked, _PATIENCE):
                yield from self._shared(ask, of[number:])
                return
            begin, before = self._clock(), self._busy()
            answer = ask(one)
            work = self._busy() - before
            waited += self._clock() - begin - work
            worked += work if number else 0.0  # the first one may have opened the store
            yield answer

    def of_each(self, ask: Callable[[_T], _A], of: Iterable[_T]) -> dict[_T, _A]:
        """The same, each answer by what it was asked of."""
        wanted = list(of)
        return dict(zip(wanted, self.each(ask, wanted), strict=True))

    def _shared(self, ask: Callable[[_T], _A], of: Sequence[_T]) -> Iterator[_A]:
        """The same by threads. One is handed some at a time, each thread a few times: a small
        answer costs less than to hand the question over.
        """
        some = max(1, min(_MOST_AT_ONCE, len(of) // (_ROUNDS * self._number)))
        handed = [of[at : at + some] for at in range(0, len(of), some)]
        return chain.from_iterable(self.map(lambda few: [ask(one) for one in few], handed))

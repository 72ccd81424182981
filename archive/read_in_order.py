"""Read given ranges ahead, with threads of its own, and return them in order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Span = TypeVar("Span")
Result = TypeVar("Result")


def in_order(read: Callable[[Span], Result], spans: Iterable[Span], ahead: int) -> Iterator[Result]:
    """Yield the result of `read` for each span, and read up to `ahead` spans ahead."""
    with ThreadPoolExecutor(ahead, "read-ahead") as helpers:
        requests: deque[Future[Result]] = deque()
        try:
            for span in spans:
                requests.append(helpers.submit(read, span))
                if len(requests) < ahead:
                    continue
                # In order, although the requests end in any order.
                yield requests.popleft().result()
            while requests:
                yield requests.popleft().result()
        finally:
            for request in requests:
                request.cancel()

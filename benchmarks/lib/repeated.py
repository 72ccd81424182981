"""Repeated observation from outside while something else runs."""

import threading
from collections.abc import Callable
from typing import Self

_LOOK_SECONDS = 0.01


class Repeated:
    """Calls a function every 10 ms on its own thread, until it is stopped."""

    def __init__(self, observe: Callable[[], None]) -> None:
        self._observe = observe
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="observing")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            self._observe()

"""Looking at something from outside, again and again, while something else goes on."""

import threading
from collections.abc import Callable
from typing import Self

_LOOK_SECONDS = 0.01


class Repeated:
    """Looks every 10 ms, on a thread of its own, until it is told to stop."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="looking")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            self._look()

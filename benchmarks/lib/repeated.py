"""Threads that run while a block does: repeated observation from outside."""

import threading
from collections.abc import Callable
from typing import Self

_LOOK_SECONDS = 0.01


class InThread:
    """Runs `_run` in a thread while the context is entered; it ends once `_stopping` is set."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        raise NotImplementedError


class Repeated(InThread):
    """Calls a function every 10 ms until the block ends."""

    def __init__(self, observe: Callable[[], None]) -> None:
        super().__init__()
        self._observe = observe

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            self._observe()

"""Requests that take effect when the simulation decides, and the threads that wait for them.

Every task of a sidecar has its own thread, but only one thread runs at any moment. A task runs
until it makes a request, and waits there until the simulation lets the request arrive, lets it
fail, loses its answer, or kills its sender. So the same choices give the same run.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from sidetier.segments.errors import StoreTimeoutError, StoreUnavailableError
from sidetier.uploader.workers import Finished, Task, run_task
from tests.harness.intercepted_store import KilledError

_STUCK_SECONDS: Final = 60.0
"""Maximum time of a task between two requests, in seconds."""
_LONGEST_LIFE: Final = 900.0
"""Maximum time of one example on a busy machine, in seconds: a request may wait that long."""


class Fate(Enum):
    """Outcomes of a request."""

    ARRIVES = "takes effect, and the answer comes back"
    CUT = "has no effect, and fails"
    ANSWER_LOST = "takes effect, and fails"
    CONFLICT = "has no effect, and is to be tried again (409)"


@dataclass(slots=True)
class Request:
    """A request in flight. Its bytes are on the wire already, so it may outlive its sender."""

    operation: str
    key: str
    effect: Callable[[], object]
    unanswered: Callable[[str], Exception] = StoreTimeoutError
    """Creates the error of a request without an answer."""


class _Signal:
    """A signal from one thread to another; sent at most once before the other waits for it."""

    def __init__(self) -> None:
        self._unsent = threading.Lock()  # ten times faster than a semaphore of `threading`
        self._unsent.acquire()

    def send(self) -> None:
        self._unsent.release()

    def wait(self, seconds: float) -> None:
        if not self._unsent.acquire(timeout=seconds):
            raise AssertionError("the simulation is stuck")


class _Thread:
    """Runs tasks one after the other, because starting a thread takes longer than most tasks."""

    def __init__(self) -> None:
        self._has_next = _Signal()
        self._next: Callable[[], None] | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def run_next(self, run: Callable[[], None]) -> None:
        self._next = run
        self._has_next.send()

    def _run(self) -> None:
        while True:
            self._has_next.wait(threading.TIMEOUT_MAX)
            run, self._next = self._next, None
            assert run is not None
            run()
            _idle_threads.append(self)


_idle_threads: Final[list[_Thread]] = []


@dataclass(slots=True, eq=False)
class Run:
    """One task of a sidecar, at a point between two of its requests.

    `failed` is the previous request if it failed.
    """

    request: Request | None = None
    answer: object = None
    error: BaseException | None = None
    ended: bool = False
    failed: Request | None = None
    _go: _Signal = field(default_factory=_Signal)
    _stands: _Signal = field(default_factory=_Signal)

    def start(self, work: Callable[[], None]) -> None:
        """Run until the first request or the end."""
        thread = _idle_threads.pop() if _idle_threads else _Thread()

        def run() -> None:
            _here.task = self
            try:
                work()
            finally:
                self.request, self.ended = None, True
                self._stands.send()

        thread.run_next(run)
        self._stands.wait(_STUCK_SECONDS)

    def ask(self, request: Request) -> object:
        """Wait until the simulation continues the task. Called on the task's own thread."""
        self.request, self.answer, self.error = request, None, None
        self._stands.send()
        self._go.wait(_LONGEST_LIFE)
        if self.error is not None:
            raise self.error
        return self.answer

    def go_on(self, answer: object, error: BaseException | None) -> None:
        """Run until the next request or the end. Called on the simulation's thread."""
        self.request, self.answer, self.error = None, answer, error
        self._go.send()
        self._stands.wait(_STUCK_SECONDS)

    @property
    def trying_again(self) -> bool:
        """Whether this request repeats the previous one, which failed."""
        if self.request is None or self.failed is None:
            return False
        before = self.failed.operation, self.failed.key
        return before == (self.request.operation, self.request.key)


class _Here(threading.local):
    task: Run | None = None


_here = _Here()


def ask(request: Request) -> object:
    """Make a request from a task. On the simulation's own thread the answer comes at once."""
    task = _here.task
    return request.effect() if task is None else task.ask(request)


class SteppedPool:
    """A `WorkerPool` whose tasks continue when the simulation decides."""

    def __init__(self, name: str, size: int, deliver: Callable[[Finished[Any]], None]) -> None:
        self.name = name
        self._size = size
        self._deliver = deliver
        self._running = 0
        self._alive = True
        self.tasks: list[Run] = []
        self.death: BaseException | None = None

    @property
    def free(self) -> int:
        """Number of workers without a job."""
        return self._size - self._running

    @property
    def busy(self) -> int:
        """Number of tasks whose `Finished` has not been taken yet."""
        return self._running

    def submit(self, task: Task[Any]) -> None:
        """Run the task up to its first request."""
        assert self.free > 0, "no free worker"
        self._running += 1
        run = Run()
        self.tasks.append(run)
        run.start(lambda: self._work(task))
        self._forget_ended()

    def release(self) -> None:
        """Note that the daemon has taken a `Finished`."""
        self._running -= 1

    def stop(self) -> None:
        """Do nothing: idle workers need no stop."""

    def go_on(self, task: Run, fate: Fate) -> None:
        """Apply a fate to the request of a task, and continue the task."""
        request = task.request
        assert request is not None
        answer, error = decided(request, fate)
        task.failed = request if fate is not Fate.ARRIVES else None
        task.go_on(answer, error)
        self._forget_ended()

    def kill(self) -> list[Request]:
        """Kill the process, and return its requests in flight."""
        self._alive = False
        in_flight = [task.request for task in self.tasks if task.request is not None]
        for task in self.tasks:
            if task.request is not None:
                task.go_on(None, KilledError())
        self.tasks.clear()
        return in_flight

    def _work(self, task: Task[Any]) -> None:
        with suppress(KilledError):
            finished = run_task(self.name, task)
            if self._alive:
                self._deliver(finished)

    def _forget_ended(self) -> None:
        self.tasks = [task for task in self.tasks if not task.ended]


def decided(request: Request, fate: Fate) -> tuple[object, Exception | None]:
    """Let a request take effect or not, and return its answer, and its error or None."""
    answer, error = None, None
    if fate not in {Fate.CUT, Fate.CONFLICT}:
        try:
            answer = request.effect()
        except Exception as refused:  # noqa: BLE001 - the task gets every error of the store
            error = refused
    if fate is not Fate.ARRIVES:
        error = _failure(request, fate)
    return answer, error


def _failure(request: Request, fate: Fate) -> Exception:
    description = f"{request.operation} {request.key}"
    if request.unanswered is not StoreTimeoutError:
        return request.unanswered(f"{description}: no answer")
    if fate is Fate.CUT:
        return StoreUnavailableError(f"{description}: connection refused")
    if fate is Fate.CONFLICT:
        return StoreUnavailableError(f"{description}: ConditionalRequestConflict")
    return StoreTimeoutError(f"{description}: no answer")

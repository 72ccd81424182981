"""Requests that take effect when the simulation says so, and the threads that wait for them.

Every job of a sidecar has a thread to itself, but only one thread runs at any moment: a job goes on
until it makes a request, and stands there until the simulation lets the request arrive, lets it
fail, loses its answer, or kills its sender. So the same choices give the same run.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from sidetier.segments.errors import StoreTimeoutError, StoreUnavailableError
from sidetier.uploader.running.workers import Job, Outcome

_STUCK_SECONDS: Final = 60.0
"""No task works so long between two requests."""
_LONGEST_LIFE: Final = 900.0
"""Of one example, on a busy machine: a request may stand from its beginning to its end."""


class Fate(Enum):
    """What becomes of a request."""

    ARRIVES = "takes effect, and the answer comes back"
    CUT = "has no effect, and fails"
    ANSWER_LOST = "takes effect, and fails"
    CONFLICT = "has no effect, and is to be tried again (409)"


class KilledError(BaseException):
    """The process is gone; no handler of errors sees it."""


@dataclass(slots=True)
class Request:
    """One under way; its bytes are on the wire already, so it may outlive its sender."""

    operation: str
    key: str
    effect: Callable[[], object]
    unanswered: Callable[[str], Exception] = StoreTimeoutError
    """What comes of it where there is no answer."""


class _Signal:
    """From one thread to one other; sent at most once before it is waited for."""

    def __init__(self) -> None:
        self._unsent = threading.Lock()  # a semaphore of `threading` costs ten times as much
        self._unsent.acquire()

    def send(self) -> None:
        self._unsent.release()

    def wait(self, seconds: float) -> None:
        if not self._unsent.acquire(timeout=seconds):
            raise AssertionError("the simulation is stuck")


class _Thread:
    """Runs one task after the other: to start a thread takes longer than most tasks."""

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
class Task:
    """One job of a sidecar's, between two of its requests; `failed` is the request before this one,
    if it failed.
    """

    request: Request | None = None
    answer: object = None
    error: BaseException | None = None
    ended: bool = False
    failed: Request | None = None
    _go: _Signal = field(default_factory=_Signal)
    _stands: _Signal = field(default_factory=_Signal)

    def start(self, work: Callable[[], None]) -> None:
        """Run until the first request, or to the end."""
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
        """On the task's own thread: stand until the simulation goes on."""
        self.request, self.answer, self.error = request, None, None
        self._stands.send()
        self._go.wait(_LONGEST_LIFE)
        if self.error is not None:
            raise self.error
        return self.answer

    def go_on(self, answer: object, error: BaseException | None) -> None:
        """On the simulation's thread: run until the next request, or to the end."""
        self.request, self.answer, self.error = None, answer, error
        self._go.send()
        self._stands.wait(_STUCK_SECONDS)

    @property
    def trying_again(self) -> bool:
        """The request before failed, and this is the same one."""
        if self.request is None or self.failed is None:
            return False
        before = self.failed.operation, self.failed.key
        return before == (self.request.operation, self.request.key)


class _Here(threading.local):
    task: Task | None = None


_here = _Here()


def ask(request: Request) -> object:
    """Make a request from a task; the simulation's own thread is answered at once."""
    task = _here.task
    return request.effect() if task is None else task.ask(request)


class SteppedPool:
    """A `WorkerPool` whose jobs go on when the simulation says so."""

    def __init__(self, size: int, deliver: Callable[[Outcome], None]) -> None:
        self._size = size
        self._deliver = deliver
        self._running = 0
        self._alive = True
        self.tasks: list[Task] = []
        self.death: BaseException | None = None

    @property
    def free(self) -> int:
        """Workers without a job."""
        return self._size - self._running

    @property
    def busy(self) -> int:
        """Jobs whose outcome has not been handled yet."""
        return self._running

    def submit(self, job: Job[object]) -> None:
        """Run the job up to its first request."""
        assert self.free > 0, "no free worker"
        self._running += 1
        task = Task()
        self.tasks.append(task)
        task.start(lambda: self._work(job))
        self._forget_ended()

    def stop(self) -> None:
        """Idle workers end."""

    def go_on(self, task: Task, fate: Fate) -> None:
        """Let the request of a task have its fate, and the task go on."""
        request = task.request
        assert request is not None
        answer, error = None, None
        if fate not in {Fate.CUT, Fate.CONFLICT}:
            try:
                answer = request.effect()
            except Exception as refused:  # noqa: BLE001 - what the store raises, the task gets
                error = refused
        if fate is not Fate.ARRIVES:
            error = _failure(request, fate)
        task.failed = request if fate is not Fate.ARRIVES else None
        task.go_on(answer, error)
        self._forget_ended()

    def kill(self) -> list[Request]:
        """The process dies; returns what is on the wire."""
        self._alive = False
        left = [task.request for task in self.tasks if task.request is not None]
        for task in self.tasks:
            if task.request is not None:
                task.go_on(None, KilledError())
        self.tasks.clear()
        return left

    def _work(self, job: Job[object]) -> None:
        try:
            result = job.work()
        except KilledError:
            return
        except Exception as error:  # noqa: BLE001 - handed to the job's owner, as a pool does
            failure = error
            self._tell(lambda: job.failed(failure))
        else:
            self._tell(lambda: job.done(result))

    def _tell(self, outcome: Outcome) -> None:
        def handle() -> None:
            self._running -= 1
            outcome()

        if self._alive:
            self._deliver(handle)

    def _forget_ended(self) -> None:
        self.tasks = [task for task in self.tasks if not task.ended]


def _failure(request: Request, fate: Fate) -> Exception:
    what = f"{request.operation} {request.key}"
    if request.unanswered is not StoreTimeoutError:
        return request.unanswered(f"{what}: no answer")
    if fate is Fate.CUT:
        return StoreUnavailableError(f"{what}: connection refused")
    if fate is Fate.CONFLICT:
        return StoreUnavailableError(f"{what}: ConditionalRequestConflict")
    return StoreTimeoutError(f"{what}: no answer")

"""Child process with its own process group and a log file, which ends with its parent."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Self

from sidetier.brokers import tether
from sidetier.brokers.errors import LocalServerError, ServerDiedError, ServerTimeoutError

STOP_GRACE_SECONDS = 20.0
_POLL_SECONDS = 0.05
_TAIL_LINES = 30
_TAIL_BYTES = 64 * 1024

# Linux sends the parent-death signal when the *thread* that started the child ends. So one thread,
# which lives until the interpreter exits, starts all children.
_STARTER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sandbox-starter")


@dataclass(frozen=True, slots=True)
class Command:
    """Program to run.

    Attributes:
        name: Name for messages.
        arguments: Command line.
        log: File to which output is appended.
        environment: Added to the parent's environment.
        directory: Working directory; None for the parent's.
    """

    name: str
    arguments: Sequence[str | os.PathLike[str]]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: Path | None = None


class ManagedProcess:
    """One server process that can be started, stopped, killed, paused and started again.

    Not thread-safe. Leaving the context stops the process.
    """

    def __init__(self, command: Command) -> None:
        self.command = command
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def name(self) -> str:
        """Name of the command."""
        return self.command.name

    @property
    def pid(self) -> int:
        """Process id. Raises LocalServerError if the process was never started."""
        return self._started().pid

    @property
    def running(self) -> bool:
        """Whether the process exists; also True for a paused one."""
        return self._process is not None and self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        """Exit code, negative for a signal; None if the process runs or was never started."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start the process; do nothing if it runs."""
        if not self.running:
            self._process = _STARTER.submit(_spawn, self.command).result()

    def wait_until(self, ready: Callable[[], bool], timeout: float) -> None:
        """Poll `ready` until it returns True.

        Raises:
            ServerDiedError: The process ended meanwhile.
            ServerTimeoutError: `timeout` seconds passed.
        """
        deadline = monotonic() + timeout
        while not ready():
            if monotonic() >= deadline:
                message = f"{self.name} did not become ready within {timeout:g} s"
                raise ServerTimeoutError(f"{message}\n{self.log_tail()}")
            self._watch_for(_POLL_SECONDS)

    def stop(self, grace: float = STOP_GRACE_SECONDS) -> None:
        """Send SIGTERM, and SIGKILL if the process still runs after `grace` seconds.

        Does nothing if the process does not run.
        """
        self.terminate()
        try:
            self.wait(grace)
        except subprocess.TimeoutExpired:
            self.kill()

    def terminate(self) -> None:
        """Send SIGTERM without waiting for the end. A paused process is resumed to receive it."""
        if self.running:
            self._send(signal.SIGTERM)
            self._send(signal.SIGCONT)

    def wait(self, timeout: float) -> int | None:
        """Wait for the end and return the exit code; None if the process was never started.

        Raises:
            subprocess.TimeoutExpired: It still runs after `timeout` seconds.
        """
        return None if self._process is None else self._process.wait(timeout)

    def kill(self) -> None:
        """Send SIGKILL to the whole process group, and return once the process has ended."""
        if self.running:
            self._send(signal.SIGKILL)
            self._started().wait()

    def pause(self) -> None:
        """Send SIGSTOP: the process keeps its connections and answers no request."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT: the process continues."""
        self._signal(signal.SIGCONT)

    def log_tail(self, lines: int = _TAIL_LINES) -> str:
        """Return the last lines of the log, below a line with its path."""
        log = self.command.log
        try:
            with log.open("rb") as handle:
                handle.seek(max(0, handle.seek(0, os.SEEK_END) - _TAIL_BYTES))
                text = handle.read().decode(errors="replace")
        except OSError as error:
            text = f"({error})"
        return "\n".join([f"--- {log}", *text.splitlines()[-lines:]])

    def _watch_for(self, seconds: float) -> None:
        try:
            code = self._started().wait(seconds)
        except subprocess.TimeoutExpired:
            return
        raise ServerDiedError(f"{self.name} ended with exit code {code}\n{self.log_tail()}")

    def _signal(self, number: signal.Signals) -> None:
        if not self.running:
            raise LocalServerError(f"{self.name} does not run, so it cannot be sent {number.name}")
        self._send(number)

    def _send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has just ended by itself
            os.killpg(self.pid, number)

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            raise LocalServerError(f"{self.name} was never started")
        return self._process


def stop_together(processes: Sequence[ManagedProcess], grace: float = STOP_GRACE_SECONDS) -> None:
    """Stop all at the same time: some servers wait for each other when one ends alone."""
    for process in processes:
        process.terminate()
    deadline = monotonic() + grace
    for process in processes:
        process.stop(max(0.0, deadline - monotonic()))


def _spawn(command: Command) -> "subprocess.Popen[bytes]":
    command.log.parent.mkdir(parents=True, exist_ok=True)
    tethered = [sys.executable, "-I", "-S", tether.__file__, str(os.getpid())]
    with command.log.open("ab") as log:
        return subprocess.Popen(
            [*tethered, *(os.fspath(argument) for argument in command.arguments)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **command.environment},
            cwd=command.directory,
            start_new_session=True,
        )

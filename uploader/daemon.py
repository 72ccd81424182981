"""The daemon: start, work, and stop.

`run` starts watch and leadership, and works until any thread calls `stop`. Then it stops accepting
(no watch, no new upload), drains uploads and requests until the grace period ends, and abandons the
rest. The next start finds the abandoned segments again.
"""

import math
import threading
from typing import Final

import structlog

from sidetier.config.uploader import UploaderConfig
from sidetier.segments.errors import SidetierError
from sidetier.uploader.context import DaemonContext
from sidetier.uploader.engine import Engine
from sidetier.uploader.status_board import StatusBoard

log: Final = structlog.get_logger()


_LAST_WORDS_SECONDS: Final = 2.0
"""For uploads that were given up, to abort what they had begun on the store."""


class DaemonDiedError(SidetierError):
    """A thread of the daemon died; the process must end, and be started again."""


class Daemon:
    """Archives the closed segments of the partitions that this broker leads."""

    def __init__(self, config: UploaderConfig, around: DaemonContext) -> None:
        self._grace = config.shutdown_grace
        self._leadership = around.leadership
        self._now = around.clock.monotonic
        self._engine = Engine(config, around)
        self._stopping = threading.Event()

    @property
    def status(self) -> StatusBoard:
        """The daemon's status. Any thread may read it."""
        return self._engine.status

    def run(self) -> None:
        """Work until `stop` is called; return once no upload or request is under way.

        Raises:
            ConfigurationError: the daemon can never work with this configuration.
            DaemonDiedError: one of the daemon's threads died.
        """
        try:
            self._engine.watch()  # before the first listing, so that nothing falls in between
            self._leadership.start(self._engine.deliver)
            while not self._stopping.is_set():
                self._step()
            self._drain()
        finally:
            self._shut_down()

    def run_until_settled(self, patience: float = math.inf) -> None:
        """Work without a watch until every closed segment of the led partitions is stored.

        Also ends if no request was under way for `patience` seconds, except requests that hang: the
        remaining segments are held back by errors, or are not known to be committed. A failed
        request is tried again after 1 s, 2 s, 4 s and so on: 10 s of patience allow five attempts.
        """
        try:
            self._leadership.start(self._engine.deliver)
            last_work = self._now()
            while not (self._stopping.is_set() or self._engine.is_settled()):
                self._step()
                if self._engine.busy > self._engine.hung:
                    last_work = self._now()
                elif self._now() - last_work >= patience:
                    break
            self._drain()
        finally:
            self._shut_down()

    def stop(self) -> None:
        """Begin to stop. Any thread or a signal handler may call it, and more than once."""
        self._stopping.set()
        self._engine.wake()

    def _step(self) -> None:
        self._engine.step()
        self._check_threads()

    def _drain(self) -> None:
        """Let running uploads and requests finish, and commit them, until the grace period ends."""
        log.info("daemon.draining", under_way=self._engine.busy, grace=self._grace)
        self._engine.stop_accepting()
        self._leadership.stop()
        deadline = self._now() + self._grace
        while self._engine.busy:
            if self._now() >= deadline:
                log.warning("daemon.abandoned", under_way=self._engine.busy)
                return
            self._engine.drain_step(deadline - self._now())
            self._check_threads()

    def _shut_down(self) -> None:
        self._engine.abandon()
        end = self._now() + _LAST_WORDS_SECONDS
        while self._engine.busy and not self._died() and self._now() < end:
            self._engine.drain_step(end - self._now())
        self._leadership.stop()
        log.info("daemon.stopped")

    def _died(self) -> bool:
        return any(death is not None for death in self._engine.deaths().values())

    def _check_threads(self) -> None:
        deaths = {**self._engine.deaths(), "the leadership source": self._leadership.failure()}
        for what, death in deaths.items():
            if death is not None:
                reason = f"{what} died: {type(death).__name__}: {death}"
                self.status.died(reason)
                raise DaemonDiedError(reason) from death

"""Ask the brokers for high watermarks, only while closed segments wait for them."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import structlog

from sidetier.leadership.port import HighWatermark
from sidetier.segments.errors import LeadershipError
from sidetier.segments.offsets import TopicPartition
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.gates.high_watermark import CommittedGate, HighWatermarkSource
from sidetier.uploader.running.workers import Job, WorkerPool
from sidetier.uploader.unexpected import Subject, UnexpectedErrors

if TYPE_CHECKING:
    from sidetier.uploader.state.partition import Partition

log: Final = structlog.get_logger()
_PAUSE_AFTER_FAILURE: Final = 1.0
_SUBJECT: Final = Subject("asking the brokers for high watermarks")


class HighWatermarkAsker:
    """Asks for all waiting partitions in one request. One request is under way at a time."""

    def __init__(  # noqa: PLR0913, PLR0917 - each argument is another part of the daemon
        self,
        source: HighWatermarkSource | None,
        pool: WorkerPool,
        gate: CommittedGate,
        learned: Callable[[Iterable[TopicPartition]], None],
        now: Callable[[], float],
        metrics: Metrics,
        errors: UnexpectedErrors,
    ) -> None:
        self._source = source
        self._pool = pool
        self._gate = gate
        self._learned = learned
        self._now = now
        self._metrics = metrics
        self._errors = errors
        self._not_before = float("-inf")
        self.waiting: dict[TopicPartition, Partition] = {}
        """Partitions with a closed segment that is not known to be committed."""

    def ask(self) -> None:
        """Ask for the partitions in `waiting` if there is a source and no request is under way."""
        source, wanted = self._source, list(self.waiting)
        if source is None or not wanted or not self._pool.free or self._now() < self._not_before:
            return
        if self._errors.holds(_SUBJECT):
            return
        asked_at = self._now()
        self._pool.submit(
            Job(
                lambda: source.high_watermarks(wanted),
                lambda answers: self._learn(answers, asked_at),
                self._failed,
            )
        )

    def _learn(self, answers: Mapping[TopicPartition, HighWatermark], asked_at: float) -> None:
        self._gate.learn(answers, asked_at)
        self._learned(answers)
        self._errors.clear(_SUBJECT)

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, LeadershipError):
            self._errors.hold(_SUBJECT, error)
            return
        self._errors.clear(_SUBJECT)
        self._metrics.error(type(error).__name__)
        self._not_before = self._now() + _PAUSE_AFTER_FAILURE
        log.warning("high_watermark.unavailable", error=str(error))

    def close(self) -> None:
        """Close the connections."""
        if self._source is not None:
            self._source.close()

"""The threads of the tail: one runs the cycles, one cleans.

They run beside the daemon's event loop, so that nothing in the tail holds back an upload.

An error ends a cycle, never a thread. A broker that does not answer is asked again in the next
cycle.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final

import structlog

from sidetier.leadership.port import LogOffsetSource
from sidetier.segments.backoff import backoff
from sidetier.segments.errors import SidetierError
from sidetier.segments.offsets import TopicPartition
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.clock import Clock
from sidetier.uploader.tail.board import SafePartition, TailBoard
from sidetier.uploader.tail.cleaning import TailCleaner
from sidetier.uploader.tail.cycle import CycleTotals, TailCycle

log: Final = structlog.get_logger()
_MIN_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 5.0
"""After a failed cycle. A broker that restarts must not hold records back for longer."""
_LONG_CYCLE: Final = 10.0
_STOP_SECONDS: Final = 2.0
_NOTHING_SAFE: Final[Mapping[TopicPartition, SafePartition]] = MappingProxyType({})


def on_thread(work: Callable[[], None]) -> None:
    """Run work on a thread of its own, which does not hold up the end of the process."""
    threading.Thread(target=work, name="tail-packs", daemon=True).start()


class TailWriter:
    """Runs the cycles of the tail.

    Args:
        cycle: One cycle.
        cleaner: Removes what the archive has; None to clean nothing.
        board: The led partitions.
        source: Asks the broker; closed at the end.
        interval: Seconds from the begin of a cycle to the begin of the next one.
        clean_interval: Seconds between two cleanings.
        clock: The time.
        metrics: Counts errors, and measures cycles.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - its ports
        self,
        cycle: TailCycle,
        cleaner: TailCleaner | None,
        board: TailBoard,
        source: LogOffsetSource,
        interval: float,
        clean_interval: float,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self.board = board
        self._cycle = cycle
        self._cleaner = cleaner
        self._source = source
        self._interval = interval
        self._clean_interval = clean_interval
        self._now = clock.monotonic
        self._metrics = metrics
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._safe = _NOTHING_SAFE
        self._ended = self._now()
        self._wall = clock.wall
        self._reported = CycleTotals()

    @property
    def safe(self) -> Mapping[TopicPartition, SafePartition]:
        """What is safe of each partition, after the last cycle. Any thread may read it.

        While a cycle takes long, records may be waiting since the end of the one before. They wait
        in all partitions whose tail is halted.
        """
        known, halted = self._safe, self.board.halted
        ago = self._now() - self._ended
        if ago > _LONG_CYCLE + 2 * self._interval:
            since_ms = int((self._wall() - ago) * 1000)
            known = {
                tp: safe._replace(
                    waiting_since_ms=safe.waiting_since_ms or since_ms, high_watermark=None
                )
                for tp, safe in known.items()
            }
        return {**known, **halted} if halted else known

    def start(self) -> None:
        """Begin. A hanging request does not hold up the end of the process."""
        self._begin("tail", self._run_cycle, self._interval, first=0.0)
        if self._cleaner is not None:
            self._begin(
                "tail-cleaning",
                partial(self._clean, self._cleaner),
                self._clean_interval,
                first=self._clean_interval / 2,
            )

    def stop(self) -> None:
        """End the threads, and make the requests to the broker fail. May be called twice."""
        self._stopping.set()
        self._source.close()
        for thread in self._threads:
            thread.join(_STOP_SECONDS)

    def _begin(
        self, name: str, run: Callable[[], object], interval: float, *, first: float
    ) -> None:
        thread = threading.Thread(
            target=self._repeat, args=(name, run, interval, first), name=name, daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _repeat(self, name: str, run: Callable[[], object], interval: float, first: float) -> None:
        failures, pause, error_text = 0, first, ""
        while not self._stopping.wait(pause):
            began = self._now()
            try:
                run()
                failures, error_text = 0, ""
            except Exception as error:  # noqa: BLE001 - the next run may succeed
                if self._stopping.is_set():
                    return
                failures += 1
                text, error_text = error_text, f"{type(error).__name__}: {error}"
                self._note(name, error, is_new=text != error_text)
            pause = max(interval - (self._now() - began), _MIN_PAUSE)
            if failures:
                pause = max(pause, backoff(failures, min(interval, 1.0), _LONGEST_PAUSE))

    def _note(self, name: str, error: Exception, *, is_new: bool) -> None:
        """Count an error, and log it once."""
        kind = type(error).__name__
        if isinstance(error, SidetierError):
            self._metrics.error(kind)
            if is_new:
                log.warning("tail.failed", task=name, error=str(error))
            return
        self._metrics.unexpected_error(kind)
        if is_new:
            log.error("tail.unexpected_error", task=name, exc_info=error)

    def _run_cycle(self) -> None:
        began = self._now()
        try:
            self._cycle.run(self.board.snapshot())
            # Nothing else to do until the next cycle; one that takes longer goes on in it.
            self._cycle.settle(max(0.0, self._interval - (self._now() - began)))
        finally:
            self._safe, self._ended = self._cycle.safe(), self._now()
            self._report(self._now() - began)

    def _report(self, seconds: float) -> None:
        totals, before = self._cycle.totals, self._reported
        self._metrics.tail_cycle(
            seconds,
            packs=totals.packs - before.packs,
            size=totals.stored_bytes - before.stored_bytes,
            failed=totals.failed_packs - before.failed_packs,
            refused=totals.refused_ranges - before.refused_ranges,
        )
        self._reported = replace(totals)

    def _clean(self, cleaner: TailCleaner) -> None:
        before = cleaner.totals
        cleaner.run(self.board.snapshot, self._stopping.is_set)
        found = cleaner.totals
        self._metrics.tail_cleaned(
            live_packs=found.live_packs,
            live_bytes=found.live_bytes,
            stored_bytes=found.stored_bytes,
            rewritten=found.rewritten_bytes - before.rewritten_bytes,
            deleted=found.deleted_packs - before.deleted_packs,
            unread=found.unread_packs,
            unknown=found.unknown_partitions,
            stale=found.stale_offsets,
        )

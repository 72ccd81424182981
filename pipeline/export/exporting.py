"""Steps around the runs of an export, for files and tables: report held-back partitions once, wait
for the archive (`--tail wait`), and continue after errors that a later run may not meet.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Final

from sidetier.config.model import BrokerConfig
from sidetier.pipeline.export.held_back import Cause, HeldBack
from sidetier.pipeline.export.run import should_retry
from sidetier.pipeline.export.source import Source, TailedSource
from sidetier.pipeline.export.state import Offsets
from sidetier.pipeline.export.tail.brokers import broker_topic
from sidetier.pipeline.planning.planner import Planner
from sidetier.segments.errors import SidetierError
from sidetier.segments.isolation import IsolationLevel

Note = Callable[[str], None]
"""Receives messages for an operator."""
OnRound = Callable[[Iterable[HeldBack], int], None]
"""Called after each round with the held-back partitions, and the number of topics that failed."""
_PAUSE: Final = 5.0


def no_notes(_text: str) -> None:
    """Drop a message."""


def will_retry(
    error: SidetierError,
    planner: Planner,
    offsets_without_epoch: Callable[[], Offsets],
    on_note: Note,
) -> bool:
    """Return `should_retry`; report the error if it is true."""
    again = should_retry(error, planner, offsets_without_epoch)
    if again:
        on_note(f"{error}; tried again")
    return again


class HeldBackReporter:
    """Reports partitions that are held back and need attention.

    Each change is reported once, although with `--follow` every run finds all of them again.
    """

    def __init__(self, on_note: Note) -> None:
        self._on_note = on_note
        self._reported: dict[str, set[tuple[str, Cause, int]]] = {}

    def report(self, held_back: Iterable[HeldBack], topic: str = "") -> None:
        """Report the partitions that are held back now, of one topic or of all."""
        findings = {
            (str(finding.tp), finding.cause, finding.offset): finding.detail
            for finding in held_back
            if finding.is_finding
        }
        reported = self._reported.get(topic, set())
        self._reported[topic] = set(findings)
        for finding, detail in findings.items():
            if finding not in reported:
                self._on_note(detail)


def broker_ends(broker: BrokerConfig, topic: str, isolation: str) -> dict[int, int]:
    """Return the end offset that a consumer could read up to now, exclusive, by Kafka partition.

    Raises:
        ConfigurationError: No address of a broker is known.
        LeadershipUnavailableError: The cluster does not answer.
    """
    topic_logs = broker_topic(broker, topic, IsolationLevel(isolation))
    return (
        {}
        if topic_logs is None
        else {partition: log.last_stable_offset for partition, log in topic_logs.logs.items()}
    )


def waits(source: Source) -> bool:
    """Return whether the export has stopped before records that the brokers have deleted and that
    the archive will only show later.
    """
    return isinstance(source, TailedSource) and bool(source.logs.waiting)


def wait_for(
    wanted: Mapping[int, int],
    stored: Callable[[], Mapping[int, int]],
    pause: Callable[[], bool],
) -> dict[int, tuple[int, int]]:
    """Wait until all records below the wanted offsets are stored.

    `pause` waits a while, and returns False when there is no more time.

    Returns:
        By Kafka partition, the stored end and the wanted end of each partition with missing
        records.
    """
    while True:
        now = stored()
        missing = {
            partition: (now.get(partition, 0), end)
            for partition, end in wanted.items()
            if now.get(partition, 0) < end
        }
        if not missing or not pause():
            return missing


def paused(stop: threading.Event, patience: float) -> Callable[[], bool]:
    """Return a function that waits a while.

    It returns False once `patience` seconds have passed, or when `stop` is set.
    """
    end = monotonic() + patience

    def pause() -> bool:
        left = end - monotonic()
        return left > 0 and not stop.wait(min(left, _PAUSE))

    return pause


def wait_for_archive(
    topic: str,
    wanted: Mapping[int, int],
    stored: Callable[[], Mapping[int, int]],
    pause: Callable[[], bool],
    on_note: Note,
    can_pass: Callable[[SidetierError], bool] = lambda _error: False,
) -> bool:
    """Run `wait_for`, and name the records that only the brokers still have; return whether there
    are any.

    If `stored` fails with an error that `can_pass` accepts, nothing counts as stored until the next
    try.
    """

    def known() -> Mapping[int, int]:
        try:
            return stored()
        except SidetierError as error:
            if not can_pass(error):
                raise
            return {}

    if not wanted:
        on_note(
            f"{topic}: the brokers have no topic of this name: only archived records are exported"
        )
    missing = wait_for(wanted, known, pause)
    for partition, (until, end) in sorted(missing.items()):
        on_note(f"{topic}-{partition}: offsets [{until}, {end}) are still only on the broker")
    return bool(missing)

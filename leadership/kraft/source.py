"""The KRaft source: the metadata log gives hints, the Metadata request confirms them."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Final

import structlog

from sidetier.leadership.kraft.follower import LogFollower, LogIntervals
from sidetier.leadership.kraft.metadata_request import (
    Answered,
    BrokerMetadataRequest,
    MetadataRequest,
    Outcome,
    RequestSchedule,
    RequestThread,
    Unanswered,
)
from sidetier.leadership.port import LeadershipView, Unreadable, ViewListener
from sidetier.leadership.settings import KraftSettings
from sidetier.leadership.worker import Mailbox, ViewPublisher, Worker
from sidetier.segments.errors import ConfigurationError, LeadershipError
from sidetier.segments.offsets import UNKNOWN_EPOCH, LeaderEpoch, TopicPartition

_SILENCE_INTERVAL: Final = 60.0
"""Seconds between two log lines about a broker that does not answer."""


@dataclass(slots=True)
class _Log:
    leads: Mapping[TopicPartition, LeaderEpoch]
    topic_ids: Mapping[str, str]
    failing_since: float | None = None


@dataclass(slots=True)
class CombinedView:
    """Combines the metadata log and the broker's Metadata responses into one view. Pure.

    A partition is led if both sources report it. The log is prompt, but its tail may be
    uncommitted; the response contains only committed metadata, but comes only on request. So a loss
    counts at once from either source, and a gain counts when a request that was sent after the log
    showed it is answered.

    While the broker does not respond (it restarts, or recovers its logs), the last response stays
    valid for `stale_after` seconds: a partition that was led then, and that the log does not report
    as lost, is still led, so that its closed segments are still uploaded. A controlled shutdown
    writes the losses to the log before the broker stops; otherwise the store's conditional writes
    keep two leaders apart. After `stale_after` the view is unknown.

    If the log cannot be read, its last state also stays valid for `stale_after` seconds; after that
    the responses count alone, without leader epochs. If the log is the only source, its tail is
    used as it is: a wrong guess does no harm, because nothing above the high watermark is ever
    uploaded.

    All times are seconds of one monotonic clock.

    Attributes:
        confirms: Whether Metadata requests are made at all.
        stale_after: Seconds for which the last state of a silent source stays valid.
    """

    confirms: bool
    stale_after: float
    _log: _Log | None = None
    _confirmed: set[TopicPartition] | None = None
    _answered_at: float = 0.0
    _changed_since_ask: set[TopicPartition] = field(default_factory=set)

    def log_read(
        self, leads: Mapping[TopicPartition, LeaderEpoch], topic_ids: Mapping[str, str]
    ) -> bool:
        """Record the led partitions of the log; return True if they changed or are the first."""
        before = self._log.leads if self._log else {}
        changed = {tp for tp, _ in before.items() ^ leads.items()}
        # The request under way may have been answered before this change: its response must not
        # confirm these partitions.
        self._changed_since_ask |= changed
        if self._confirmed is not None:
            self._confirmed -= changed
        first, self._log = self._log is None, _Log(leads, topic_ids)
        return first or bool(changed)

    def log_failed(self, now: float) -> None:
        """Record that the log could not be read."""
        if self._log and self._log.failing_since is None:
            self._log.failing_since = now

    def asked(self) -> None:
        """Record that a Metadata request is about to be sent."""
        self._changed_since_ask.clear()

    def answered(self, leads: Collection[TopicPartition], now: float) -> None:
        """Record the led partitions of the broker's response."""
        self._confirmed = set(leads) - self._changed_since_ask
        self._answered_at = now

    def settled(self) -> bool:
        """Return whether both sources agree, or one of them has no state."""
        if self._log is None or self._log.failing_since is not None or self._confirmed is None:
            return True
        return self._log.leads.keys() == self._confirmed

    def view(self, now: float) -> LeadershipView:
        """Return the view at this moment."""
        log = self._log if self._log and not self._is_stale(self._log.failing_since, now) else None
        if not self.confirms:
            return _known(log.leads, log.topic_ids) if log else LeadershipView()
        if self._confirmed is None or self._is_stale(self._answered_at, now):
            return LeadershipView()
        if log is None:
            return _known(dict.fromkeys(self._confirmed, UNKNOWN_EPOCH), {})
        leads = {tp: epoch for tp, epoch in log.leads.items() if tp in self._confirmed}
        return _known(leads, log.topic_ids)

    def _is_stale(self, since: float | None, now: float) -> bool:
        return since is not None and now - since > self.stale_after


def _known(
    leads: Mapping[TopicPartition, LeaderEpoch], topic_ids: Mapping[str, str]
) -> LeadershipView:
    return LeadershipView(MappingProxyType(leads), MappingProxyType(topic_ids), known=True)


_log = structlog.get_logger(__name__)
_METADATA_LOG = "the metadata log"
_METADATA_REQUEST = "the Metadata request"


class _Signal(Enum):
    HINT = "something in the metadata log's directory changed"
    DEATH = "the asking thread died"


class KraftLeadership:
    """A `LeadershipSource` for a broker in KRaft mode. `CombinedView` combines its two sources.

    One thread reads the metadata log and delivers views; another one waits for the broker's
    responses to Metadata requests.
    """

    def __init__(
        self,
        settings: KraftSettings,
        *,
        request: MetadataRequest | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the source; `request` replaces the request that the settings describe."""
        self._settings = settings
        self._request = request
        self._clock = clock
        self._publisher = ViewPublisher()
        self._mailbox: Mailbox[_Signal | Outcome] = Mailbox()
        self._worker = Worker("leadership-kraft", self._run)
        self._follower: LogFollower | None = None
        self._request_thread: RequestThread | None = None
        self._schedule = RequestSchedule(settings.poll_interval)
        self._combined = CombinedView(
            confirms=request is not None or settings.bootstrap_servers is not None,
            stale_after=settings.stale_after,
        )
        self._silent_since: float | None = None
        self._silence_due = 0.0
        self._unreadable: dict[str, Unreadable] = {}
        self._published_at = float("-inf")

    def start(self, listener: ViewListener) -> None:
        """Start to deliver views.

        Raises:
            ConfigurationError: Neither source is configured, the log dir does not exist, or
                librdkafka rejects a property.
        """
        # Both are opened before a thread starts, so that a wrong setting leaves none behind.
        self._follower, self._request_thread = self._open_follower(), self._open_request_thread()
        if self._follower is None and self._request_thread is None:
            raise ConfigurationError(
                "leadership in KRaft mode needs the metadata log, bootstrap servers, or both"
            )
        self._publisher.open(listener)
        if self._request_thread is not None:
            self._request_thread.start()
        self._worker.start()

    def view(self) -> LeadershipView:
        """Return the latest view."""
        return self._publisher.view

    def failure(self) -> BaseException | None:
        """Return why one of the threads died; None while both live."""
        requests = self._request_thread
        return self._worker.failure or (requests.failure if requests else None)

    def stop(self) -> None:
        """Stop delivering views; close files and connections."""
        self._publisher.close()  # first: no view may reach the listener after this call
        self._mailbox.close()
        if self._request_thread is not None:
            self._request_thread.stop()
        self._worker.join()

    def _open_follower(self) -> LogFollower | None:
        settings = self._settings
        if settings.metadata_log_dir is None:
            return None
        return LogFollower(
            settings.metadata_log_dir,
            LogIntervals(settings.log_poll_interval, settings.poll_interval),
            on_hint=lambda: self._mailbox.post_once(_Signal.HINT),
        )

    def _open_request_thread(self) -> RequestThread | None:
        settings, request = self._settings, self._request
        if request is None and settings.bootstrap_servers is not None:
            request = BrokerMetadataRequest(
                settings.bootstrap_servers,
                settings.broker_id,
                settings.request_timeout,
                settings.client_properties,
            )
        if request is None:
            return None
        return RequestThread(
            request,
            on_outcome=self._mailbox.post,
            on_death=lambda: self._mailbox.post(_Signal.DEATH),
        )

    def _run(self) -> None:
        try:
            messages: list[_Signal | Outcome] = []
            while not self._mailbox.closed and _Signal.DEATH not in messages:
                self._handle(messages)
                messages = self._mailbox.take(self._pause())
        finally:
            if self._follower is not None:
                self._follower.stop()

    def _pause(self) -> float:
        due = self._follower.due if self._follower else float("inf")
        if self._request_thread is not None and not self._schedule.in_flight:
            due = min(due, self._schedule.due)
        return max(0.0, min(due - self._clock(), self._settings.log_poll_interval))

    def _handle(self, messages: list[_Signal | Outcome]) -> None:
        now = self._clock()
        outcomes = [message for message in messages if not isinstance(message, _Signal)]
        is_changed = bool(outcomes)
        # The log is read before the outcomes are taken: a change in it that
        # is younger than the request must not be confirmed by its answer.
        if self._follower and self._follower.should_read(now, hinted=_Signal.HINT in messages):
            is_changed |= self._read_log(self._follower, now)
        for outcome in outcomes:
            self._take_outcome(outcome, now)
        # After the log was read: a response confirms only what the log showed before its request.
        if self._request_thread is not None and self._schedule.may_ask(now):
            self._schedule.asked()
            self._combined.asked()
            self._request_thread.ask()
        # Also publish from time to time without a change: the view of silent sources expires.
        if is_changed or now - self._published_at >= self._settings.log_poll_interval:
            self._published_at = now
            view = self._combined.view(now)
            self._publisher.publish(replace(view, unreadable=dict(self._unreadable)))

    def _read_log(self, follower: LogFollower, now: float) -> bool:
        try:
            changed = follower.read(now)
        except LeadershipError as error:
            if self._request_thread is None and not error.retry:
                raise  # no source is left: the sidecar ends with the reason
            self._combined.log_failed(now)
            return False
        except Exception as error:  # noqa: BLE001 - affects only this read; the log is read again
            follower.failed(now)
            self._combined.log_failed(now)
            self._note_unexpected(_METADATA_LOG, error)
            return True
        self._unreadable.pop(_METADATA_LOG, None)
        if changed and self._combined.log_read(
            follower.image.leads(self._settings.broker_id), follower.image.topic_ids()
        ):
            self._schedule.hinted(now)
        return changed

    def _take_outcome(self, outcome: Outcome, now: float) -> None:
        match outcome:
            case Answered(answer, took):
                # Before the answer counts: leads of another
                # cluster would start uploads of the wrong topics.
                self._check_cluster(answer.cluster_id)
                self._combined.answered(answer.leads, now)
                self._schedule.answered(now, took, settled=self._combined.settled())
                self._unreadable.pop(_METADATA_REQUEST, None)
                self._note_answer(now)
            case Unanswered(error):
                self._schedule.failed(now)
                if isinstance(error, LeadershipError):
                    self._note_silence(error, now)
                else:
                    self._note_unexpected(_METADATA_REQUEST, error)

    def _check_cluster(self, cluster_id: str | None) -> None:
        expected = self._settings.cluster_id
        if expected is not None and cluster_id is not None and cluster_id != expected:
            raise ConfigurationError(
                f"{self._settings.bootstrap_servers} belongs to cluster {cluster_id}, but the log "
                f"dirs belong to cluster {expected}; set the bootstrap servers to the broker "
                "beside this sidecar"
            )

    def _note_unexpected(self, what: str, error: Exception) -> None:
        before = self._unreadable.get(what)
        failures = before.failures + 1 if before is not None else 1
        same = before is not None and before.error == str(error)
        self._unreadable[what] = Unreadable(type(error).__name__, str(error), failures)
        _log.error(
            "leadership.unexpected_error",
            what=what,
            failures=failures,
            error=str(error),
            exc_info=None if same else error,
        )

    def _note_silence(self, error: LeadershipError, now: float) -> None:
        """Log when it begins, and then once a minute."""
        if self._silent_since is None:
            self._silent_since = now
        elif now < self._silence_due:
            return
        self._silence_due = now + _SILENCE_INTERVAL
        seconds = round(now - self._silent_since)
        _log.warning("leadership.broker_silent", reason=str(error), seconds=seconds)

    def _note_answer(self, now: float) -> None:
        if self._silent_since is not None:
            _log.info("leadership.broker_answers", seconds=round(now - self._silent_since))
        self._silent_since = None

"""Combine the metadata log and the broker's Metadata responses into one view. Pure.

A partition is led if both sources say so. The log is prompt, but its tail may be uncommitted; the
response contains only committed metadata, but comes only on request. So a loss counts at once from
either source, and a gain counts when a request that was sent after the log showed it is answered.

While the broker does not respond (it restarts, or recovers its logs), the last response stays valid
for `stale_after` seconds: a partition that was led then, and that the log does not report as lost,
is still led, so that its closed segments are still uploaded. A controlled shutdown writes the
losses to the log before the broker stops; otherwise the store's conditional writes keep two leaders
apart. After `stale_after` the view is unknown.

If the log cannot be read, its last state also stays valid for `stale_after` seconds; after that the
responses count alone, without leader epochs. If the log is the only source, its tail is used as it
is: a wrong guess does no harm, because nothing above the high watermark is ever uploaded.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from sidetier.leadership.port import LeadershipView
from sidetier.segments.offsets import UNKNOWN_EPOCH, LeaderEpoch, TopicPartition


@dataclass(slots=True)
class _Log:
    leads: Mapping[TopicPartition, LeaderEpoch]
    topic_ids: Mapping[str, str]
    failing_since: float | None = None


@dataclass(slots=True)
class Belief:
    """Latest state of each source. All times are seconds of one monotonic clock.

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

"""What to believe of the metadata log and of the broker's answers; pure.

A partition is led when both say so. The log is prompt, but its tail may be uncommitted; the answer
shows committed metadata only, but comes when asked. So a loss counts from either, at once, and a
gain waits for the answer to a request that was sent after the log had shown it.

While the broker does not answer (it restarts, or recovers its logs) the last answer stands for
`stale_after` seconds: what was led then and is not lost by the log is still led, so that its closed
segments go on being stored. A controlled shutdown writes the losses to the log before the broker
stops; where it does not, the conditional writes of the store keep two leaders apart. After that
time the view is unknown.

A log that cannot be read is stood in for by its last state, likewise for `stale_after` seconds, and
then by the answers alone, without epochs. With the log alone its tail is taken as it is: a wrong
guess does no harm, since nothing above the high watermark is ever uploaded.
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
    """The latest word of each source; times are seconds of one monotonic clock.

    `confirms` says that Metadata requests are made at all.
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
        """The log was read, and says that these are led; True where it said otherwise before."""
        before = self._log.leads if self._log else {}
        changed = {tp for tp, _ in before.items() ^ leads.items()}
        self._changed_since_ask |= changed
        if self._confirmed is not None:
            self._confirmed -= changed
        first, self._log = self._log is None, _Log(leads, topic_ids)
        return first or bool(changed)

    def log_failed(self, now: float) -> None:
        """The log could not be read."""
        if self._log and self._log.failing_since is None:
            self._log.failing_since = now

    def asked(self) -> None:
        """A Metadata request is about to be sent."""
        self._changed_since_ask.clear()

    def answered(self, leads: Collection[TopicPartition], now: float) -> None:
        """The broker answered that these are led."""
        self._confirmed = set(leads) - self._changed_since_ask
        self._answered_at = now

    def settled(self) -> bool:
        """Whether the two sources say the same, or one of them has nothing to say."""
        if self._log is None or self._log.failing_since is not None or self._confirmed is None:
            return True
        return self._log.leads.keys() == self._confirmed

    def view(self, now: float) -> LeadershipView:
        """What is led, as far as can be told at this moment."""
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

"""Prometheus metrics of the endpoint."""

from collections.abc import Callable

from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry, Counter, Histogram

from sidetier.endpoint.live.side import Side
from sidetier.telemetry import endpoint_catalogue as catalogue
from sidetier.telemetry.instruments import counter, gauge, histogram, total_of
from sidetier.wire.protocol import ApiKey


class EndpointMetrics:
    """All metrics of one endpoint. Thread-safe.

    Args:
        registry: The registry that they are registered in.
        block_bytes: Returns the bytes that the block cache holds.
    """

    def __init__(self, registry: CollectorRegistry, block_bytes: Callable[[], int]) -> None:
        self.connections = gauge(catalogue.CONNECTIONS, registry)
        self.accepted = counter(catalogue.ACCEPTED, registry)
        self.refused = counter(catalogue.REFUSED, registry)
        self.dropped = counter(catalogue.CLOSED, registry)
        self.reload_failures = counter(catalogue.RELOAD_FAILURES, registry)
        self.logins = counter(catalogue.LOGINS, registry)
        self._requests = counter(catalogue.REQUESTS, registry)
        self._seconds = histogram(catalogue.REQUEST_SECONDS, registry)
        self._children: dict[tuple[ApiKey, ErrorCode], tuple[Counter, Histogram]] = {}
        self._sent = counter(catalogue.SENT_BYTES, registry)
        self._records = counter(catalogue.RECORD_BYTES, registry)
        self.throttled = counter(catalogue.THROTTLED_SECONDS, registry)
        gauge(catalogue.BLOCK_BYTES, registry).set_function(block_bytes)

    def answered(
        self, api: ApiKey, error: ErrorCode, seconds: float, sent: int, records: int
    ) -> None:
        """Count an answered request, its bytes, and the bytes of record batches among them."""
        children = self._children.get((api, error))
        if children is None:
            # `labels` builds and looks up its key at each call.
            children = self._requests.labels(api.title, error.name), self._seconds.labels(api.title)
            self._children[api, error] = children
        requests, durations = children
        requests.inc()
        durations.observe(seconds)
        self._sent.inc(sent)
        self._records.inc(records)

    def totals(self) -> dict[str, int]:
        """Return what was counted since the start, for the status page."""
        return {
            "refused_connections": total_of(self.refused),
            "requests": total_of(self._requests),
            "sent_bytes": total_of(self._sent),
            "record_bytes": total_of(self._records),
        }


class GroupMetrics:
    """Metrics of the endpoint's consumer groups. Thread-safe.

    Args:
        registry: The registry that they are registered in.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._groups, self._members, self._bytes = (
            gauge(metric, registry)
            for metric in (catalogue.GROUPS, catalogue.GROUP_MEMBERS, catalogue.GROUP_BYTES)
        )
        self.commits = counter(catalogue.OFFSET_COMMITS, registry)
        self.writes = counter(catalogue.GROUP_WRITES, registry)
        self.lost = counter(catalogue.LOST_GROUPS, registry)
        self.relay_failures = counter(catalogue.RELAY_FAILURES, registry)
        for reason in ("unavailable", "login", "refused"):
            self.relay_failures.labels(reason)  # 0 from the start, for `rate`

    def watch(
        self, groups: Callable[[], int], members: Callable[[], int], memory: Callable[[], int]
    ) -> None:
        """Take the numbers of groups and members, and their bytes, from these functions."""
        self._groups.set_function(groups)
        self._members.set_function(members)
        self._bytes.set_function(memory)


class LiveMetrics:
    """Metrics of the live cluster that an endpoint reads. Thread-safe.

    Args:
        registry: The registry that they are registered in.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        answers = counter(catalogue.LIVE_ANSWERS, registry)
        self._answers = {side: answers.labels(side.value) for side in (Side.ARCHIVE, Side.LIVE)}
        self._side_changes = counter(catalogue.LIVE_SIDE_CHANGES, registry)
        self.record_bytes = counter(catalogue.LIVE_RECORD_BYTES, registry)
        self.fetched_bytes = counter(catalogue.LIVE_FETCHED_BYTES, registry)
        self.fetches = counter(catalogue.LIVE_FETCHES, registry)
        self.leader_changes = counter(catalogue.LIVE_LEADER_CHANGES, registry)
        self.gaps = counter(catalogue.LIVE_GAPS, registry)
        self._unavailable, self._followed, self._lag = (
            gauge(metric, registry)
            for metric in (
                catalogue.LIVE_UNAVAILABLE_BROKERS,
                catalogue.LIVE_FOLLOWED,
                catalogue.LIVE_LAG,
            )
        )

    def answered(self, side: Side, before: Side | None) -> None:
        """Count an answer with records of one side; `before` is that of the client's last ones."""
        self._answers[side].inc()
        if before not in {None, side}:
            self._side_changes.inc()

    def totals(self) -> dict[str, int]:
        """Return what was counted since the start, for the status page."""
        return {
            "record_bytes": total_of(self.record_bytes),
            "fetched_bytes": total_of(self.fetched_bytes),
            "gaps": total_of(self.gaps),
        }

    def watch(
        self, unavailable: Callable[[], int], followed: Callable[[], int], lag: Callable[[], int]
    ) -> None:
        """Take the numbers of brokers, partitions and records from these functions."""
        self._unavailable.set_function(unavailable)
        self._followed.set_function(followed)
        self._lag.set_function(lag)

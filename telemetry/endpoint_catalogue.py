"""All metrics of `sidetier serve` by name."""

from typing import Final

from sidetier.telemetry.catalogue import PREFIX, Kind, Metric

_PREFIX: Final = PREFIX + "endpoint_"

CONNECTIONS: Final = Metric(_PREFIX + "connections", Kind.GAUGE, "Open connections of clients.")
ACCEPTED: Final = Metric(
    _PREFIX + "accepted_connections_total", Kind.COUNTER, "Connections that were accepted."
)
REFUSED: Final = Metric(
    _PREFIX + "refused_connections_total",
    Kind.COUNTER,
    "Connections that were closed at once, because --max-connections or --max-connections-per-host "
    "were open.",
)
CLOSED: Final = Metric(
    _PREFIX + "dropped_connections_total",
    Kind.COUNTER,
    "Connections that the endpoint closed, by reason: idle, slow (a request did not arrive in "
    "time), slow_reader (an answer was not taken within --send-timeout), malformed, unsupported, "
    "tls (no completed TLS handshake), login (none in time, or a failed one), busy (no memory for "
    "a request above 64 KiB in time), failed.",
    ("reason",),
)
LOGINS: Final = Metric(
    _PREFIX + "logins_total",
    Kind.COUNTER,
    "Logins by SASL, by mechanism and result: success, failure.",
    ("mechanism", "result"),
)
RELOAD_FAILURES: Final = Metric(
    _PREFIX + "reload_failures_total",
    Kind.COUNTER,
    "Changed files that could not be loaded; the earlier version stays in use. By file: "
    "certificate, users, groups_properties.",
    ("file",),
)
REQUESTS: Final = Metric(
    _PREFIX + "requests_total",
    Kind.COUNTER,
    "Answered requests, by kind, and by the first error in the answer (none for success).",
    ("api", "error"),
)
REQUEST_SECONDS: Final = Metric(
    _PREFIX + "request_seconds",
    Kind.HISTOGRAM,
    "Time from a whole request to the last byte of its answer, by kind. A Fetch at the end of a "
    "partition includes its wait for new records.",
    ("api",),
    buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
SENT_BYTES: Final = Metric(
    _PREFIX + "sent_bytes_total", Kind.COUNTER, "Bytes sent to clients, framing included."
)
RECORD_BYTES: Final = Metric(
    _PREFIX + "record_bytes_total", Kind.COUNTER, "Bytes of record batches sent to clients."
)
THROTTLED_SECONDS: Final = Metric(
    _PREFIX + "throttled_seconds_total",
    Kind.COUNTER,
    "Time for which connections were throttled by --max-bytes-per-second or a user's cap, summed "
    "over connections.",
)
BLOCK_BYTES: Final = Metric(
    _PREFIX + "block_bytes",
    Kind.GAUGE,
    "Bytes of memory for segments that are held for clients or being fetched; at most 3/4 of "
    "--memory.",
)
GROUPS: Final = Metric(
    _PREFIX + "groups", Kind.GAUGE, "Consumer groups in memory, with --groups local."
)
GROUP_MEMBERS: Final = Metric(
    _PREFIX + "group_members", Kind.GAUGE, "Members of all consumer groups, with --groups local."
)
GROUP_BYTES: Final = Metric(
    _PREFIX + "group_bytes",
    Kind.GAUGE,
    "Bytes that members, subscriptions, assignments and committed offsets take in memory, roughly, "
    "with --groups local; at most 128 MiB.",
)
OFFSET_COMMITS: Final = Metric(
    _PREFIX + "offset_commits_total",
    Kind.COUNTER,
    "OffsetCommit requests with offsets to store, with --groups local.",
)
GROUP_WRITES: Final = Metric(
    _PREFIX + "group_writes_total",
    Kind.COUNTER,
    "Writes of committed offsets to the store, with --groups local. Commits that arrive during a "
    "write share the next one, and offsets that are stored already are not written again.",
)
LOST_GROUPS: Final = Metric(
    _PREFIX + "lost_groups_total",
    Kind.COUNTER,
    "Consumer groups that another endpoint has taken over, with --groups local. Only one endpoint "
    "with --groups local may serve an archive.",
)
RELAY_FAILURES: Final = Metric(
    _PREFIX + "relay_failures_total",
    Kind.COUNTER,
    "Requests to the live cluster that failed, so that clients get a retriable error, with "
    "--groups relay. By reason: unavailable (a broker cannot be reached), login (the cluster "
    "refuses the endpoint's login), refused (it names no coordinator).",
    ("reason",),
)

ENDPOINT_METRICS: Final[tuple[Metric, ...]] = tuple(
    value for value in tuple(globals().values()) if isinstance(value, Metric)
)
"""All of the above, in order."""

"""All metrics of `sidetier serve` by name."""

from typing import Final

from sidetier.telemetry.catalogue import Catalogue

_metrics: Final = Catalogue("endpoint_")
_BUCKETS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

# fmt: off
CONNECTIONS: Final = _metrics.gauge("connections", "Open connections of clients.")
ACCEPTED: Final = _metrics.counter("accepted_connections_total", "Connections that were accepted.")
REFUSED: Final = _metrics.counter("refused_connections_total", "Connections that were closed at once, because --max-connections or --max-connections-per-host were open.")
CLOSED: Final = _metrics.counter("dropped_connections_total", "Connections that the endpoint closed, by reason: idle, slow (a request did not arrive in time), slow_reader (an answer was not taken within --send-timeout), malformed, unsupported, tls (no completed TLS handshake), login (none in time, or a failed one), busy (no memory for a request above 64 KiB in time), failed.", "reason")
LOGINS: Final = _metrics.counter("logins_total", "Logins by SASL, by mechanism and result: success, failure.", "mechanism", "result")
RELOAD_FAILURES: Final = _metrics.counter("reload_failures_total", "Changed files that could not be loaded; the earlier version stays in use. By file: certificate, users, groups_properties, live_properties.", "file")
REQUESTS: Final = _metrics.counter("requests_total", "Answered requests, by kind, and by the first error in the answer (none for success).", "api", "error")
REQUEST_SECONDS: Final = _metrics.histogram("request_seconds", "Time from a whole request to the last byte of its answer, by kind. A Fetch at the end of a partition includes its wait for new records.", "api", buckets=_BUCKETS)
SENT_BYTES: Final = _metrics.counter("sent_bytes_total", "Bytes sent to clients, framing included.")
RECORD_BYTES: Final = _metrics.counter("record_bytes_total", "Bytes of record batches sent to clients.")
THROTTLED_SECONDS: Final = _metrics.counter("throttled_seconds_total", "Time for which connections were throttled by --max-bytes-per-second or a user's cap, summed over connections.")
BLOCK_BYTES: Final = _metrics.gauge("block_bytes", "Bytes of memory for segments that are held for clients or being fetched; at most 3/4 of --memory.")
GROUPS: Final = _metrics.gauge("groups", "Consumer groups in memory, with --groups local.")
GROUP_MEMBERS: Final = _metrics.gauge("group_members", "Members of all consumer groups, with --groups local.")
GROUP_BYTES: Final = _metrics.gauge("group_bytes", "Bytes that members, subscriptions, assignments and committed offsets take in memory, roughly, with --groups local; at most 128 MiB.")
OFFSET_COMMITS: Final = _metrics.counter("offset_commits_total", "OffsetCommit requests with offsets to store, with --groups local.")
GROUP_WRITES: Final = _metrics.counter("group_writes_total", "Writes of committed offsets to the store, with --groups local. Commits that arrive during a write share the next one, and offsets that are stored already are not written again.")
LOST_GROUPS: Final = _metrics.counter("lost_groups_total", "Consumer groups that another endpoint has taken over, with --groups local. Only one endpoint with --groups local may serve an archive.")
RELAY_FAILURES: Final = _metrics.counter("relay_failures_total", "Requests to the live cluster that failed, so that clients get a retriable error, with --groups relay. By reason: unavailable (a broker cannot be reached), login (the cluster refuses the endpoint's login), refused (it names no coordinator).", "reason")
LIVE_RECORD_BYTES: Final = _metrics.counter("live_record_bytes_total", "Bytes of record batches sent to clients that came from brokers, with --live. All others of sidetier_endpoint_record_bytes_total came from the archive.")
LIVE_FETCHED_BYTES: Final = _metrics.counter("live_fetched_bytes_total", "Bytes of record batches that brokers have sent to the endpoint, with --live. Clients that read the same share them.")
LIVE_ANSWERS: Final = _metrics.counter("live_answers_total", "Answers with records of a partition, by the side that they came from, with --live: archive, broker.", "side")
LIVE_SIDE_CHANGES: Final = _metrics.counter("live_side_changes_total", "Answers with records of a partition that came from another side than the records that the same client got before, with --live. A client that reads on from the archive to the end makes one.")
LIVE_FETCHES: Final = _metrics.counter("live_fetches_total", "Answers of brokers for a partition, with --live. In a fetch session, they answer only for partitions with something new.")
LIVE_LEADER_CHANGES: Final = _metrics.counter("live_leader_changes_total", "Partitions whose leader or topic has changed, with --live.")
LIVE_UNAVAILABLE_BROKERS: Final = _metrics.gauge("live_unavailable_brokers", "Brokers that could not be reached within the last minute, with --live.")
LIVE_FOLLOWED: Final = _metrics.gauge("live_followed_partitions", "Partitions whose end is read for waiting clients, for each isolation level, with --live.")
LIVE_LAG: Final = _metrics.gauge("live_lag_records", "Records between the end of a partition that is read for waiting clients and what was read of it, the most of all partitions, with --live.")
LIVE_GAPS: Final = _metrics.counter("live_gaps_total", "Fetches for records that the broker has deleted and the archive lacks, with --live. Their clients get OFFSET_OUT_OF_RANGE, and skip these records or end.")
# fmt: on

ENDPOINT_METRICS: Final = _metrics.declared
"""All of the above, in order."""

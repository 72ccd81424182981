"""Grafana dashboard as JSON, which `make docs` writes into the chart.

The data source is a dashboard variable, so it fits any Prometheus. It shows one or all instances.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from devtools.chart.alerts import ALERTS
from sidetier.telemetry import catalogue as names
from sidetier.telemetry import endpoint_catalogue as endpoint_names
from sidetier.telemetry.catalogue import Metric

_RATE: Final = "$__rate_interval"
_INSTANCES: Final = 'job=~"$job",instance=~"$instance"'
CHOSEN: Final = f'cluster=~"$cluster",{_INSTANCES}'
"""Selects sidecars. The metrics of Kafka endpoints have no label `cluster`."""
_HALTED: Final = 'state="halted"'
_FAILED: Final = 'result="failure"'
_ONLY_OURS: Final = f"and on (job, instance) {names.BUILD_INFO.name}"
_ONLY_ENDPOINTS: Final = f"and on (job, instance) {endpoint_names.CONNECTIONS.name}"
_OF_TOPIC: Final = f'{CHOSEN},topic=~"$topic|"'
"""The empty alternative after `|` keeps series without labels (`http.max_partition_series`)."""

Section = tuple[str, tuple["Panel", ...]]
Kind = Literal["stat", "table", "timeseries"]


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression, and the legend of its series."""

    expr: str
    legend: str = "{{instance}}"


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        unit: Grafana's name of the unit.
        width: in columns of Grafana's grid, which has 24.
        alarm_above, alarm_below: threshold of the colour red.
        alerts: names of the alerts about the same metrics; their runbook pages are linked.
    """

    title: str
    help: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: Kind = "timeseries"
    width: int = 12
    alarm_above: float | None = None
    alarm_below: float | None = None
    alerts: tuple[str, ...] = ()

    @property
    def height(self) -> int:
        """Height in rows of Grafana's grid."""
        return 4 if self.kind == "stat" else 8


def _of(metric: Metric, *more: str) -> str:
    """Return the selector for the chosen instances, and topics if the metric has that label."""
    chosen = _OF_TOPIC if "topic" in metric.labels else _chosen(metric)
    return f"{metric.name}{{{','.join((chosen, *more))}}}"


def _chosen(metric: Metric) -> str:
    return _INSTANCES if metric in endpoint_names.ENDPOINT_METRICS else CHOSEN


def _rate(metric: Metric, suffix: str = "", *more: str) -> str:
    return f"rate({metric.name}{suffix}{{{','.join((_chosen(metric), *more))}}}[{_RATE}])"


def _topic_rate(metric: Metric) -> str:
    return f"sum by (topic) (rate({_of(metric)}[{_RATE}]))"


def _increase(metric: Metric) -> str:
    """Return the increase over the dashboard's time range.

    A series that did not exist at the start of the range counts with its maximum. It was created by
    its first event, which `increase` does not see.
    """
    series = _of(metric)
    known = f"increase({series}[$__range]) and {series} offset $__range"
    new = f"max_over_time({series}[$__range]) unless {series} offset $__range"
    return f"sum(({known}) or ({new}))"


def _quantile(quantile: float, metric: Metric, *by: str) -> Query:
    labels = ", ".join(("le", *by))
    prefix = "".join(f"{{{{{label}}}}} " for label in by)
    return Query(
        f"histogram_quantile({quantile}, sum by ({labels}) ({_rate(metric, '_bucket')}))",
        f"{prefix}p{quantile * 100:g}",
    )


def _quantiles(metric: Metric, *by: str) -> tuple[Query, ...]:
    return tuple(_quantile(quantile, metric, *by) for quantile in (0.5, 0.99))


def _stat(
    title: str,
    text: str,
    expr: str,
    unit: str = "short",
    alerts: tuple[str, ...] = (),
    **alarm: float,
) -> Panel:
    return Panel(title, text, (Query(expr, ""),), unit, "stat", 4, alerts=alerts, **alarm)


def _top(title: str, text: str, metric: Metric, unit: str, *alerts: str) -> Panel:
    """Return a table of the `$top` partitions with the highest values, highest first."""
    by = "cluster, broker, topic, partition"
    # Above http.max_partition_series, some series have no topic: they are sums, not partitions.
    series = f'{metric.name}{{{_OF_TOPIC},topic!=""}}'
    expr = f"topk($top, max by ({by}) ({series}) > 0)"
    return Panel(title, text, (Query(expr, ""),), unit, "table", 8, alerts=alerts)


SECTIONS: Final[tuple[Section, ...]] = (
    (
        "Is everything stored?",
        (
            _stat(
                "Records lost",
                "Records that were deleted before they were stored, in the time range.",
                _increase(names.GAP_RECORDS),
                alarm_above=1,
                alerts=("SidetierGapFound",),
            ),
            _stat(
                "Oldest unstored segment",
                "Time since it was closed.",
                f"max({_of(names.OLDEST_AGE)})",
                "s",
                alarm_above=900,
                alerts=("SidetierUploadStalled",),
            ),
            _stat(
                "Until local deletion",
                "Shortest time until the broker deletes a segment that is not stored.",
                f"min({_of(names.UNTIL_DELETION)})",
                "s",
                alarm_below=600,
                alerts=("SidetierNearLocalDeletion",),
            ),
            _stat(
                "Halted partitions",
                "Partitions that wait for an operator.",
                f"sum({_of(names.PARTITIONS, _HALTED)})",
                alarm_above=1,
                alerts=("SidetierPartitionHalted",),
            ),
            _stat(
                "Sidecars not ready",
                "Sidecars that answer and are not ready.",
                f"count({_of(names.READY)}) - sum({_of(names.READY)})",
                alarm_above=1,
                alerts=("SidetierNotReady",),
            ),
            _stat(
                "Lag",
                "Bytes in closed segments that are not stored.",
                f"sum({_of(names.LAG_BYTES)})",
                "bytes",
            ),
            _stat(
                "Records not archived",
                "Records that only the brokers have, in closed and active segments.",
                f"sum({_of(names.UNARCHIVED_RECORDS)})",
            ),
            _stat(
                "Bytes not archived",
                "Bytes of the segments with records that are not archived.",
                f"sum({_of(names.UNARCHIVED_BYTES)})",
                "bytes",
            ),
            _stat(
                "Oldest record not archived",
                "Time since it was appended.",
                f"max({_of(names.UNARCHIVED_AGE)})",
                "s",
                alerts=("SidetierArchiveBehind",),
            ),
            _stat(
                "Unresolved gaps",
                "Records in gaps that no operator has acknowledged.",
                f"sum({_of(names.UNRESOLVED_GAPS)})",
                alarm_above=1,
                alerts=("SidetierGapFound",),
            ),
            _stat(
                "Unresolved quarantines",
                "Quarantines that no operator has acknowledged.",
                f"sum({_of(names.UNRESOLVED_QUARANTINES)})",
                alarm_above=1,
                alerts=("SidetierQuarantined",),
            ),
        ),
    ),
    (
        "Lagging partitions",
        (
            _top(
                "Most bytes that are not stored",
                "Bytes in closed segments that are not stored, of the $top worst partitions.",
                names.LAG_BYTES,
                "bytes",
                "SidetierUploadStalled",
            ),
            _top(
                "Oldest unstored segments",
                "Time since the oldest unstored segment was closed, of the $top worst partitions.",
                names.OLDEST_AGE,
                "s",
                "SidetierUploadStalled",
                "SidetierNeverArchived",
            ),
            _top(
                "Oldest records not archived",
                "Time since the oldest record was appended that only the brokers have, of the $top "
                "worst partitions.",
                names.UNARCHIVED_AGE,
                "s",
                "SidetierArchiveBehind",
            ),
        ),
    ),
    (
        "Tail packs",
        (
            _top(
                "Records not safe yet",
                "How long committed records have been waiting for a tail pack, of the $top worst "
                "partitions (uploader.tail).",
                names.UNSAFE_SECONDS,
                "s",
            ),
            Panel(
                "Newest safe record",
                "Age of the newest record in a tail pack, of the partition that has stored last.",
                (Query(f"min by (topic) ({_of(names.NEWEST_SAFE_AGE)})", "{{topic}}"),),
                "s",
            ),
            Panel(
                "Safe up to",
                "End of the archive and of the stored tail behind it, summed over the partitions.",
                (Query(f"sum by (topic) ({_of(names.SAFE_TO)})", "{{topic}}"),),
            ),
            Panel(
                "Duration of a cycle",
                "It stays below uploader.tail.interval.",
                _quantiles(names.TAIL_CYCLE_SECONDS),
                "s",
            ),
            Panel(
                "Packs stored",
                "Stored and failed packs, refused ranges, and packs that cleaning has deleted.",
                (
                    Query(_rate(names.TAIL_PACKS), "stored {{instance}}"),
                    Query(_rate(names.TAIL_FAILED_PACKS), "failed {{instance}}"),
                    Query(_rate(names.TAIL_REFUSED), "refused {{instance}}"),
                    Query(_rate(names.TAIL_DELETED_PACKS), "deleted {{instance}}"),
                ),
                "ops",
            ),
            Panel(
                "Bytes stored",
                "Bytes of packs, and of those that cleaning has written again.",
                (
                    Query(_rate(names.TAIL_BYTES), "stored {{instance}}"),
                    Query(_rate(names.TAIL_REWRITTEN_BYTES), "written again {{instance}}"),
                ),
                "Bps",
            ),
            Panel(
                "Live packs",
                "Packs that are needed, as of the last cleaning.",
                (Query(_of(names.TAIL_LIVE_PACKS)),),
            ),
            Panel(
                "Live share",
                "Share of their bytes that only they have.",
                (Query(_of(names.TAIL_LIVE_SHARE)),),
                "percentunit",
            ),
            Panel(
                "Records that only packs have, and packs that cannot be read",
                "Both should be 0: the cluster has lost these records, and such a pack may leave "
                "partitions without a tail.",
                (
                    Query(_of(names.TAIL_STALE_OFFSETS), "lost offsets {{instance}}"),
                    Query(_of(names.TAIL_UNREAD_PACKS), "unread packs {{instance}}"),
                    Query(_of(names.TAIL_UNKNOWN_PARTITIONS), "unknown partitions {{instance}}"),
                ),
            ),
        ),
    ),
    (
        "Upload",
        (
            Panel(
                "Stored",
                "Bytes of segments and indexes.",
                (Query(_topic_rate(names.UPLOADED_BYTES), "{{topic}}"),),
                "Bps",
            ),
            Panel(
                "Segments stored",
                "Segments stored with their indexes, and how many of them are parts of active "
                "segments (uploader.early).",
                (
                    Query(_topic_rate(names.UPLOADED_SEGMENTS), "{{topic}}"),
                    Query(f"sum(rate({_of(names.EARLY_SEGMENTS)}[{_RATE}]))", "early"),
                ),
                "ops",
            ),
            Panel(
                "Lag by topic",
                "Bytes in closed segments that are not stored.",
                (Query(f"sum by (topic) ({_of(names.LAG_BYTES)})", "{{topic}}"),),
                "bytes",
            ),
            Panel(
                "Unstored segments by topic",
                "Closed segments that are not stored.",
                (Query(f"sum by (topic) ({_of(names.LAG_SEGMENTS)})", "{{topic}}"),),
            ),
            Panel(
                "From roll to stored",
                "Time until offset.wm covers the segment.",
                _quantiles(names.ROLL_TO_STORED),
                "s",
            ),
            Panel("Its parts", "By stage.", _quantiles(names.STAGE_SECONDS, "stage"), "s"),
            Panel(
                "Queue",
                "Segments that wait for a thread, and running uploads.",
                (
                    Query(_of(names.QUEUE_SEGMENTS), "waiting {{instance}}"),
                    Query(_of(names.UPLOADING), "under way {{instance}}"),
                ),
            ),
            Panel(
                "Queued bytes",
                "Bytes of the segments that wait for a thread.",
                (Query(_of(names.QUEUE_BYTES)),),
                "bytes",
            ),
            Panel(
                "Time of one upload",
                "From the first byte to the store's last response.",
                _quantiles(names.UPLOAD_SECONDS),
                "s",
            ),
            Panel(
                "Waiting for the bandwidth limit",
                "Seconds per second, over all threads.",
                (Query(_rate(names.THROTTLED_SECONDS)),),
            ),
        ),
    ),
    (
        "Store",
        (
            Panel(
                "Requests",
                "Attempts of requests, by outcome.",
                (
                    Query(
                        f"sum by (outcome) ({_rate(names.REQUEST_SECONDS, '_count')})",
                        "{{outcome}}",
                    ),
                ),
                "reqps",
                alerts=("SidetierStoreRefusing", "SidetierStoreUnreachable"),
            ),
            Panel(
                "Time of one request",
                "Duration of one attempt, by operation.",
                _quantiles(names.REQUEST_SECONDS, "operation"),
                "s",
            ),
            Panel(
                "Hung requests",
                "Requests that have taken longer than storage.deadline.hung_after.",
                (Query(_of(names.HUNG_REQUESTS)),),
            ),
            Panel(
                "Retries",
                "Retries, by kind of the error before.",
                (Query(f"sum by (kind) ({_rate(names.RETRIES)})", "{{kind}}"),),
                "ops",
            ),
            Panel(
                "Errors",
                "Errors, by kind.",
                (
                    Query(f"sum by (kind) ({_rate(names.ERRORS)})", "{{kind}}"),
                    Query(
                        f"sum by (kind) ({_rate(names.UNEXPECTED_ERRORS)})", "{{kind}}, unexpected"
                    ),
                ),
                "ops",
            ),
        ),
    ),
    (
        "Leadership and other writers",
        (
            Panel(
                "Partitions led",
                "Led partitions by state.",
                (Query(f"sum by (state) ({_of(names.PARTITIONS)})", "{{state}}"),),
            ),
            Panel(
                "Partitions led, by sidecar",
                "Archived partitions that the broker leads.",
                (Query(_of(names.LEADER_PARTITIONS)),),
            ),
            Panel(
                "Leadership changes",
                "Partitions gained, lost, and renewed with another leader epoch.",
                (Query(f"sum by (change) ({_rate(names.LEADERSHIP_CHANGES)})", "{{change}}"),),
                "ops",
                alerts=("SidetierLeadershipUnknown",),
            ),
            Panel(
                "Conditions of readiness",
                "1 while the condition holds.",
                (Query(_of(names.READY_CONDITION), "{{condition}} {{instance}}"),),
                alerts=(
                    "SidetierNotReady",
                    "SidetierLeadershipUnknown",
                    "SidetierStoreUnreachable",
                ),
            ),
            Panel(
                "Other writers",
                "Refused conditional writes, segments stored in place of another leader's "
                "sidecar, quarantines, takeovers, and files of segments that were not stored.",
                tuple(
                    Query(f"sum(increase({_of(metric)}[{_RATE}]))", legend)
                    for metric, legend in (
                        (names.CONFLICTS, "conflicts"),
                        (names.RESCUED, "rescued"),
                        (names.QUARANTINES, "quarantines"),
                        (names.TAKEOVERS, "takeovers"),
                        (names.LEFT_OUT_FILES, "left out"),
                    )
                ),
                alerts=("SidetierConflicts", "SidetierRescuing", "SidetierQuarantined"),
            ),
            Panel(
                "Followed",
                "Partitions that other brokers lead and whose segments near deletion, and pinned "
                "segments of them.",
                (
                    Query(_of(names.FOLLOWED_PARTITIONS), "partitions {{instance}}"),
                    Query(_of(names.FOLLOWED_PINNED), "segments held {{instance}}"),
                ),
            ),
        ),
    ),
    (
        "Watermarks",
        (
            Panel(
                "Archive end offset",
                "First offset that is not archived, for the chosen topics.",
                (Query(_of(names.WATERMARK_NEXT), "{{topic}}-{{partition}}"),),
            ),
            Panel(
                "Log end",
                "High watermark, for the chosen topics.",
                (Query(_of(names.LOG_END), "{{topic}}-{{partition}}"),),
            ),
            Panel(
                "Halted partitions, by name",
                "Partitions that wait for an operator.",
                (Query(_of(names.PARTITION_STATE, _HALTED), "{{topic}}-{{partition}}"),),
                alerts=("SidetierPartitionHalted",),
            ),
            Panel(
                "Base offset of the last stored segment",
                "Base offset in offset.wm.",
                (Query(_of(names.WATERMARK_BASE), "{{topic}}-{{partition}}"),),
            ),
        ),
    ),
    (
        "Host",
        (
            Panel(
                "Pinned files",
                "Bytes of pinned files, and of those that the broker has deleted.",
                (
                    Query(_of(names.PINNED_BYTES), "held {{instance}}"),
                    Query(_of(names.PINNED_DELETED), "deleted {{instance}}"),
                ),
                "bytes",
                alerts=("SidetierHoldsDisk",),
            ),
            Panel("Files held open", "Three for a segment.", (Query(_of(names.PINNED_FILES)),)),
            Panel(
                "Local retention",
                "Bytes of archived segments that were deleted from the brokers' logs.",
                (Query(_topic_rate(names.TRIMMED_BYTES), "{{topic}}"),),
                "Bps",
            ),
            Panel(
                "Beyond local retention",
                "Bytes that stay on the broker, and why; partitions that could not be trimmed.",
                (
                    Query(
                        f"sum by (topic, reason) ({_of(names.TRIM_EXCESS)})",
                        "{{topic}}: {{reason}}",
                    ),
                    Query(
                        f"sum by (reason) ({_rate(names.TRIM_FAILURES)})", "failures: {{reason}}"
                    ),
                ),
                "bytes",
            ),
            Panel(
                "Memory",
                "Resident memory.",
                (Query(f"process_resident_memory_bytes{{{CHOSEN}}} {_ONLY_OURS}"),),
                "bytes",
            ),
            Panel(
                "CPU",
                "Used cores.",
                (Query(f"rate(process_cpu_seconds_total{{{CHOSEN}}}[{_RATE}]) {_ONLY_OURS}"),),
            ),
            Panel(
                "Watcher",
                "Restarts, overflows of the kernel's event queue, and log dirs and links that are "
                "not read.",
                (
                    Query(_of(names.LOG_DIR_PROBLEMS), "log dir problems {{instance}}"),
                    Query(
                        f"increase({_of(names.WATCHER_RESTARTS)}[{_RATE}])", "restarts {{instance}}"
                    ),
                    Query(
                        f"increase({_of(names.WATCHER_OVERFLOWS)}[{_RATE}])",
                        "overflows {{instance}}",
                    ),
                ),
                alerts=("SidetierLogDirProblem",),
            ),
            Panel(
                "Cluster snapshots",
                "Age of the newest snapshot by kind, and kinds of which the last read failed or "
                "was incomplete.",
                (
                    Query(f"min by (kind) ({_of(names.CLUSTER_SNAPSHOT_AGE)})", "age of {{kind}}"),
                    Query(
                        f"max by (kind) ({_of(names.CLUSTER_SNAPSHOT_PROBLEM)})",
                        "problem of {{kind}}",
                    ),
                ),
                "s",
                alerts=("SidetierClusterSnapshotOld",),
            ),
            Panel(
                "Version",
                "Number of sidecars by version.",
                (Query(f"count by (version) ({_of(names.BUILD_INFO)})", "{{version}}"),),
            ),
        ),
    ),
    (
        "Kafka endpoints",
        (
            Panel(
                "Requests of Kafka clients",
                "Answered requests by kind, and by the first error in the answer.",
                (
                    Query(
                        f"sum by (api, error) ({_rate(endpoint_names.REQUESTS)})",
                        "{{api}} {{error}}",
                    ),
                ),
                "reqps",
                alerts=("SidetierServeErrors",),
            ),
            Panel(
                "Sent to Kafka clients",
                "Bytes of all answers, and of the record batches among them.",
                (
                    Query(_rate(endpoint_names.SENT_BYTES), "sent {{instance}}"),
                    Query(_rate(endpoint_names.RECORD_BYTES), "record batches {{instance}}"),
                ),
                "Bps",
            ),
            Panel(
                "Time of one answer",
                "99th percentile by kind. A Fetch at the end of a partition includes its wait for "
                "new records.",
                (_quantile(0.99, endpoint_names.REQUEST_SECONDS, "api"),),
                "s",
                alerts=("SidetierServeSlow",),
            ),
            Panel(
                "Connections of Kafka clients",
                "Open connections, and new ones.",
                (
                    Query(_of(endpoint_names.CONNECTIONS), "open {{instance}}"),
                    Query(f"increase({_of(endpoint_names.ACCEPTED)}[{_RATE}])", "new {{instance}}"),
                ),
            ),
            Panel(
                "Connections refused and dropped",
                "Refused because too many were open, and closed by the endpoint, by reason.",
                (
                    Query(f"sum(increase({_of(endpoint_names.REFUSED)}[{_RATE}]))", "refused"),
                    Query(
                        f"sum by (reason) (increase({_of(endpoint_names.CLOSED)}[{_RATE}]))",
                        "{{reason}}",
                    ),
                ),
                alerts=("SidetierServeRefusing",),
            ),
            Panel(
                "Failed logins and reloads",
                "Logins that failed, and files of users and certificates that could not be read "
                "again after a change.",
                (
                    Query(
                        f"increase({_of(endpoint_names.LOGINS, _FAILED)}[{_RATE}])",
                        "logins {{mechanism}} {{instance}}",
                    ),
                    Query(
                        f"increase({_of(endpoint_names.RELOAD_FAILURES)}[{_RATE}])",
                        "reloads of {{file}} {{instance}}",
                    ),
                ),
            ),
            Panel(
                "Consumer groups of endpoints",
                "Groups and members of --groups local.",
                (
                    Query(_of(endpoint_names.GROUPS), "groups {{instance}}"),
                    Query(_of(endpoint_names.GROUP_MEMBERS), "members {{instance}}"),
                ),
            ),
            Panel(
                "Commits of consumer groups",
                "Commits with --groups local, groups that another endpoint has taken "
                "over, and failures of the cluster of --groups relay.",
                (
                    Query(_rate(endpoint_names.OFFSET_COMMITS), "commits {{instance}}"),
                    Query(_rate(endpoint_names.LOST_GROUPS), "lost groups {{instance}}"),
                    Query(
                        _rate(endpoint_names.RELAY_FAILURES),
                        "relay failures {{reason}} {{instance}}",
                    ),
                ),
            ),
            Panel(
                "Records by side",
                "Record batches sent to clients from brokers and from the archive, and those that "
                "brokers have sent for it, with --live. Clients that read the same share them.",
                (
                    Query(_rate(endpoint_names.LIVE_RECORD_BYTES), "from brokers {{instance}}"),
                    Query(
                        f"{_rate(endpoint_names.RECORD_BYTES)} - "
                        f"{_rate(endpoint_names.LIVE_RECORD_BYTES)}",
                        "from the archive {{instance}}",
                    ),
                    Query(_rate(endpoint_names.LIVE_FETCHED_BYTES), "sent by brokers {{instance}}"),
                ),
                "Bps",
                alerts=("SidetierServeGap",),
            ),
            Panel(
                "Live cluster of endpoints",
                "With --live: brokers that cannot be reached, partitions whose end is read for "
                "waiting clients, the most records that are not read of one, and changes of "
                "leaders.",
                (
                    Query(
                        _of(endpoint_names.LIVE_UNAVAILABLE_BROKERS),
                        "unavailable brokers {{instance}}",
                    ),
                    Query(_of(endpoint_names.LIVE_FOLLOWED), "partitions {{instance}}"),
                    Query(_of(endpoint_names.LIVE_LAG), "lag {{instance}}"),
                    Query(
                        f"increase({_of(endpoint_names.LIVE_LEADER_CHANGES)}[{_RATE}])",
                        "leader changes {{instance}}",
                    ),
                ),
                alerts=("SidetierServeLiveAway",),
            ),
            Panel(
                "Block cache",
                "Bytes of segments in memory; at most --memory.",
                (Query(_of(endpoint_names.BLOCK_BYTES)),),
                "bytes",
            ),
            Panel(
                "Memory of endpoints",
                "Resident memory, and the part of it that groups of --groups local take.",
                (
                    Query(
                        f"process_resident_memory_bytes{{{_INSTANCES}}} {_ONLY_ENDPOINTS}",
                        "resident {{instance}}",
                    ),
                    Query(_of(endpoint_names.GROUP_BYTES), "groups {{instance}}"),
                ),
                "bytes",
            ),
            Panel(
                "CPU of endpoints",
                "Used cores.",
                (
                    Query(
                        f"rate(process_cpu_seconds_total{{{_INSTANCES}}}[{_RATE}]) "
                        f"{_ONLY_ENDPOINTS}"
                    ),
                ),
            ),
            Panel(
                "Answers by side",
                "With --live: answers with records of a partition, by the side that they came "
                "from, and those that came from another side than the answer before.",
                (
                    Query(_rate(endpoint_names.LIVE_ANSWERS), "{{side}} {{instance}}"),
                    Query(_rate(endpoint_names.LIVE_SIDE_CHANGES), "changes of side {{instance}}"),
                ),
            ),
        ),
    ),
)


UID: Final = "sidetier"
_TOP: Final = ("10", "20", "50")
"""Choices for the number of partitions in the tables of lagging ones."""
_WIDTH: Final = 24
_TABLE: Final = {
    "options": {"showHeader": True, "sortBy": [{"displayName": "Value", "desc": True}]},
    "transformations": [{"id": "organize", "options": {"excludeByName": {"Time": True}}}],
}
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


def dashboard() -> dict[str, Any]:
    """Return the dashboard's JSON."""
    return {
        "uid": UID,
        "title": "Sidetier",
        "tags": ["kafka", "sidetier"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "",
        "templating": {"list": list(_variables())},
        "panels": list(_laid_out(SECTIONS)),
    }


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Source"}
    # Every sidecar exports the first metric, every Kafka endpoint the second.
    ours = f'__name__=~"{names.BUILD_INFO.name}|{endpoint_names.CONNECTIONS.name}"'
    lag = names.LAG_BYTES.name
    yield _variable("cluster", f"label_values({names.BUILD_INFO.name}, cluster)")
    # The empty alternative after `|` keeps endpoints, whose metrics have no label `cluster`.
    chosen = f'{ours},cluster=~"$cluster|"'
    yield _variable("job", f"label_values({{{chosen}}}, job)")
    yield _variable("instance", f'label_values({{{chosen},job=~"$job"}}, instance)')
    yield _variable("topic", f"label_values({lag}{{{CHOSEN}}}, topic)")
    yield {
        "name": "top",
        "label": "Top",
        "type": "custom",
        "query": ",".join(_TOP),
        "options": [{"text": n, "value": n, "selected": n == _TOP[0]} for n in _TOP],
        "current": {"text": _TOP[0], "value": _TOP[0]},
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _laid_out(sections: Sequence[Section]) -> Iterator[dict[str, Any]]:
    """Yield the panels of each section, from left to right below the section's title."""
    top, number = 0, 0
    for title, panels in sections:
        number += 1
        position = {"x": 0, "y": top, "w": _WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": title, "gridPos": position, "panels": []}
        top, left = top + 1, 0
        for panel in panels:
            if left + panel.width > _WIDTH:
                top, left = top + panel.height, 0
            number += 1
            position = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            yield {"id": number, "gridPos": position, **_panel(panel)}
            left += panel.width
        top += panels[-1].height


def _panel(panel: Panel) -> dict[str, Any]:
    # A stat or table panel queries the end of the time range only. For a whole range, Grafana would
    # show the last sample, and some series end when the problem is gone.
    instant = panel.kind != "timeseries"
    targets = [
        {
            "refId": chr(ord("A") + i),
            "expr": query.expr,
            "legendFormat": query.legend,
            "instant": instant,
            "range": not instant,
            **({"format": "table"} if panel.kind == "table" else {}),
        }
        for i, query in enumerate(panel.queries)
    ]
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": _description(panel),
        "datasource": _SOURCE,
        "targets": targets,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "thresholds": _thresholds(panel)},
            "overrides": [],
        },
        **(_TABLE if panel.kind == "table" else {}),
    }


def _description(panel: Panel) -> str:
    """Return the help and, in Markdown, links to the runbook pages."""
    if not panel.alerts:
        return panel.help
    pages = {alert.name: alert.runbook_url for alert in ALERTS}
    links = ", ".join(f"[{name}]({pages[name]})" for name in panel.alerts)
    return f"{panel.help}\n\nRunbook: {links}"


def _thresholds(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.alarm_above is not None:
        steps.append({"color": "red", "value": panel.alarm_above})
    if panel.alarm_below is not None:
        steps = [{"color": "red", "value": None}, {"color": "green", "value": panel.alarm_below}]
    return {"mode": "absolute", "steps": steps}

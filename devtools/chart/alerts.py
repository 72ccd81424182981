"""Alert rules for Prometheus, built with the metric names of the catalogues.

The chart installs them from `helm/sidetier/files/alerts.yaml` (written by `make docs`), and each
can be switched off. Each alert has a page in `docs/runbook/`.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any, Final, Literal

from sidetier.telemetry import catalogue as names
from sidetier.telemetry import endpoint_catalogue as endpoint_names
from sidetier.telemetry import mirror_catalogue as mirror_names
from sidetier.telemetry import verify_catalogue as verify_names


def project_home() -> str:
    """Return the address of the project, from pyproject.toml."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    home: str = tomllib.loads(text)["project"]["urls"]["Homepage"]
    return home


RUNBOOK: Final = "docs/runbook"
RUNBOOK_URL: Final = f"{project_home()}/blob/main/{RUNBOOK}"
"""Below `home` of the chart. The chart replaces it by the value `prometheusRule.runbookUrl`."""

Severity = Literal["critical", "warning"]


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule.

    Attributes:
        template: PromQL expression with thresholds as `${name}`.
        lasts: how long the expression must hold (`for`).
        summary: one line; may contain Prometheus' templates.
        thresholds: defaults, which the chart's values can replace.
    """

    name: str
    template: str
    lasts: str
    severity: Severity
    summary: str
    description: str
    thresholds: Mapping[str, int] = field(default_factory=dict)

    @property
    def expr(self) -> str:
        """The expression with the default thresholds."""
        return Template(self.template).substitute(self.thresholds)

    @property
    def runbook(self) -> str:
        """Path of the runbook page, relative to the repository."""
        return f"{RUNBOOK}/{self.name}.md"

    @property
    def runbook_url(self) -> str:
        """Address of the runbook page."""
        return f"{RUNBOOK_URL}/{self.name}.md"


_WHERE: Final = "cluster {{ $labels.cluster }}, broker {{ $labels.broker }}"
_PARTITION: Final = "{{ $labels.topic }}-{{ $labels.partition }}"
_AGE: Final = "{{ $value | humanizeDuration }}"
_BYTES: Final = "{{ $value | humanize1024 }}B"
_REFUSALS: Final = (
    "access_denied|store_full|invalid_request|checksum_mismatch|condition_refused|encryption"
)
_START: Final = "process_start_time_seconds"
"""Every process with a Prometheus client exports it. `_IS_OURS` selects the sidecars."""
_IS_OURS: Final = f"on (job, instance) last_over_time({names.BUILD_INFO.name}[1d])"
_GAPS: Final = names.GAP_RECORDS.name
_BUILD: Final = names.BUILD_INFO.name
_KNOWN: Final = f"max by (job, instance, cluster, broker) (last_over_time({_BUILD}[1d]))"
_STATE: Final = f'{names.PARTITION_STATE.name}{{state="halted"}}'
_OF_A_PARTITION: Final = '{topic!=""}'
"""Above `http.max_partition_series`, some series have no labels and others do not exist."""
_MIRROR_GAPS: Final = mirror_names.GAP_RECORDS.name
_NEWEST_VERIFIED: Final = f"max by (job, cluster) ({verify_names.COMPLETED.name})"
_MIRROR_LAG: Final = mirror_names.LAG_SECONDS.name
_MIRROR: Final = "{{ $labels.job }}, {{ $labels.instance }}"
_MIRRORS: Final = f"last_over_time({mirror_names.REFUSED_TOPICS.name}[1d])"
"""Every process of `sidetier mirror` exports this metric from its start on."""
_ENDPOINT: Final = "{{ $labels.job }}, {{ $labels.instance }}"
_ENDPOINTS: Final = f"last_over_time({endpoint_names.CONNECTIONS.name}[1d])"
"""Every process of `sidetier serve` exports this metric from its start on."""
_FAILURES: Final = "kafka_storage_error|corrupt_message|message_too_large"
_WITHOUT_WAITS: Final = "Metadata|ListOffsets|OffsetForLeaderEpoch|OffsetCommit|OffsetFetch"
"""Requests whose time does not depend on the client. A Fetch waits for records, and then for the
client to read; JoinGroup and SyncGroup wait for other members.
"""
_MOST: Final = f"max_over_time(count by (job) ({_BUILD})[1d:5m])"
"""Maximum number of a job's sidecars that answered at the same time within a day."""

ALERTS: Final[tuple[Alert, ...]] = (
    Alert(
        "SidetierGapFound",
        # The last part is for a series that did not exist ten minutes ago: its first gap created
        # it, and `increase` does not see the first value. UNRESOLVED_GAPS is read from the store
        # every 5 minutes, and stays above 0 until an operator acknowledges the gap.
        f"{names.UNRESOLVED_GAPS.name} > 0 or increase({_GAPS}[10m]) > 0 "
        f"or ({_GAPS} unless {_GAPS} offset 10m) > 0",
        "0m",
        "critical",
        f"Records of {_PARTITION} ({_WHERE}) were deleted before they were archived",
        "{{ $value | humanize }} records are missing from the archive. The gap is recorded on the "
        "store. The alert lasts until an operator acknowledges the gap.",
    ),
    Alert(
        "SidetierNearLocalDeletion",
        f"{names.UNTIL_DELETION.name} < 600",
        # A segment that the broker rolls when its records have expired is due for deletion at
        # once. It is usually stored within a minute.
        "1m",
        "critical",
        f"The broker will soon delete records of {_PARTITION} ({_WHERE}) that are not archived",
        f"Time left: {_AGE}. While the sidecar runs it holds the files open, within uploader.pins.",
    ),
    Alert(
        "SidetierUploadStalled",
        f"{names.OLDEST_AGE.name} > 900",
        "5m",
        "warning",
        f"A closed segment of {_PARTITION} ({_WHERE}) has not been archived for too long",
        f"Closed {_AGE} ago. /api/partitions shows the reason.",
    ),
    Alert(
        "SidetierNeverArchived",
        f"({names.OLDEST_AGE.name}{_OF_A_PARTITION} > ${{closedSegmentSeconds}} "
        f"or {names.UNARCHIVED_AGE.name}{_OF_A_PARTITION} > ${{recordSeconds}}) "
        f"unless {names.WATERMARK_BASE.name}",
        "15m",
        "warning",
        f"Nothing of {_PARTITION} ({_WHERE}) has ever been archived",
        f"Its oldest segment has waited for {_AGE}.",
        # The first upload of a broker's segments mostly takes less than an hour. 8 days are one
        # more than Kafka's default of segment.ms (7 days).
        {"closedSegmentSeconds": 3600, "recordSeconds": 8 * 86400},
    ),
    Alert(
        "SidetierArchiveBehind",
        f"{names.UNARCHIVED_AGE.name} > ${{recordSeconds}}",
        "15m",
        "warning",
        f"Records of {_PARTITION} ({_WHERE}) have been on the brokers alone for too long",
        f"The oldest was appended {_AGE} ago. A segment is archived once the broker closes it: "
        "segment.ms and segment.bytes of the topic determine when.",
        # If all replicas are lost, at most a day of records is lost, as with a daily backup.
        {"recordSeconds": 86400},
    ),
    Alert(
        "SidetierTailBehind",
        # Without uploader.tail there is no series, and no alert.
        f"{names.UNSAFE_SECONDS.name} > ${{ageSeconds}}",
        "1m",
        "warning",
        f"Committed records of {_PARTITION} ({_WHERE}) have waited for a tail pack for too long",
        f"They have been on the brokers alone for {_AGE}. A loss of the cluster would lose them.",
        # Twelve of the recommended intervals of 5 s, and longer than a restart of the broker. With
        # the minute above, the alert fires after two minutes.
        {"ageSeconds": 60},
    ),
    Alert(
        "SidetierTailPackUnreadable",
        # Two cleanings, so that a pack that was deleted between two requests does not count.
        f"{names.TAIL_UNREAD_PACKS.name} > 0",
        "15m",
        "warning",
        f"{{{{ $value }}}} tail packs of {_WHERE} cannot be read",
        "If the cluster is lost now, records in these packs may be lost. Partitions whose leader "
        "has stored no pack since may have no tail for readers.",
    ),
    Alert(
        "SidetierTailRecordsLost",
        f"{names.TAIL_STALE_OFFSETS.name} > 0",
        "5m",
        "critical",
        f"The cluster has lost {{{{ $value }}}} committed offsets that tail packs of {_WHERE} have",
        "Only these packs have the records. An hour later they are in quarantine.",
    ),
    Alert(
        "SidetierPartitionHalted",
        f'{_STATE} or ({names.PARTITIONS.name}{{state="halted"}} > 0 '
        f"unless on (job, instance) {names.PARTITION_STATE.name})",
        "5m",
        "warning",
        "{{ if $labels.topic }}Partition "
        f"{_PARTITION}"
        "{{ else }}{{ $value }} partitions{{ end }} "
        f"({_WHERE}) halted until an operator acts",
        "last_error in /api/partitions has the reason.",
    ),
    Alert(
        "SidetierLogDirProblem",
        f"{names.LOG_DIR_PROBLEMS.name} > 0",
        "5m",
        "critical",
        f"{{{{ $value }}}} log dirs or partition directories of {_WHERE} are not archived",
        "A log dir cannot be read, or a partition directory is a symbolic link to another file "
        "system. `sidetier status` names them.",
    ),
    Alert(
        "SidetierLeadershipUnknown",
        f'{names.READY_CONDITION.name}{{condition="leadership_known"}} == 0',
        "5m",
        "critical",
        f"The sidecar of {_WHERE} does not know which partitions its broker leads",
        "Neither the broker nor ZooKeeper answers. Segments are held, and nothing is stored.",
    ),
    Alert(
        "SidetierStoreUnreachable",
        f'{names.READY_CONDITION.name}{{condition="store_reachable"}} == 0',
        "5m",
        "critical",
        f"The store does not answer the sidecar of {_WHERE}",
        "Segments are held open, within uploader.pins, and nothing is stored.",
    ),
    Alert(
        "SidetierStoreRefusing",
        f"sum by (job, instance, cluster, broker, operation, outcome) "
        f'(increase({names.REQUEST_SECONDS.name}_count{{outcome=~"{_REFUSALS}"}}[5m])) > 0',
        "10m",  # longer than the range, so that a single refusal does not fire
        "critical",
        f"The store refuses the sidecar of {_WHERE}: {{{{ $labels.outcome }}}}",
        "{{ $value | humanize }} requests ({{ $labels.operation }}) in five minutes. Retries do "
        "not help.",
    ),
    Alert(
        "SidetierConflicts",
        f"increase({names.CONFLICTS.name}[10m]) > 5",
        "15m",  # longer than the range, so that a change of leaders does not fire
        "warning",
        f"Another sidecar writes to the same archives as the one of {_WHERE}",
        "The store refused {{ $value | humanize }} conditional writes in ten minutes, because "
        "another writer was faster. Some are normal at a change of leadership.",
    ),
    Alert(
        "SidetierQuarantined",
        f"{names.UNRESOLVED_QUARANTINES.name} > 0",
        "0m",
        "critical",
        f"Archived records of {_PARTITION} ({_WHERE}) are in quarantine",
        "The cluster has lost records that were archived; only the copies in quarantine are left. "
        "The alert lasts until they are acknowledged or deleted.",
    ),
    Alert(
        "SidetierVerifyFindings",
        # Each run replaces the file that node exporter reads, so the alert lasts until a later run
        # has no such finding. The rule's label `severity` replaces the metric's.
        f'{verify_names.FINDINGS.name}{{severity="error"}} > 0',
        "0m",
        "critical",
        "sidetier verify finds {{ $labels.kind }} in the archive of cluster {{ $labels.cluster }}",
        "{{ $value }} findings: archived records cannot be read, or are not what the broker had. "
        "The output of the run names the objects.",
    ),
    Alert(
        "SidetierRescuing",
        f"increase({names.RESCUED.name}[1h]) > 0",
        "0m",
        "warning",
        f"The sidecar of {_WHERE} stores segments in place of another broker's sidecar",
        "{{ $value | humanize }} segments in an hour. The sidecar of their leader is down, "
        "disconnected, or far behind.",
    ),
    Alert(
        "SidetierHoldsDisk",
        f"{names.PINNED_DELETED.name} > 5 * 1024 ^ 3",
        "10m",
        "warning",
        f"The sidecar of {_WHERE} holds deleted segments on the broker's disk",
        f"{_BYTES}. At uploader.pins.max_deleted_bytes (10 GiB) it begins to release them.",
    ),
    Alert(
        "SidetierLocalRetentionStalled",
        # A pass that has trimmed another partition of the topic shows that it works: what is left
        # waits for the rate limit, or for the next pass.
        f"{names.TRIM_EXCESS.name} > 0 unless on (job, instance, topic) "
        f"increase({names.TRIMMED_BYTES.name}[1h]) > 0",
        "1h",
        "warning",
        f"Local retention does not free the disk of {_WHERE}",
        f"{_BYTES} of topic {{{{ $labels.topic }}}} are beyond retention.local, and nothing was "
        "deleted for an hour. Reason: {{ $labels.reason }}.",
    ),
    Alert(
        "SidetierClusterSnapshotOld",
        # Every sidecar reads the same index, so the lowest age is the cluster's.
        f"min by (job, cluster, kind) ({names.CLUSTER_SNAPSHOT_AGE.name}) > 3600",
        "15m",
        "warning",
        "The newest snapshot of {{ $labels.kind }} of cluster {{ $labels.cluster }} is old",
        f"The cluster's state was last stored {_AGE} ago. A restore of the whole cluster would "
        "use it. `sidetier status` shows the problem.",
    ),
    Alert(
        "SidetierDrillOld",
        # Without a recorded drill there is no series, and no alert. Every sidecar exports the
        # same value.
        f"time() - max by (job, cluster) ({names.LAST_SUCCESSFUL_DRILL.name}) > ${{ageSeconds}}",
        "1h",
        "warning",
        "No restore drill of cluster {{ $labels.cluster }} has succeeded for too long",
        f"The last success was {_AGE} ago, or there was none. `sidetier status` shows the last "
        "drill.",
        # A weekly drill may fail once before the alert fires; one day is spare.
        {"ageSeconds": 15 * 86400},
    ),
    Alert(
        "SidetierVerifyIncomplete",
        # Without --metrics-file there is no series, and no alert. Runs on different hosts, as of a
        # CronJob, have different instances, and the file of each stays: the newest complete run
        # counts.
        f"time() - {_NEWEST_VERIFIED} > ${{ageSeconds}} or max by (job, cluster) ("
        f"{verify_names.UNREAD.name} and on (job, instance, cluster) {verify_names.COMPLETED.name} "
        f"== on (job, cluster) group_left {_NEWEST_VERIFIED}) > 0",
        "1h",
        "warning",
        "The archive of cluster {{ $labels.cluster }} is not verified as a whole",
        "No run of sidetier verify has been completed for too long, or the last one could not read "
        "everything.",
        # Two runs of a night, as of the chart's CronJob.
        {"ageSeconds": 2 * 86400},
    ),
    Alert(
        "SidetierMirrorGap",
        # The second part is for a series that did not exist ten minutes ago: its first gap created
        # it, and `increase` does not see the first value.
        f"increase({_MIRROR_GAPS}[10m]) > 0 or ({_MIRROR_GAPS} unless {_MIRROR_GAPS} offset 10m) "
        "> 0",
        "0m",
        "critical",
        f"The mirror {_MIRROR} has skipped records",
        "Neither the brokers nor the archive have {{ $value | humanize }} source offsets. The log "
        "event mirror.gap has their range.",
    ),
    Alert(
        "SidetierMirrorBehind",
        f"{_MIRROR_LAG} > ${{lagSeconds}} and deriv({_MIRROR_LAG}[15m]) > 0",
        "15m",
        "warning",
        f"The mirror {_MIRROR} falls behind in {_PARTITION}",
        f"The newest copied record is {_AGE} old, records wait, and the age grows.",
        # Longer than an election, a restart of the mirror, or the restart of one broker takes.
        {"lagSeconds": 600},
    ),
    Alert(
        "SidetierMirrorAborts",
        f"increase({mirror_names.ABORTS.name}[15m]) > 5",
        "15m",
        "warning",
        f"Transactions of the mirror {_MIRROR} are aborted again and again",
        "{{ $value | humanize }} transactions in 15 minutes. Each is read and copied again. Some "
        "are normal at an election or a restart of a broker.",
    ),
    Alert(
        "SidetierMirrorRefused",
        f"{mirror_names.REFUSED_TOPICS.name} >= ${{topics}} "
        f"or {mirror_names.LEFT_OUT_PARTITIONS.name} > 0",
        "15m",
        "warning",
        f"The mirror {_MIRROR} leaves out topics or partitions that it should copy",
        "{{ $value }} of them. The log events mirror.topic_refused and mirror.partition_left_out "
        "have the reason for each.",
        # One refused topic is missing on the target. A higher threshold is for clusters in which
        # some topics are refused on purpose.
        {"topics": 1},
    ),
    Alert(
        "SidetierMirrorDown",
        # The second part matches by job, if the job has mirrors only: a new pod that has never
        # answered has an instance label without history. The third part covers a job of which no
        # target is discovered any more, for which there is no `up`.
        f"up == 0 and on (job, instance) {_MIRRORS} or (up == 0 and on (job) {_MIRRORS} "
        f"unless on (job) last_over_time({_BUILD}[1d])) "
        f"or count by (job) ({_MIRRORS}) unless on (job) up",
        "5m",
        "critical",
        f"The mirror {_MIRROR} does not answer",
        "Records that the source loses now are missing on the target. Other workers of the same "
        "name take over its partitions.",
    ),
    Alert(
        "SidetierServeDown",
        # The same parts as SidetierMirrorDown.
        f"up == 0 and on (job, instance) {_ENDPOINTS} or (up == 0 and on (job) {_ENDPOINTS} "
        f"unless on (job) last_over_time({_BUILD}[1d])) "
        f"or count by (job) ({_ENDPOINTS}) unless on (job) up",
        "5m",
        "critical",
        f"The Kafka endpoint {_ENDPOINT} does not answer",
        "Its clients read nothing, unless another endpoint has the same address. The archive is "
        "not affected.",
    ),
    Alert(
        "SidetierServeErrors",
        "sum by (job, instance, api, error) "
        f'(increase({endpoint_names.REQUESTS.name}{{error=~"{_FAILURES}"}}[5m])) > 0',
        "10m",  # longer than the range, so that a single error does not fire
        "critical",
        f"The Kafka endpoint {_ENDPOINT} answers with {{{{ $labels.error }}}}",
        "{{ $value | humanize }} answers to {{ $labels.api }} in five minutes. Clients repeat the "
        "request, and do not advance. The log names the partition.",
    ),
    Alert(
        "SidetierServeRefusing",
        f"increase({endpoint_names.REFUSED.name}[5m]) > 0",
        "10m",  # longer than the range, so that a single burst of clients does not fire
        "warning",
        f"The Kafka endpoint {_ENDPOINT} refuses clients",
        "{{ $value | humanize }} connections in five minutes were closed at once, because "
        "too many are open, of all clients or from one address.",
    ),
    Alert(
        "SidetierServeSlow",
        "histogram_quantile(0.99, sum by (job, instance, api, le) (rate("
        f'{endpoint_names.REQUEST_SECONDS.name}_bucket{{api=~"{_WITHOUT_WAITS}"}}[10m]))) '
        "> ${seconds}",
        "15m",
        "warning",
        f"The Kafka endpoint {_ENDPOINT} answers {{{{ $labels.api }}}} slowly",
        f"The 99th percentile is {_AGE}. Clients give up a request after request.timeout.ms (30 s "
        "in Java's consumer).",
        # A request to the store that has to be repeated takes some seconds.
        {"seconds": 5},
    ),
    Alert(
        "SidetierServeGap",
        f"increase({endpoint_names.LIVE_GAPS.name}[10m]) > 0",
        "0m",
        "critical",
        f"The Kafka endpoint {_ENDPOINT} was asked for records that neither broker nor archive has",
        "{{ $value | humanize }} Fetches in ten minutes. The log event "
        "endpoint.offset_on_neither_side names partition and offset.",
    ),
    Alert(
        "SidetierServeLiveAway",
        f"{endpoint_names.LIVE_UNAVAILABLE_BROKERS.name} > 0",
        "10m",  # a broker that restarts
        "warning",
        f"The Kafka endpoint {_ENDPOINT} cannot reach brokers",
        "{{ $value }} of them. Clients get the archived records of their partitions, and wait for "
        "the newer ones.",
    ),
    Alert(
        "SidetierNotReady",
        f"{names.READY.name} == 0",
        "15m",
        "warning",
        f"The sidecar of {_WHERE} is not ready",
        "/readyz shows the condition that does not hold.",
    ),
    Alert(
        "SidetierRestarting",
        f"changes({_START}[1h]) > 3 and {_IS_OURS}",
        "0m",
        "warning",
        f"The sidecar of {_WHERE} starts again and again",
        "{{ $value | humanize }} restarts in an hour. The last log line before each end has the "
        "reason.",
    ),
    Alert(
        "SidetierDown",
        # The second part matches by job: a new pod whose sidecar has never answered has an instance
        # label without history. ALERTS keeps the alert firing when the job's history is older than
        # a day. Cluster and broker are the labels that this instance had within the last day.
        f"(up == 0) + on (job, instance) group_left (cluster, broker) 0 * {_KNOWN} "
        f"or (up == 0 and on (job) (last_over_time({_BUILD}[1d]) "
        f'or ALERTS{{alertname="SidetierDown"}})) unless on (job, instance) {_KNOWN}',
        "5m",
        "critical",
        f"The sidecar {{{{ $labels.instance }}}} ({_WHERE}) does not answer",
        "No process holds the closed segments of its broker open. Followers store their copies "
        "when they near deletion.",
    ),
    Alert(
        "SidetierMissing",
        # For a target that is not discovered any more there is no `up`.
        f"{_MOST} > on (job) (count by (job) (up) or 0 * {_MOST})",
        "30m",
        "warning",
        "There are fewer sidecars of {{ $labels.job }} than within the last day",
        "There were {{ $value }}. Check for brokers that were created without a sidecar.",
    ),
)
"""The most urgent alerts come first."""


def rules() -> dict[str, Any]:
    """Return the content of a Prometheus rule file."""
    return {"groups": [{"name": "sidetier", "rules": [_rule(alert) for alert in ALERTS]}]}


def expressions() -> dict[str, str]:
    """Return the expressions with thresholds, as templates, by the alert's name."""
    return {alert.name: alert.template for alert in ALERTS if alert.thresholds}


def _rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.lasts,
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook_url": alert.runbook_url,
        },
    }

"""What to be woken for: alert rules for Prometheus, over the names of the catalogue only.

The chart has them as they are (`helm/sidetier/files/alerts.yaml`, written by `make docs`), with a
switch for each; each has a page in `docs/runbook/`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from string import Template
from typing import Any, Final, Literal

from sidetier.telemetry import catalogue as names
from sidetier.telemetry import mirror_catalogue as mirror_names

RUNBOOK: Final = "docs/runbook"

Severity = Literal["critical", "warning"]


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule.

    Attributes:
        template: the expression, with a threshold as `${name}`.
        lasts: how long the expression must hold.
        summary: may hold Prometheus' templates.
        thresholds: the defaults, which the values of the chart can replace.
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
        """The page that says what to do, relative to the repository."""
        return f"{RUNBOOK}/{self.name}.md"


_WHERE: Final = "cluster {{ $labels.cluster }}, broker {{ $labels.broker }}"
_PARTITION: Final = "{{ $labels.topic }}-{{ $labels.partition }}"
_AGE: Final = "{{ $value | humanizeDuration }}"
_BYTES: Final = "{{ $value | humanize1024 }}B"
_REFUSALS: Final = "access_denied|store_full|invalid_request|checksum_mismatch"
_START: Final = "process_start_time_seconds"
"""Of every process that Prometheus' clients export; the build info tells ours."""
_IS_OURS: Final = f"on (job, instance) last_over_time({names.BUILD_INFO.name}[1d])"
_GAPS: Final = names.GAP_RECORDS.name
_BUILD: Final = names.BUILD_INFO.name
_KNOWN: Final = f"max by (job, instance, cluster, broker) (last_over_time({_BUILD}[1d]))"
_STATE: Final = f'{names.PARTITION_STATE.name}{{state="halted"}}'
_OF_A_PARTITION: Final = '{topic!=""}'
"""Above `http.max_partition_series` some series lose their labels, and others are left out."""
_MIRROR_GAPS: Final = mirror_names.GAP_RECORDS.name
_MIRROR_LAG: Final = mirror_names.LAG_SECONDS.name
_MIRROR: Final = "{{ $labels.job }}, {{ $labels.instance }}"
_MIRRORS: Final = f"last_over_time({mirror_names.REFUSED_TOPICS.name}[1d])"
"""Every process of `sidetier mirror` exports it, from its start."""
_MOST: Final = f"max_over_time(count by (job) ({_BUILD})[1d:5m])"
"""How many sidecars of a job have answered at once within a day."""

ALERTS: Final[tuple[Alert, ...]] = (
    Alert(
        "SidetierGapFound",
        # A series that was not there ten minutes ago began with its gap: no increase shows it.
        # The store's records are read every 5 minutes, and last until they are acknowledged.
        f"{names.UNRESOLVED_GAPS.name} > 0 or increase({_GAPS}[10m]) > 0 "
        f"or ({_GAPS} unless {_GAPS} offset 10m) > 0",
        "0m",
        "critical",
        f"Records of {_PARTITION} ({_WHERE}) were deleted before they were archived",
        "{{ $value | humanize }} records are in no archive. The gap is recorded on the store, and "
        "the alert lasts until it is acknowledged.",
    ),
    Alert(
        "SidetierNearLocalDeletion",
        f"{names.UNTIL_DELETION.name} < 600",
        # A segment that is rolled because its records are too old is due at once, and soon stored.
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
        f"Closed {_AGE} ago. /api/partitions says what it waits for.",
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
        # An hour is longer than the first catch-up of most brokers. 8 days are a day more than
        # Kafka's default of segment.ms.
        {"closedSegmentSeconds": 3600, "recordSeconds": 8 * 86400},
    ),
    Alert(
        "SidetierArchiveBehind",
        f"{names.UNARCHIVED_AGE.name} > ${{recordSeconds}}",
        "15m",
        "warning",
        f"Records of {_PARTITION} ({_WHERE}) have been on the brokers alone for too long",
        f"The oldest was appended {_AGE} ago. A segment is archived once the broker closes it: "
        "segment.ms and segment.bytes of the topic say when.",
        # What a user may lose with all replicas: as much as with a daily backup.
        {"recordSeconds": 86400},
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
        "last_error in /api/partitions says why.",
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
        f"The sidecar of {_WHERE} does not know what its broker leads",
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
        "10m",  # longer than the range: one refusal alone is over by then
        "critical",
        f"The store refuses the sidecar of {_WHERE}: {{{{ $labels.outcome }}}}",
        "{{ $value | humanize }} requests ({{ $labels.operation }}) in five minutes. "
        "No retry helps.",
    ),
    Alert(
        "SidetierConflicts",
        f"increase({names.CONFLICTS.name}[10m]) > 5",
        "15m",  # longer than the range: leaders that move are over by then
        "warning",
        f"Another sidecar writes where the one of {_WHERE} does",
        "{{ $value | humanize }} conditional writes were overtaken in ten minutes, and it goes on. "
        "At a change of leadership some are normal.",
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
        "SidetierRescuing",
        f"increase({names.RESCUED.name}[1h]) > 0",
        "0m",
        "warning",
        f"The sidecar of {_WHERE} stores what another broker's sidecar does not",
        "{{ $value | humanize }} segments in an hour. The sidecar of their leader is dead, cut "
        "off, or far behind.",
    ),
    Alert(
        "SidetierHoldsDisk",
        f"{names.PINNED_DELETED.name} > 5 * 1024 ^ 3",
        "10m",
        "warning",
        f"The sidecar of {_WHERE} holds deleted segments on the broker's disk",
        f"{_BYTES}. At uploader.pins.max_deleted_bytes (10 GiB) it begins to let go.",
    ),
    Alert(
        "SidetierClusterSnapshotOld",
        # Every sidecar reads the same index: the youngest age is the one of the cluster.
        f"min by (job, cluster, kind) ({names.CLUSTER_SNAPSHOT_AGE.name}) > 3600",
        "15m",
        "warning",
        "The newest snapshot of {{ $labels.kind }} of cluster {{ $labels.cluster }} is old",
        f"The cluster's state was last stored {_AGE} ago. A restore of the whole cluster would "
        "use it. `sidetier status` says what is wrong.",
    ),
    Alert(
        "SidetierDrillOld",
        # Without a recorded drill there is no series, and no alert. Every sidecar exports the same.
        f"time() - max by (job, cluster) ({names.LAST_SUCCESSFUL_DRILL.name}) > ${{ageSeconds}}",
        "1h",
        "warning",
        "No restore drill of cluster {{ $labels.cluster }} has succeeded for too long",
        f"The last success was {_AGE} ago, or there was none. `sidetier status` shows the last "
        "drill.",
        # Two weekly drills, and a day.
        {"ageSeconds": 15 * 86400},
    ),
    Alert(
        "SidetierMirrorGap",
        # A series that was not there ten minutes ago began with its gap: no increase shows it.
        f"increase({_MIRROR_GAPS}[10m]) > 0 or ({_MIRROR_GAPS} unless {_MIRROR_GAPS} offset 10m) "
        "> 0",
        "0m",
        "critical",
        f"The mirror {_MIRROR} has skipped records",
        "{{ $value | humanize }} source offsets are on neither the brokers nor the archive. The "
        "log event mirror.gap names them.",
    ),
    Alert(
        "SidetierMirrorBehind",
        f"{_MIRROR_LAG} > ${{lagSeconds}} and deriv({_MIRROR_LAG}[15m]) > 0",
        "15m",
        "warning",
        f"The mirror {_MIRROR} falls behind in {_PARTITION}",
        f"The newest copied record is {_AGE} old, records wait, and the age grows.",
        # Longer than an election, a restart of the mirror, or a rolling restart of a broker.
        {"lagSeconds": 600},
    ),
    Alert(
        "SidetierMirrorAborts",
        f"increase({mirror_names.ABORTS.name}[15m]) > 5",
        "15m",
        "warning",
        f"Transactions of the mirror {_MIRROR} are aborted again and again",
        "{{ $value | humanize }} in 15 minutes. Each is read and copied again. At an election or "
        "a restart of a broker some are normal.",
    ),
    Alert(
        "SidetierMirrorRefused",
        f"{mirror_names.REFUSED_TOPICS.name} >= ${{topics}}",
        "15m",
        "warning",
        f"The mirror {_MIRROR} leaves out topics that it should copy",
        "{{ $value }} topics. The log event mirror.topic_refused has the reason for each.",
        # Each of them is missing on the target. More only where some are refused on purpose.
        {"topics": 1},
    ),
    Alert(
        "SidetierMirrorDown",
        # By job alone, where all of it are mirrors: a pod that was made anew, and never answers,
        # has an address that nobody has seen. One that is not discovered any more is not even down.
        f"up == 0 and on (job, instance) {_MIRRORS} or (up == 0 and on (job) {_MIRRORS} "
        f"unless on (job) last_over_time({_BUILD}[1d])) "
        f"or count by (job) ({_MIRRORS}) unless on (job) up",
        "5m",
        "critical",
        f"The mirror {_MIRROR} does not answer",
        "What the source loses now is missing on the target. Other workers of the same name take "
        "its partitions over.",
    ),
    Alert(
        "SidetierNotReady",
        f"{names.READY.name} == 0",
        "15m",
        "warning",
        f"The sidecar of {_WHERE} is not ready",
        "/readyz says which condition does not hold.",
    ),
    Alert(
        "SidetierRestarting",
        f"changes({_START}[1h]) > 3 and {_IS_OURS}",
        "0m",
        "warning",
        f"The sidecar of {_WHERE} starts again and again",
        "{{ $value | humanize }} times in an hour. Its last line before the end says why.",
    ),
    Alert(
        "SidetierDown",
        # By job alone: a pod that was made anew, with a sidecar that never answers, has an address
        # that nobody has seen. And as long as it fires it stays, whatever is remembered of the job.
        # Cluster and broker are those that this address has told within a day.
        f"(up == 0) + on (job, instance) group_left (cluster, broker) 0 * {_KNOWN} "
        f"or (up == 0 and on (job) (last_over_time({_BUILD}[1d]) "
        f'or ALERTS{{alertname="SidetierDown"}})) unless on (job, instance) {_KNOWN}',
        "5m",
        "critical",
        f"The sidecar {{{{ $labels.instance }}}} ({_WHERE}) does not answer",
        "Nobody holds the closed segments of its broker. Followers store them when they near "
        "deletion.",
    ),
    Alert(
        "SidetierMissing",
        # What is not discovered any more is not even down.
        f"{_MOST} > on (job) (count by (job) (up) or 0 * {_MOST})",
        "30m",
        "warning",
        "There are fewer sidecars of {{ $labels.job }} than within the last day",
        "There were {{ $value }}. Have brokers been made anew without theirs?",
    ),
)
"""The most urgent first."""


def rules() -> dict[str, Any]:
    """A rule file of Prometheus."""
    return {"groups": [{"name": "sidetier", "rules": [_rule(alert) for alert in ALERTS]}]}


def expressions() -> dict[str, str]:
    """The expressions with thresholds, each as `${name}`, by the alert's name."""
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
            "runbook_url": alert.runbook,
        },
    }

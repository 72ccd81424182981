"""`sidetier status`: show the partitions of the running sidecar."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from sidetier.cli import exits, kernel
from sidetier.cli.arguments import age_text, most_lines, sidecar_url, size_text, topic_name
from sidetier.cli.inspect.sidecar import (
    SidecarState,
    ask_sidecar,
    bearer_token_of,
    url_of,
    with_conditions,
)
from sidetier.cli.options import CommandOptions, option, options
from sidetier.cli.output import Columns, Table, table_of
from sidetier.config.problems import suggestion
from sidetier.config.times import time_text
from sidetier.segments.errors import ConfigurationError
from sidetier.telemetry.partition_page import ShownState, key_of
from sidetier.telemetry.status import (
    ClusterSnapshotStatus,
    DrillStatus,
    LocalRetentionStatus,
    PartitionStatus,
    SegmentStatus,
)
from sidetier.telemetry.status_json import partition_row, status_json

if TYPE_CHECKING:
    from sidetier.config.model import HttpConfig


MAX_ROWS: Final = 40
"""Up to this number of partitions, all are shown; beyond it, only those with closed segments to
archive, or with a problem.
"""

_SEGMENT: Final = re.compile("^segment [0-9]+ ")


@dataclass(frozen=True, slots=True)
class Row:
    """One partition of `/api/partitions`."""

    status: PartitionStatus

    @property
    def state(self) -> ShownState:
        """Most severe state that applies, as on the status page."""
        return key_of(self.status).state

    @property
    def is_problem(self) -> bool:
        """Whether an operator must act."""
        return self.state.is_problem

    @property
    def group(self) -> str:
        """Group of the summary, one of `_GROUPS`."""
        if self.is_problem:
            return _PROBLEMS[self.state]
        return _BEHIND if self.status.unstored_segments else _FINE

    @property
    def order(self) -> tuple[int, float, str, int]:
        """Sort key: most severe first, then the longest wait."""
        age = self.status.oldest_unstored_age_seconds or 0.0
        return _GROUPS.index(self.group), -age, self.status.topic, self.status.partition

    def problem(self) -> str:
        """Return the full description of the problem, in one line."""
        status = self.status
        gap, waiting, error = self._gap_records, status.waiting_for, status.last_error
        quarantines = status.unresolved_quarantines
        until = status.seconds_until_local_deletion
        near = self.state is ShownState.NEAR_DELETION
        parts = [
            f"the broker deletes unarchived records in {age_text(until)}" if near else None,
            f"{gap} records were deleted before they were archived" if gap else None,
            f"{quarantines} quarantines are not acknowledged" if quarantines else None,
            waiting,
        ]
        if error is not None and error not in (waiting or ""):
            parts.append(f"last error: {error}")
        return f"{status.topic_partition}: {'; '.join(filter(None, parts))}"

    @property
    def _gap_records(self) -> int:
        """Gap records that no operator has acknowledged; all until the sidecar knows which."""
        unresolved = self.status.unresolved_gap_records
        since_start = self.status.gap_records
        return since_start if unresolved is None else unresolved

    def waits(self) -> str | None:
        """Return the reason without the segment: ARCHIVED UP TO has its base offset already.

        Of a segment that is being sent, also return how much of it is sent.
        """
        waiting = self.status.waiting_for
        if waiting is None:
            return None
        sent = next(map(_sent, self.status.segments), None)
        return ": ".join(filter(None, (_SEGMENT.sub("", waiting), sent)))

    def unarchived(self) -> str | None:
        """Return the amount that only the brokers have, in closed segments and in the active
        one.
        """
        records = self.status.unarchived_records
        if not records:
            return None if records is None else "0"
        size = size_text(self.status.unarchived_bytes)
        return f"{records:,} rec, {size}, {age_text(self.status.unarchived_age_seconds)}"

    def safe_to(self) -> str | None:
        """Return the end of archive and tail, and for how long records have waited for a pack."""
        end, waiting = self.status.safe_to, self.status.unsafe_age_seconds
        if end is None and waiting is None:
            return None
        return ", ".join([str(end or 0), *([f"waiting {age_text(waiting)}"] if waiting else [])])

    def behind(self) -> str | None:
        """Return the closed segments that are not archived, their size and their age."""
        segments = self.status.unstored_segments
        if not segments:
            return None
        age = age_text(self.status.oldest_unstored_age_seconds)
        return f"{segments} seg, {size_text(self.status.unstored_bytes)}, {age}"


_COLUMNS: Final[Columns[Row]] = {
    "PARTITION": lambda row: str(row.status.topic_partition),
    "STATE": lambda row: row.state if row.is_problem else row.status.state,
    "LOG END": lambda row: row.status.log_end,
    "ARCHIVED UP TO": lambda row: row.status.next_offset,
    "SAFE UP TO": lambda row: row.safe_to(),
    "NOT ARCHIVED": lambda row: row.unarchived(),
    "CLOSED SEGMENTS": lambda row: row.behind(),
    "WAITING FOR": lambda row: "see below" if row.is_problem else row.waits(),
}


@dataclass(frozen=True, slots=True)
class StatusResult:
    """A sidecar's partitions, the most severe first, with a summary."""

    sidecar: SidecarState
    show_all: bool = False

    @property
    def rows(self) -> list[Row]:
        """Partitions, the most severe first."""
        rows = map(Row, self.sidecar.status.partitions)
        return sorted(rows, key=lambda row: row.order)

    @property
    def problems(self) -> int:
        """Number of partitions with problems, and of log dirs and links that are not read."""
        return sum(row.is_problem for row in self.rows) + len(self.log_dir_problems)

    @property
    def log_dir_problems(self) -> list[str]:
        """Unreadable log dirs and links that are not followed; empty for an older sidecar."""
        return list(self.sidecar.status.log_dir_problems)

    @property
    def exit_code(self) -> int:
        """FINDINGS for a problem, or if the sidecar is not ready."""
        return exits.OK if self.sidecar.ready and not self.problems else exits.FINDINGS

    def as_json(self) -> object:
        """Return the sidecar's own fields, the most severe partition first."""
        return {
            **status_json(self.sidecar.status),
            "ready": self.sidecar.ready,
            "url": self.sidecar.url,
            "conditions": [asdict(one) for one in self.sidecar.status.conditions],
            "problems": self.problems,
            "partitions": [partition_row(row.status) for row in self.rows],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return one table, with a summary as its footer."""
        rows = self.rows
        visible = rows
        if not self.show_all and len(rows) > MAX_ROWS:
            visible = [row for row in rows if row.group != _FINE]
        hidden = len(rows) - len(visible)
        lines = (
            [f"{hidden} more partitions have no unarchived closed segment (--all shows them)"]
            if hidden
            else []
        )
        lines += most_lines([row.problem() for row in rows if row.is_problem])
        footer = "\n".join([*lines, *self._summary(rows)])
        # Without tail packs, no partition has a value of SAFE UP TO.
        return (table_of(visible, _COLUMNS, footer, optional=("SAFE UP TO",)),)

    def _summary(self, rows: Sequence[Row]) -> list[str]:
        counts = Counter(row.group for row in rows)
        parts = [f"{counts[group]} {group}" for group in _GROUPS if counts[group]]
        answer = self.sidecar.status
        line = f"broker {answer.broker_id} of {answer.cluster} leads "
        line += (
            f"{len(rows)} partitions: {', '.join(parts)}{_lag(rows)}"
            if rows
            else "no partition that `topics` selects"
        )
        alone = _on_the_broker_alone(rows)
        held_errors = [
            f"unexpected error, {error.failures} times: {error.subject}: {error.error}"
            for error in answer.held_errors
        ]
        ready = [] if self.sidecar.ready else [f"not ready: {self.sidecar.unmet_conditions}"]
        return [
            *most_lines(held_errors),
            *most_lines(self.log_dir_problems),
            *most_lines(list(answer.warnings)),
            line,
            *alone,
            *_of_cluster_snapshots(answer.cluster_snapshots),
            *_of_last_drill(answer.last_drill),
            *_of_local_retention(answer.local_retention),
            *_of_trims(rows),
            *ready,
        ]


_BEHIND: Final = "behind"
_FINE: Final = "with all closed segments archived"
_PROBLEMS: Final[Mapping[ShownState, str]] = {
    ShownState.HALTED: "halted",
    ShownState.NEAR_DELETION: "near the broker's deletion",
    ShownState.HELD: "held by errors",
    ShownState.QUARANTINING: "being moved to quarantine",
    ShownState.GAP: "with a gap",
}
_GROUPS: Final = (*_PROBLEMS.values(), _BEHIND, _FINE)
"""Groups of partitions in the summary, the most severe first."""


def _sent(segment: SegmentStatus) -> str | None:
    """Return the progress of a segment's upload; None without one, and while it is verified."""
    sent, rate = segment.sent_bytes, segment.send_bytes_per_second
    if sent is None or rate is None:
        return None
    left = age_text(segment.send_seconds_left)
    size = size_text(segment.size_bytes)
    return f"{size_text(sent)} of {size}, {size_text(rate)}/s, {left} left"


def _on_the_broker_alone(rows: Sequence[Row]) -> list[str]:
    behind = [row.status for row in rows if row.status.unarchived_records]
    if not behind:
        return []
    records = sum(status.unarchived_records or 0 for status in behind)
    size = size_text(sum(status.unarchived_bytes or 0 for status in behind))
    ages = [status.unarchived_age_seconds or 0.0 for status in behind]
    return [
        (
            f"not archived: {records:,} records ({size} of segments) are only on the brokers, "
            f"the oldest for {age_text(max(ages))}"
        )
    ]


def _of_cluster_snapshots(snapshots: Sequence[ClusterSnapshotStatus]) -> list[str]:
    """Return the ages of the newest snapshots, and the problems with any of them."""
    if not snapshots:
        return []
    stored = [snapshot for snapshot in snapshots if snapshot.stored]
    ages = [f"{snapshot.kind} {age_text(snapshot.age_seconds)}" for snapshot in stored]
    ages += [f"{one.kind} pending" for one in snapshots if stored and not one.stored]
    wrong = [
        f"cluster snapshot of {snapshot.kind}: {snapshot.problem}"
        for snapshot in snapshots
        if snapshot.problem is not None
    ]
    first = f"cluster snapshots, by age: {', '.join(ages)}"
    return [first if stored else "cluster snapshots: the first one is pending", *wrong]


def _of_local_retention(excess: Sequence[LocalRetentionStatus]) -> list[str]:
    """Return what stays beyond local retention, and why; nothing if it is all gone."""
    return most_lines(
        [
            f"beyond local retention: {size_text(row.size_bytes)} of {row.topic} "
            f"({row.reason}); `sidetier trim --dry-run` shows the partitions"
            for row in excess
        ]
    )


def _of_trims(rows: Sequence[Row]) -> list[str]:
    """Return how many partitions have segments below their log start; nothing if none has."""
    count = sum(row.status.trimmed_to is not None for row in rows)
    if not count:
        return []
    line = (
        f"local retention: the closed segments below the log start offsets of {count} partitions "
        "are deleted by the broker at its next check (log.retention.check.interval.ms)"
    )
    return [line]


def _of_last_drill(drill: DrillStatus | None) -> list[str]:
    """Return the time and outcome of the last restore drill; nothing without one."""
    if drill is None:
        return []
    finished = time_text(drill.finished_ms, "minutes")
    if drill.succeeded:
        return [f"last drill: succeeded at {finished}"]
    success = drill.last_successful_ms
    before = "none has succeeded yet"
    if success is not None:
        before = f"last success {time_text(success, 'minutes')}"
    return [f"last drill: FAILED at {finished}: {drill.problem}; {before}"]


def _lag(rows: Sequence[Row]) -> str:
    segments = sum(row.status.unstored_segments for row in rows)
    if not segments:
        return ""
    size = size_text(sum(row.status.unstored_bytes for row in rows))
    ages = [row.status.oldest_unstored_age_seconds or 0.0 for row in rows]
    return f"; {segments} segments, {size} to upload, the oldest since {age_text(max(ages))}"


@options
class StatusOptions(CommandOptions):
    """Options of `sidetier status`."""

    sidecar: str | None = sidecar_url("--url")
    topic: str | None = option(
        "-t", "--topic", parse=topic_name, help="Show only this topic's partitions."
    )
    show_all: bool = option("--all", help="Show every partition.")


@kernel.command("status")
def command(options: StatusOptions) -> StatusResult:
    """Show what is on the broker, what is archived, and what is missing.

    LOG END is the high watermark, and ARCHIVED UP TO the end of the archive; both offsets are
    exclusive. NOT ARCHIVED has the records between the two, the bytes of their segments, and the
    time since the oldest was appended. CLOSED SEGMENTS has the segments among them that the sidecar
    can upload now, and the time since the oldest was closed. The broker closes a segment when
    segment.bytes or segment.ms is reached.

    The command asks the running sidecar. Partitions that need an operator come first: halted
    partitions, partitions that wait after an error, partitions whose archive is being moved to
    quarantine, and partitions with a gap.

    \b
    Example:
      sidetier status --sidecar http://127.0.0.1:9108

    Exit codes: 0 no problem; 1 no sidecar answers; 2 the sidecar's broker leads no partition of the
    named topic; 3 a partition is halted, held, being moved to quarantine or has a gap, or the
    sidecar is not ready.
    """  # noqa: D301 -- \b is click's marker and must be one character
    # Without a configuration, with `--sidecar`, pydantic is not needed.
    http = options.call.load().config.http if options.call.is_configured() else None
    address = options.sidecar or url_of(http or _default_http())
    token = bearer_token_of(http) if http is not None else None
    return ask(address, options.topic, show_all=options.show_all, bearer_token=token)


def ask(
    url: str,
    topic: str | None = None,
    *,
    show_all: bool = False,
    bearer_token: str | None = None,
) -> StatusResult:
    """Return the status of the sidecar at this address.

    Raises:
        NoSidecarError: No server answers at the address, or the server is not a sidecar.
        ConfigurationError: The sidecar's broker leads no partition of the topic.
    """
    sidecar = ask_sidecar(url, topic, bearer_token=bearer_token)
    if topic is not None and not sidecar.status.partitions:
        rows = ask_sidecar(url, bearer_token=bearer_token).status.partitions
        raise ConfigurationError(
            f"the sidecar at {url} has no partition of topic {topic}: its broker "
            f"({sidecar.status.broker_id}) leads none"
            f"{suggestion(topic, {row.topic for row in rows})}"
        )
    return StatusResult(with_conditions(sidecar, bearer_token), show_all)


def _default_http() -> "HttpConfig":
    from sidetier.config.model import HttpConfig  # noqa: PLC0415 -- with `--sidecar`, pydantic is not needed

    return HttpConfig()

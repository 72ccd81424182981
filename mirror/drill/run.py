"""Restore a sample of the archive on a temporary broker, and compare it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from sidetier.archive.access import ArchiveAccess
from sidetier.leadership.cluster import admin_client
from sidetier.mirror.drill.sample import (
    RecordSource,
    compare_with_live,
    differences_from_archive,
    plan_of_sample,
)
from sidetier.mirror.hydrate import finish, log_dir, place, topics
from sidetier.mirror.hydrate.plan import HydratePlan, PlannedPartition, with_prepared
from sidetier.mirror.hydrate.verify import ArchiveSide, BrokerSide
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition


@dataclass(frozen=True, slots=True)
class DrilledPartition:
    """Result of one partition of the sample.

    Attributes:
        plan: The sampled segments.
        records: Number of archived records in them.
        live: Result of the comparison with the live brokers, as text.
        problems: What differs, or why it could not be restored; one line each.
    """

    plan: PlannedPartition
    records: int = 0
    live: str = "not compared"
    problems: tuple[str, ...] = ()


class LiveLog(Protocol):
    """The cluster that is archived. Methods raise LeadershipUnavailableError."""

    @property
    def records(self) -> RecordSource:
        """Consumes its records."""
        ...

    def reason_to_skip(self, tp: TopicPartition) -> str | None:
        """Return why the records cannot be compared; None if they can."""
        ...

    def log_start(self, tp: TopicPartition) -> int:
        """Return the start offset of the live log."""
        ...


class DrillBroker(Protocol):
    """A temporary broker without data, as a context manager. It ends with the block."""

    @property
    def log_dirs(self) -> Sequence[Path]:
        """Its log dirs."""
        ...

    @property
    def bootstrap_servers(self) -> str:
        """Its address."""
        ...

    def start(self) -> None:
        """Start it again. Raises LocalServerError."""
        ...

    def stop(self) -> None:
        """Stop it, and keep its files."""
        ...


def drill_on_temporary_broker(
    archive: ArchiveAccess,
    sample: Sequence[PlannedPartition],
    temporary: AbstractContextManager[DrillBroker],
    live: LiveLog | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> list[DrilledPartition]:
    """Restore the sample on a temporary broker, and compare it. The broker ends with this call.

    Args:
        archive: The archive to read.
        sample: The partitions to restore.
        temporary: The broker, which is started on entry; only its files are written.
        live: The live brokers; None to compare nothing with them.
        on_step: Called with a message at each step.

    Returns:
        One result for each partition, in the order of the sample.

    Raises:
        LocalServerError: The temporary broker cannot be started.
        SidetierError: The archive or the brokers cannot be read.
    """
    plan = plan_of_sample(archive.layout.cluster, sample)
    on_step("starting a temporary broker")
    with temporary as broker:
        plan = _prepared(plan, broker)
        # Segments can be placed only while the broker is stopped. It has created the directories.
        broker.stop()
        on_step(f"placing {len(sample)} partitions")
        problems = _place(plan, archive, broker.log_dirs)
        restored = [
            partition for partition in plan.partitions if partition.topic_partition not in problems
        ]
        drilled = {}
        if restored:
            broker.start()
            _make_readable(replace(plan, partitions=tuple(restored)), broker)
            on_step("comparing")
            consumers = BrokerSide({"bootstrap.servers": broker.bootstrap_servers})
            with closing(ArchiveSide(archive)) as ours:
                drilled = {
                    partition.topic_partition: _compared(partition, ours, consumers, live)
                    for partition in restored
                }
    return [
        drilled.get(partition.topic_partition)
        or DrilledPartition(partition, problems=(problems[partition.topic_partition],))
        for partition in sample
    ]


def _admin(broker: DrillBroker) -> topics.TopicAdmin:
    return topics.TopicAdmin(admin_client(broker.bootstrap_servers, {}))


def _prepared(plan: HydratePlan, broker: DrillBroker) -> HydratePlan:
    cluster_id, prepared = topics.prepare(plan, _admin(broker))
    return with_prepared(plan, cluster_id, prepared)


def _place(
    plan: HydratePlan, archive: ArchiveAccess, log_dirs: Sequence[Path]
) -> dict[TopicPartition, str]:
    """Place every partition; return the problems of those that could not be placed."""
    with log_dir.locked_log_dirs(log_dirs) as locked:
        journals = {entry.path: place.Journal(entry.path, plan.plan_id) for entry in locked}
        destinations = log_dir.destinations(plan, locked, {})
        placed = place.place(plan, archive, destinations, journals, place.PlaceSettings())
    return {
        entry.topic_partition: f"{entry.topic_partition}: cannot be restored: {entry.problem}"
        for entry in placed
        if entry.problem is not None
    }


def _make_readable(plan: HydratePlan, broker: DrillBroker) -> None:
    """Check where the partitions start and end, and abort their open transactions.

    Otherwise read-committed consumers get nothing behind the first open transaction.
    """
    admin = _admin(broker)
    admin.wait_until_led({name: topic.partitions for name, topic in plan.topics.items()})
    finish.check_placed(
        plan, admin.log_ranges(partition.topic_partition for partition in plan.partitions)
    )
    with finish.connected({"bootstrap.servers": broker.bootstrap_servers}) as cluster:
        open_transactions = finish.archived_open_transactions(cluster, plan.partitions)
        finish.abort_transactions(cluster, open_transactions)


def _compared(
    plan: PlannedPartition, archive: ArchiveSide, restored: BrokerSide, live: LiveLog | None
) -> DrilledPartition:
    expected = archive.expected(plan)
    records = expected[IsolationLevel.READ_UNCOMMITTED].records
    problems = differences_from_archive(plan, expected, restored)
    live_problems, live_text = compared_with_live(plan, restored, live, "the restored broker")
    return DrilledPartition(plan, records, live_text, (*problems, *live_problems))


def compared_with_live(
    plan: PlannedPartition, restored: RecordSource, live: LiveLog | None, name: str
) -> tuple[Sequence[str], str]:
    """Return the differences from the live brokers, and a text that names the compared offsets.

    Args:
        plan: The restored partition.
        restored: The records to compare with the live brokers.
        live: The live brokers; None to compare nothing.
        name: What the differences call `restored`.

    Raises:
        LeadershipUnavailableError: The brokers do not answer.
    """
    if live is None:
        return (), "not compared"
    reason = live.reason_to_skip(plan.topic_partition)
    if reason is not None:
        return (), reason
    comparison = compare_with_live(plan, restored, live.records, live.log_start, name)
    if comparison.start is None:
        return comparison.problems, "deleted there"
    compared = OffsetRange(Offset(comparison.start), Offset(plan.end))
    return comparison.problems, f"{compared} {'differ' if comparison.problems else 'equal'}"

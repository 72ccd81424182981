"""Restore a sample of the archive on a throw-away broker, and compare it."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sidetier.archive.access import ArchiveAccess
from sidetier.cli.cluster_facts import Cluster
from sidetier.leadership.admin import admin_client
from sidetier.mirror.drill.compare import (
    RecordSource,
    compare_with_live,
    differences_from_archive,
)
from sidetier.mirror.drill.sample import plan_of_sample
from sidetier.mirror.hydrate import finish, log_dir, place, topics
from sidetier.mirror.hydrate.plan import HydratePlan, PlannedPartition, with_prepared
from sidetier.mirror.hydrate.verify import ArchiveSide, BrokerSide
from sidetier.sandbox.kafka import KafkaCluster, KraftCluster
from sidetier.segments.errors import LeadershipUnavailableError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import TopicPartition

_BROKER: Final = 1


@dataclass(frozen=True, slots=True)
class DrilledPartition:
    """What became of one partition of the sample.

    Attributes:
        plan: The sampled segments.
        records: Records that the archive holds of them.
        live: What was compared with the live brokers, in words.
        problems: What differs, or why it could not be restored; a line each.
    """

    plan: PlannedPartition
    records: int = 0
    live: str = "not compared"
    problems: tuple[str, ...] = ()


class LiveBrokers:
    """The cluster that is archived.

    Args:
        cluster: Tells which topics there are, their settings, and where logs start.
        records: Consumes them.
        sampled: The topics of the sample.

    Raises:
        LeadershipUnavailableError: no broker answers.
    """

    def __init__(self, cluster: Cluster, records: RecordSource, sampled: Sequence[str]) -> None:
        self.records = records
        self._cluster = cluster
        self._partitions = set(cluster.map().partitions)
        there = {tp.topic for tp in self._partitions}
        self._settings = cluster.topic_settings([name for name in sampled if name in there])

    def reason_to_skip(self, tp: TopicPartition) -> str | None:
        """Why the records cannot be compared; None where they can."""
        if tp not in self._partitions:
            return "not on the live brokers"
        policy = self._settings.get(tp.topic, {}).get("cleanup.policy") or ""
        return "compacted since" if "compact" in policy.split(",") else None

    def log_start(self, tp: TopicPartition) -> int:
        """Where the live log starts.

        Raises:
            LeadershipUnavailableError: the partition's leader does not answer.
        """
        bounds = self._cluster.bounds([tp])[tp]
        if bounds.start is None:
            raise LeadershipUnavailableError(f"{tp}: no log start offset: {bounds.problem}")
        return int(bounds.start)


def run_drill(
    archive: ArchiveAccess,
    sample: Sequence[PlannedPartition],
    directory: Path,
    live: LiveBrokers | None,
    say: Callable[[str], None],
) -> list[DrilledPartition]:
    """Restore the sample and compare it. The broker ends with this call.

    Nothing is written but files below `directory`; a kill leaves those, and the broker ends with
    its parent.

    Args:
        archive: The archive.
        sample: What to restore.
        directory: Empty; gets the broker's files.
        live: The live brokers; None where nothing is compared with them.
        say: Told of each step.

    Returns:
        One entry for each partition, in the order of the sample.

    Raises:
        SandboxError: the throw-away broker cannot be started.
        SidetierError: the archive or the brokers cannot be read.
    """
    plan = plan_of_sample(archive.layout.cluster, sample)
    say("starting a throw-away broker")
    with KraftCluster(directory / "kafka") as broker:
        plan = _prepared(plan, broker)
        broker.stop_broker(_BROKER)
        say(f"placing {len(sample)} partitions")
        problems = _place(plan, archive, broker.log_dirs(_BROKER))
        restored = [one for one in plan.partitions if one.topic_partition not in problems]
        drilled = {}
        if restored:
            broker.start_broker(_BROKER)
            _make_readable(replace(plan, partitions=tuple(restored)), broker)
            say("comparing")
            consumers = BrokerSide({"bootstrap.servers": broker.bootstrap_servers})
            with closing(ArchiveSide(archive)) as ours:
                drilled = {
                    one.topic_partition: _compared(one, ours, consumers, live) for one in restored
                }
    return [
        drilled.get(one.topic_partition)
        or DrilledPartition(one, problems=(problems[one.topic_partition],))
        for one in sample
    ]


def _admin(broker: KafkaCluster) -> topics.TopicAdmin:
    return topics.TopicAdmin(admin_client(broker.bootstrap_servers, {}, {"log_level": 0}))


def _prepared(plan: HydratePlan, broker: KafkaCluster) -> HydratePlan:
    cluster_id, prepared = topics.prepare(plan, _admin(broker))
    return with_prepared(plan, cluster_id, prepared)


def _place(
    plan: HydratePlan, archive: ArchiveAccess, log_dirs: Sequence[Path]
) -> dict[TopicPartition, str]:
    """Place every partition; why one could not be placed, by partition."""
    with log_dir.locked_log_dirs(log_dirs) as locked:
        journals = {one.path: place.Journal(one.path, plan.plan_id) for one in locked}
        wanted = log_dir.destinations(plan, locked, {})
        placed = place.place(plan, archive, wanted, journals, place.PlaceSettings())
    return {
        one.topic_partition: f"{one.topic_partition}: cannot be restored: {one.problem}"
        for one in placed
        if one.problem is not None
    }


def _make_readable(plan: HydratePlan, broker: KafkaCluster) -> None:
    """Check where the partitions start and end, and abort their open transactions: otherwise
    read-committed consumers get nothing behind the first of them.
    """
    admin = _admin(broker)
    admin.wait_until_led({name: topic.partitions for name, topic in plan.topics.items()})
    finish.check_placed(plan, admin.ends(one.topic_partition for one in plan.partitions))
    with finish.connected({"bootstrap.servers": broker.bootstrap_servers}) as cluster:
        found = finish.archived_open_transactions(cluster, plan.partitions)
        finish.abort_transactions(cluster, found)


def _compared(
    plan: PlannedPartition, archive: ArchiveSide, restored: BrokerSide, live: LiveBrokers | None
) -> DrilledPartition:
    expected = archive.expected(plan).digests
    records = expected[IsolationLevel.READ_UNCOMMITTED].records
    problems = differences_from_archive(plan, expected, restored)
    found, told = compared_with_live(plan, restored, live, "the restored broker")
    return DrilledPartition(plan, records, told, (*problems, *found))


def compared_with_live(
    plan: PlannedPartition, restored: RecordSource, live: LiveBrokers | None, name: str
) -> tuple[Sequence[str], str]:
    """The differences from the live brokers, and in words what was compared.

    Args:
        plan: What was restored.
        restored: What is compared with the live brokers, called `name` in differences.
        live: The live brokers; None where nothing is compared with them.
        name: See `restored`.

    Raises:
        LeadershipUnavailableError: the brokers do not answer.
    """
    if live is None:
        return (), "not compared"
    reason = live.reason_to_skip(plan.topic_partition)
    if reason is not None:
        return (), reason
    found = compare_with_live(plan, restored, live.records, live.log_start, name)
    if found.start is None:
        return found.problems, "deleted there"
    return found.problems, f"{found.start}-{plan.end} {'differ' if found.problems else 'equal'}"

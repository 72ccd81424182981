"""Consumer groups in all four modes, during the normal operations of a cluster.

Brokers are restarted one after the other, leaders move, retention deletes, sidecars upload, a topic
is deleted and created again, members join and leave without a commit: each group receives each
committed record, in order.
`CONSUME_SECONDS` in the environment sets the duration.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic

import pytest
from confluent_kafka import Producer

from devtools.sandbox.kafka import KraftCluster
from tests.end_to_end.chaos.disasters import Stage, recreate_topic
from tests.end_to_end.chaos.group_verdict import Truth, changes, truth_of, violations
from tests.end_to_end.chaos.groups import Group, consumer_config
from tests.end_to_end.chaos.ledger import Ledger, Partition
from tests.end_to_end.chaos.load import IdempotentLoad, PausableLoad, TransactionalLoad
from tests.end_to_end.chaos.observer import Observer
from tests.end_to_end.chaos.scene import (
    CLUSTER_PROPERTIES,
    PARTITIONS,
    RECREATED,
    SEGMENT_BYTES,
    TOPICS,
    Scene,
    set_up,
)
from tests.end_to_end.chaos.schedule import FEW_PARTITIONS, RecreateTopic
from tests.end_to_end.chaos.store import s3_chaos
from tests.harness.archive_check import ArchiveReader
from tests.harness.archive_objects import s3_store
from tests.harness.ci import SEARCHES
from tests.harness.clusters import KraftFactory
from tests.harness.s3 import S3Bucket
from tests.harness.topics import leader_of, move_leader, watermark_offsets
from tests.harness.waiting import wait_until

SECONDS = float(os.environ.get("CONSUME_SECONDS", "0"))
SHORT_SECONDS = 20.0
RETENTION_SECONDS = 12.0 if SECONDS < 120 else 30.0
RATE = 60.0
SEED = 5
MODES = ("KAFKA_ONLY", "KAFKA_PREFERRED", "TIERED_STORAGE_PREFERRED", "TIERED_STORAGE_ONLY")
_PATIENCE = 180.0
_KEPT_MS = 3_600_000
_AROUND_SECONDS = 600

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.timeout(SECONDS + _AROUND_SECONDS),
    SEARCHES,
]


class Day:
    """The operations of a run, one after the other."""

    def __init__(self, scene: Scene, groups: Mapping[str, Group], log: Path) -> None:
        self.scene, self.groups = scene, groups
        self._log = log
        self._began = monotonic()
        self.moves = self.recreations = 0

    def tell(self, event: str) -> None:
        """Log a message for diagnosis."""
        with self._log.open("a") as log:
            log.write(f"{monotonic() - self._began:8.2f} {event}\n")

    def wait_for_retention(self) -> None:
        """Wait until records of every partition have been deleted on the brokers."""
        servers = self.scene.cluster.bootstrap_servers
        wait_until(
            lambda: all(watermark_offsets(servers, *tp)[0] > 0 for tp in PARTITIONS),
            _PATIENCE,
            "retention to delete something of every partition",
            1.0,
        )
        self.tell("something of every partition is deleted")

    def restart(self) -> None:
        """Restart each broker once; its leaderships move to other brokers."""
        cluster = self.scene.cluster
        for broker in cluster.broker_ids:
            self.tell(f"broker {broker} stops")
            cluster.stop_broker(broker)
            cluster.start_broker(broker)
            self.scene.wait_until_healed()
            self.tell(f"broker {broker} is back")

    def move_leaders(self) -> None:
        """Move the leader of one partition of each topic."""
        servers = self.scene.cluster.bootstrap_servers
        for topic in TOPICS:
            old = leader_of(servers, topic, 0)
            new = next(one for one in self.scene.cluster.broker_ids if one != old)
            move_leader(servers, topic, 0, new)
            self.moves += 1

    def recreate(self, observer: Observer, ledger: Ledger, load: PausableLoad) -> None:
        """Delete a topic and create it again under the groups."""
        stage = Stage(self.scene, ledger, observer, {RECREATED: load}, self.tell)
        recreate_topic(stage, RecreateTopic(3.0, ahead=self.recreations % 2 == 0))
        self.recreations += 1

    def change_members(self) -> None:
        """Add a second member to each group, and remove the first one."""
        for group in self.groups.values():
            group.join()
        for group in self.groups.values():
            group.leave()


@contextmanager
def day(cluster: KraftCluster, bucket: S3Bucket, directory: Path) -> Iterator[Day]:
    """Brokers, sidecars, and a group without members in each mode."""
    topics = [*TOPICS, RECREATED]
    with ExitStack() as stack:
        scene = stack.enter_context(set_up(cluster, s3_chaos(bucket), directory, RETENTION_SECONDS))
        # Before the old archive is retired, a reader finds only what Kafka has of the new topic.
        scene = replace(scene, configs={**scene.configs, "retention.ms": _KEPT_MS})
        scene.create_topic(RECREATED)
        config = consumer_config(scene, directory)
        groups: dict[str, Group] = {}
        found = Day(scene, groups, directory / "day.log")
        for mode in MODES:
            strategy = "cooperative-sticky" if mode == "KAFKA_PREFERRED" else "range"
            own = {**config, "partition.assignment.strategy": strategy}
            group = Group(mode, own, topics, found.tell, recreated=(RECREATED,))
            groups[mode] = stack.enter_context(group)
        yield found


def close_segments(scene: Scene, recreated: PausableLoad) -> dict[Partition, int]:
    """Produce until all earlier records are in closed segments, and wait for the store.

    Returns:
        The ends of the partitions before that.
    """
    servers = scene.cluster.bootstrap_servers
    # The next producer with its ID ends a transaction that may still be open.
    fence = {"transactional.id": f"chaos-{SEED}", "log_level": 0}
    Producer({**fence, "bootstrap.servers": servers}).init_transactions(60)
    ends = {tp: watermark_offsets(servers, *tp)[1] for tp in (*PARTITIONS, *recreated.partitions)}
    for tp in recreated.partitions:
        recreated.send(tp, 3 * SEGMENT_BYTES // 500)
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "batch.num.messages": 20})
    for topic, partition in PARTITIONS:
        for _ in range(3 * SEGMENT_BYTES // 500):
            producer.produce(topic, b"x" * 500, None, partition)
    assert producer.flush(60) == 0
    archive = ArchiveReader(scene.store.objects)

    def stored() -> bool:
        views = archive.views()
        return all((view := views.get(tp)) and view.mark.next >= end for tp, end in ends.items())

    wait_until(stored, _PATIENCE, f"the store to hold what lies below {ends}", 1.0)
    return ends


def test_every_group_receives_every_committed_record_in_order(
    kraft_cluster: KraftFactory,
    s3_bucket: S3Bucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    for name, value in s3_store(s3_bucket).environment.items():
        monkeypatch.setenv(name, value)
    cluster = kraft_cluster(brokers=3, properties=CLUSTER_PROPERTIES)
    ledger = Ledger()
    with day(cluster, s3_bucket, tmp_path) as events:
        groups = events.groups
        truth = _live(events, ledger)
        for group in groups.values():
            wait_until(
                partial(_at_its_end, group, truth),
                _PATIENCE,
                f"{group.mode} to see {truth.lasts}",
                0.5,
            )
        sources = {
            mode: (group.from_source("kafka"), group.from_source("store"))
            for mode, group in groups.items()
        }
    renewed = {mode: changes(truth, group.assignments) for mode, group in groups.items()}
    summary = (
        f"{ledger.total()} records; from Kafka and the store: {sources}; from a deleted topic into "
        f"the one created again: {renewed}"
    )
    record_property("chaos", summary)
    problems = [*ledger.problems]
    for mode, group in groups.items():
        problems += group.problems
        problems += [f"{mode}: {one}" for one in violations(truth, group.assignments, mode)]
    assert not problems, "\n".join([*problems[:40], summary, (tmp_path / "day.log").read_text()])
    _check_that_it_was_a_day(events, truth)


def _at_its_end(group: Group, truth: Truth) -> bool:
    """Return whether the group has received everything, or has a violation already."""
    return bool(group.problems) or not group.missing(truth.lasts)


def _live(events: Day, ledger: Ledger) -> Truth:
    """Run everything up to the last record; return the acknowledgements of the producers."""
    groups, servers = events.groups, events.scene.cluster.bootstrap_servers
    began = monotonic()
    with ExitStack() as stack:
        groups["KAFKA_ONLY"].join()
        plain = [tp for tp in PARTITIONS if tp[0] == "plain"]
        paid = [tp for tp in PARTITIONS if tp[0] == "paid"]
        loads = [
            stack.enter_context(IdempotentLoad(ledger, servers, plain, RATE, SEED)),
            stack.enter_context(TransactionalLoad(ledger, servers, paid, RATE, SEED)),
            recreated := stack.enter_context(
                PausableLoad(ledger, servers, RECREATED, FEW_PARTITIONS, RATE / 2, SEED)
            ),
        ]
        scene = events.scene
        eye = Observer(scene.store.eye, scene.layout, recreated.partitions, events.tell)
        stack.enter_context(eye)
        events.wait_for_retention()
        for mode in MODES[1:]:  # their first offsets are only in the store
            groups[mode].join()
        live = True
        while live:
            events.restart()
            events.move_leaders()
            events.recreate(eye, ledger, recreated)
            events.change_members()
            live = monotonic() - began < SECONDS
        for load in loads:
            load.stop()
    events.tell("all is acknowledged")
    ends = close_segments(events.scene, recreated)
    events.tell("all is stored")
    return replace(truth_of(ledger, ["paid"], [*TOPICS, RECREATED]), ends=ends)


def _check_that_it_was_a_day(events: Day, truth: Truth) -> None:
    """Raise if hardly anything happened in the run."""
    groups = events.groups
    lasts = [logs[-1] for logs in truth.logs.values()]
    assert sum(len(log.committed) for log in lasts) >= 500
    assert any(log.aborted for log in lasts)
    assert events.moves >= len(TOPICS)
    assert events.recreations > 0
    for mode in ("KAFKA_PREFERRED", "TIERED_STORAGE_PREFERRED"):
        assert groups[mode].from_source("store") > 0, mode
        assert groups[mode].from_source("kafka") > 0, mode
    assert groups["TIERED_STORAGE_ONLY"].from_source("kafka") == 0
    assert groups["KAFKA_ONLY"].from_source("store") == 0
    for group in groups.values():
        assert len({one.member for one in group.assignments}) >= 2, group.mode

"""Creation of topics, checks of existing ones, and their final configs."""

from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import ConfigResource
from confluent_kafka.cimpl import NewTopic

from sidetier.cli.hydrate.view import FinishedResult
from sidetier.mirror.hydrate.finish import (
    OpenTransaction,
    check_placed,
    check_replicated,
    check_topics,
    replicas_in_sync,
    wanted_replicas,
)
from sidetier.mirror.hydrate.plan import (
    HydratePlan,
    PlannedPartition,
    PlannedTopic,
    PreparedTopic,
    check_cluster,
    with_prepared,
)
from sidetier.mirror.hydrate.steps import FinishReport
from sidetier.mirror.hydrate.topics import (
    SAFE_CONFIGS,
    DescribedTopic,
    TopicAdmin,
    check_existing,
    final_configs,
    not_restored,
    prepare,
    to_create,
)
from sidetier.segments.batches import Producer
from sidetier.segments.errors import ConfigurationError, LeadershipUnavailableError
from sidetier.segments.offsets import BrokerId, LeaderEpoch, Offset, OffsetRange, TopicPartition
from sidetier.wire.cluster import Cluster, ClusterMetadata, PartitionMetadata, TopicMetadata
from sidetier.wire.requests import ActiveProducer

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

ORDERS = TopicPartition("orders", 0)


def planned(factor: int | None = None) -> HydratePlan:
    return HydratePlan(
        "f" * 32,
        "prod-a",
        {"orders": PlannedTopic(1, factor)},
        (PlannedPartition("orders", 0, 5, 60, 60),),
        prepared={"orders": PreparedTopic("id", (1,))},
    )


def described(*replicas: int, topic_id: str = "id") -> DescribedTopic:
    return DescribedTopic(topic_id, (replicas,), (replicas[0],))


def test_only_missing_topics_are_created() -> None:
    assert to_create(planned(), admin_of(FakeClient())) == {"orders": 1}
    assert to_create(planned(), admin_of(FakeClient(topics={"orders": 1}))) == {}


def log(start: int, end: int) -> OffsetRange:
    return OffsetRange(Offset(start), Offset(end))


def test_empty_topic_of_an_interrupted_run_is_taken_over() -> None:
    check_existing(planned(), {"orders": described(1)}, {ORDERS: log(0, 0)})
    check_existing(planned(), {"orders": described(1)}, {ORDERS: log(7, 7)})


@pytest.mark.parametrize(
    ("existing", "offsets", "message"),
    [
        (described(1), log(0, 1), "has records in partition 0"),
        (described(1, 2), log(0, 0), "exists with several replicas"),
        (DescribedTopic("id", ((1,), (1,)), (1, 1)), log(0, 0), "exists with 2 partitions"),
    ],
)
def test_topic_that_cannot_take_segments_is_refused(
    existing: DescribedTopic, offsets: OffsetRange, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_existing(planned(), {"orders": existing}, {ORDERS: offsets})


def test_safe_settings_are_replaced_by_the_original_ones() -> None:
    final = final_configs({"cleanup.policy": "compact", "max.message.bytes": "5"})
    assert final["cleanup.policy"] == "compact"
    assert final["max.message.bytes"] == "5"
    assert {name for name, value in final.items() if value is None} == set(SAFE_CONFIGS) - {
        "cleanup.policy"
    }


def test_throttled_replicas_of_the_lost_cluster_are_listed_and_not_restored() -> None:
    throttled = {
        "follower.replication.throttled.replicas": "0:7,1:8",
        "leader.replication.throttled.replicas": "0:9",
    }
    configs = {"max.message.bytes": "5", **throttled}
    plan = replace(planned(), topics={"orders": PlannedTopic(1, 1, configs)})
    assert not throttled.keys() & final_configs(configs).keys()
    assert final_configs(configs)["max.message.bytes"] == "5"
    assert not_restored(plan) == {"orders": throttled}
    assert not_restored(planned()) == {}
    report = FinishReport(
        {"orders": final_configs(configs)}, {}, [], not_restored(plan), dry_run=False
    )
    (table,) = FinishedResult(report).as_tables()
    for name, value in throttled.items():
        assert f"topic orders: {name}={value} is not restored" in (table.footer or "")


def test_retention_stays_unlimited_without_a_snapshot() -> None:
    assert final_configs(None) == {"cleanup.policy": None, "min.insync.replicas": None}


def test_partition_that_was_not_placed_is_refused() -> None:
    check_placed(planned(), {ORDERS: log(5, 60)})
    check_placed(planned(), {ORDERS: log(5, 61)})  # an abort marker
    check_placed(planned(), {ORDERS: log(61, 61)})  # retention, before a step is repeated
    for empty_or_beginning_too_early in (log(0, 0), log(0, 60)):
        with pytest.raises(ConfigurationError, match="was `sidetier hydrate place` run"):
            check_placed(planned(), {ORDERS: empty_or_beginning_too_early})


def test_recreated_topic_is_refused() -> None:
    check_topics(planned(), {"orders": described(1)})
    with pytest.raises(ConfigurationError, match="is not the topic that"):
        check_topics(planned(), {"orders": described(1, topic_id="other")})


def test_brokers_of_another_cluster_are_refused() -> None:
    plan = with_prepared(planned(), "new", planned().prepared)
    check_cluster(plan, "new")
    with pytest.raises(ConfigurationError, match="these brokers belong to Kafka cluster old"):
        check_cluster(plan, "old")
    with pytest.raises(ConfigurationError, match="were not created yet"):
        check_cluster(with_prepared(plan, None, {}), "new")


def test_configuration_waits_for_replicas_and_open_transactions() -> None:
    check_replicated(planned(2), {"orders": described(1, 2)}, [])
    with pytest.raises(ConfigurationError, match="orders-0 has 1 of 2 replicas: run `sidetier"):
        check_replicated(planned(2), {"orders": described(1)}, [])
    hung = OpenTransaction(ORDERS, ActiveProducer(Producer(7, 0), -1, 3, 0, Offset(9)))
    with pytest.raises(ConfigurationError, match="orders-0 has an open transaction"):
        check_replicated(planned(2), {"orders": described(1, 2)}, [hung])


def test_replicas_are_added_after_the_one_that_has_the_records() -> None:
    three = dict.fromkeys((3, 1, 2))
    assert wanted_replicas(planned(3), {"orders": described(2)}, three) == {ORDERS: (2, 3, 1)}
    assert wanted_replicas(planned(3), {"orders": described(2, 3, 1)}, three) == {}
    assert wanted_replicas(planned(None), {"orders": described(2)}, three) == {}


def test_replicas_are_spread_over_the_racks() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: None}
    assert wanted_replicas(planned(3), {"orders": described(1)}, racks) == {ORDERS: (1, 3, 5)}
    assert wanted_replicas(planned(3), {"orders": described(3)}, racks) == {ORDERS: (3, 5, 6)}
    two = {1: "a", 2: "a", 3: "b", 4: "b"}
    assert wanted_replicas(planned(4), {"orders": described(2)}, two) == {ORDERS: (2, 3, 4, 1)}


def test_too_few_brokers_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="had 3 replicas, but only 2 brokers are up"):
        wanted_replicas(planned(3), {"orders": described(1)}, {1: None, 2: None})


def failed(code: int) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(KafkaException(KafkaError(code)))
    return future


def done(result: object = None) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future


@dataclass
class FakeClient:
    """librdkafka's admin client of a cluster with one broker, as `TopicAdmin` uses it.

    Attributes:
        topics: The number of partitions of each topic.
        stale: The numbers (from 1) of the describe requests that reach a broker that does not
            know any topic yet.
        refuses: Configs that the brokers refuse.
        refuses_topics: Topics that the brokers refuse to create.
        configs: The configs that were set, by topic and name.
        described: The number of describe requests.
        not_leading: The number of offset requests that the broker refuses because it does not lead
            the partition yet.
        without_controller: The number of metadata responses that still name a dead broker as the
            controller.
    """

    topics: dict[str, int] = field(default_factory=dict)
    stale: frozenset[int] = frozenset()
    refuses: frozenset[str] = frozenset()
    refuses_topics: frozenset[str] = frozenset()
    configs: dict[tuple[str, str], str | None] = field(default_factory=dict)
    described: int = 0
    not_leading: int = 0
    without_controller: int = 0

    def describe_topics(self, topics: TopicCollection, **_: object) -> dict[str, Future[Any]]:
        self.described += 1
        return {name: self._described(name) for name in topics.topic_names}

    def _described(self, name: str) -> Future[Any]:
        if name not in self.topics or self.described in self.stale:
            return failed(KafkaError.UNKNOWN_TOPIC_OR_PART)
        node = SimpleNamespace(id=1)
        partition = SimpleNamespace(replicas=[node], leader=node)
        partitions = [partition] * self.topics[name]
        return done(SimpleNamespace(topic_id="id", partitions=partitions))

    def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool, **_: object
    ) -> dict[str, Future[Any]]:
        answers: dict[str, Future[Any]] = {}
        for topic in topics:
            if topic.topic in self.topics:
                answers[topic.topic] = failed(KafkaError.TOPIC_ALREADY_EXISTS)
            elif topic.topic in self.refuses_topics:
                answers[topic.topic] = failed(KafkaError.POLICY_VIOLATION)
            else:
                if not validate_only:
                    self.topics[topic.topic] = topic.num_partitions
                answers[topic.topic] = done()
        return answers

    def incremental_alter_configs(
        self, resources: list[ConfigResource], **_: object
    ) -> dict[ConfigResource, Future[Any]]:
        (resource,) = resources
        entries = resource.incremental_configs
        if any(entry.name in self.refuses for entry in entries):
            return {resource: failed(KafkaError.INVALID_CONFIG)}
        for entry in entries:
            self.configs[resource.name, entry.name] = entry.value
        return {resource: done()}

    def list_offsets(
        self, asked: dict[KafkaPartition, object], **_: object
    ) -> dict[KafkaPartition, Future[Any]]:
        if self.not_leading:
            self.not_leading -= 1
            return {tp: failed(KafkaError.NOT_LEADER_FOR_PARTITION) for tp in asked}
        return {tp: done(SimpleNamespace(offset=0, leader_epoch=None)) for tp in asked}

    def list_topics(self, **_: object) -> None:
        """Refresh the metadata; librdkafka waits for the controller they name."""
        self.without_controller -= 1

    def refresh_metadata(self, _: float) -> None:
        self.list_topics()

    def describe_cluster(self, **_: object) -> Future[Any]:
        if self.without_controller >= 0:
            return failed(KafkaError._TIMED_OUT)
        return done(SimpleNamespace(cluster_id="new"))


def admin_of(client: FakeClient) -> TopicAdmin:
    return TopicAdmin(cast("AdminClient", client))


def test_a_request_is_retried_after_the_controller_has_died() -> None:
    client = FakeClient(without_controller=1)
    assert admin_of(client).cluster_id() == "new"
    assert client.without_controller == -1


class KilledError(Exception):
    """Death of the process."""


@dataclass
class MortalClient(FakeClient):
    """Make the given number of changes, and die before the next one."""

    changes_left: int | None = None

    def _change(self) -> None:
        if self.changes_left == 0:
            raise KilledError
        if self.changes_left is not None:
            self.changes_left -= 1

    def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool, **more: object
    ) -> dict[str, Future[Any]]:
        answers: dict[str, Future[Any]] = {}
        for topic in topics:
            if not validate_only:
                self._change()
            answers |= super().create_topics([topic], validate_only=validate_only, **more)
        return answers

    def incremental_alter_configs(
        self, resources: list[ConfigResource], **more: object
    ) -> dict[ConfigResource, Future[Any]]:
        self._change()
        return super().incremental_alter_configs(resources, **more)


@pytest.mark.parametrize("changes", range(5))
def test_prepare_killed_at_each_change_is_completed_by_the_next_run(changes: int) -> None:
    plan = replace(planned(), topics={name: PlannedTopic(1) for name in ("orders", "payments")})
    client = MortalClient(topics={"orders": 1}, changes_left=changes)
    killed = changes < 2  # one topic to create, and one of an interrupted run to make safe
    with pytest.raises(KilledError) if killed else nullcontext():
        prepare(plan, admin_of(client))
    client.changes_left = None
    expected = {name: PreparedTopic("id", (1,)) for name in ("orders", "payments")}
    assert prepare(plan, admin_of(client)) == ("new", expected)
    assert client.topics == {"orders": 1, "payments": 1}
    for name, value in SAFE_CONFIGS.items():
        assert client.configs["orders", name] == value


def test_no_topic_is_created_if_the_brokers_refuse_one() -> None:
    plan = replace(planned(), topics={name: PlannedTopic(1) for name in ("orders", "payments")})
    client = FakeClient(refuses_topics=frozenset({"payments"}))
    for step in (prepare, to_create):
        with pytest.raises(LeadershipUnavailableError, match="topic payments cannot be created"):
            step(plan, admin_of(client))
    assert client.topics == {}


def test_topic_unknown_to_one_broker_is_not_missing_in_the_plan() -> None:
    """Whichever broker answers, the plan contains every topic and its broker."""
    client = FakeClient(stale=frozenset({1, 3}))
    assert prepare(planned(), admin_of(client)) == ("new", {"orders": PreparedTopic("id", (1,))})


def test_topic_unknown_to_the_first_broker_is_checked_and_made_safe() -> None:
    client = FakeClient(topics={"orders": 1}, stale=frozenset({1}))
    prepare(planned(), admin_of(client))
    assert client.configs == {("orders", name): value for name, value in SAFE_CONFIGS.items()}
    with pytest.raises(ConfigurationError, match="exists with 2 partitions"):
        prepare(planned(), admin_of(FakeClient(topics={"orders": 2}, stale=frozenset({1}))))


def test_a_request_to_a_broker_that_does_not_lead_yet_is_retried() -> None:
    client = FakeClient(topics={"orders": 1}, not_leading=3)
    assert admin_of(client).log_ranges([ORDERS]) == {ORDERS: log(0, 0)}


def test_config_refused_by_another_version_does_not_prevent_others() -> None:
    client = FakeClient(refuses=frozenset({"message.format.version"}))
    refused = admin_of(client).configure(
        "orders", {"retention.ms": "5", "message.format.version": "2.8", "retention.bytes": None}
    )
    assert list(refused) == ["message.format.version"]
    assert client.configs == {("orders", "retention.ms"): "5", ("orders", "retention.bytes"): ""}


def metadata(replicas: tuple[int, ...], in_sync: tuple[int, ...]) -> Cluster:
    """Metadata of a cluster whose brokers describe the topic `orders` with these replicas."""
    ids, synced = tuple(map(BrokerId, replicas)), tuple(map(BrokerId, in_sync))
    partition = PartitionMetadata(BrokerId(1), LeaderEpoch(0), ids, synced)
    topic = TopicMetadata("orders", None, is_internal=False, partitions={0: partition})
    answer = ClusterMetadata("new", BrokerId(1), {}, {"orders": topic}, {})
    return cast("Cluster", SimpleNamespace(metadata=lambda _: answer))


def test_replicas_are_waited_for_before_a_broker_knows_them() -> None:
    assert replicas_in_sync(metadata((1,), (1,)), planned(3)) == {}
    assert replicas_in_sync(metadata((1, 2, 3), (1, 2)), planned(3)) == {}
    assert replicas_in_sync(metadata((1, 2, 3), (3, 1, 2)), planned(3)) == {ORDERS: (1, 2, 3)}
    assert replicas_in_sync(metadata((1,), (1,)), planned()) == {ORDERS: (1,)}

"""The topics of a mirror on its target: nothing changes before everything that may refuse."""

import re
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from kio.schema.errors import ErrorCode

from sidetier.mirror.topics.catalog import Catalog
from sidetier.mirror.topics.planning import CatalogOptions, SourceTopic
from sidetier.mirror.topics.rules import Lineage, MirrorNames, TopicRules
from sidetier.segments.errors import ConfigurationError, KafkaApiError
from sidetier.segments.offsets import BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.wire.cluster import (
    Cluster,
    ClusterMetadata,
    PartitionMetadata,
    Route,
    TopicMetadata,
)
from sidetier.wire.protocol import ApiKey, api_error
from sidetier.wire.requests import CommittedOffset
from sidetier.wire.settings import ClientSettings

OLD_ID, NEW_ID, COPY_ID = (UUID(int=number) for number in (1, 2, 3))
PARTITION = PartitionMetadata(BrokerId(1), LeaderEpoch(0), (), ())
NAMES = MirrorNames("m")
PROGRESS = Lineage("orders", ("a",), source_id=str(OLD_ID), target_id=str(COPY_ID), partitions=1)


class FakeTarget(Cluster):
    """Brokers that answer for a name that exists before they look at its settings, as Kafka does.

    `changes` has the requests that changed something, in order.
    """

    def __init__(self, refused: Collection[str] = (), **defaults: str) -> None:
        super().__init__(ClientSettings.from_properties({"bootstrap.servers": "localhost:1"}))
        self.refused = refused
        self.defaults = {name.replace("_", "."): value for name, value in defaults.items()}
        self.ids: dict[str, UUID] = {}
        self.progress: dict[TopicPartition, CommittedOffset] = {}
        self.changes: list[tuple[str, str]] = []

    def with_copy(self) -> "FakeTarget":
        """Add the copy of a former topic `orders`, and the offset map."""
        self.ids = {"orders": COPY_ID, NAMES.offsets_topic: uuid4()}
        self.progress = {
            TopicPartition("orders", 0): CommittedOffset(Offset(5), metadata=PROGRESS.encoded())
        }
        return self

    def metadata(
        self,
        topics: Collection[str] | None = None,
        *,
        timeout: float = 0.0,  # noqa: ARG002 - of the real one
    ) -> ClusterMetadata:
        described = {
            name: TopicMetadata(name, topic_id, is_internal=False, partitions={0: PARTITION})
            for name, topic_id in self.ids.items()
            if topics is None or name in topics
        }
        return ClusterMetadata("b", BrokerId(1), {}, described, {})

    def leaders(
        self, partitions: Collection[TopicPartition]
    ) -> dict[BrokerId, list[TopicPartition]]:
        assert {tp.topic for tp in partitions} <= self.ids.keys()
        return {BrokerId(1): list(partitions)}

    def request_once(
        self,
        route: Route,  # noqa: ARG002 - of the real one
        api: ApiKey,
        /,
        *,
        tolerate: Collection[ErrorCode] = (),
        **values: Any,  # noqa: ANN401 - of the real one
    ) -> Any:  # noqa: ANN401 - of the real one
        match api:
            case ApiKey.OFFSET_FETCH:
                rows = [
                    SimpleNamespace(
                        name=tp.topic,
                        partitions=[
                            SimpleNamespace(
                                partition_index=tp.partition,
                                committed_offset=committed.offset,
                                metadata=committed.metadata,
                            )
                        ],
                    )
                    for tp, committed in self.progress.items()
                ]
                return SimpleNamespace(topics=rows)
            case ApiKey.DESCRIBE_CONFIGS:
                names = [asked["resource_name"] for asked in values["resources"]]
                return SimpleNamespace(
                    results=[SimpleNamespace(resource_name=name, configs=()) for name in names]
                )
            case ApiKey.DELETE_TOPICS:
                for name in [name for name, key in self.ids.items() if key == COPY_ID]:
                    self.changes.append(("delete", name))
                    del self.ids[name]
                self.progress.clear()
                return None
        assert api is ApiKey.CREATE_TOPICS, api
        for topic in values["topics"]:
            code = self._refusal(topic)
            if code is None and not values["validate_only"]:
                self.changes.append(("create", topic["name"]))
                self.ids[topic["name"]] = uuid4()
            elif code is not None and code not in tolerate:
                raise api_error(f"fake refuses {topic['name']}", code)
        configs = [SimpleNamespace(name=name, value=self.defaults[name]) for name in self.defaults]
        results = [SimpleNamespace(name=row["name"], configs=configs) for row in values["topics"]]
        return SimpleNamespace(topics=results)

    def _refusal(self, topic: dict[str, Any]) -> ErrorCode | None:
        if topic["name"] in self.ids:
            return ErrorCode.topic_already_exists
        configs = {config["name"] for config in topic["configs"]}
        return ErrorCode.invalid_config if configs & set(self.refused) else None


class FakeSource:
    """A source with these topics. Implements `SourceTopics`."""

    def __init__(self, **topics: SourceTopic) -> None:
        self._topics = topics

    def cluster_id(self) -> str:
        return "a"

    def topics(self, selects: Callable[[str], bool]) -> dict[str, SourceTopic]:
        return {name: topic for name, topic in self._topics.items() if selects(name)}

    def lineages(self) -> dict[str, Lineage]:
        return {}


RECREATED = SourceTopic(1, {"retention.ms": "5"}, NEW_ID)


def catalog_of(target: Cluster, **topics: SourceTopic) -> Catalog:
    options = CatalogOptions(restart_recreated=True, accept_records=True)
    return Catalog(FakeSource(**topics), target, TopicRules((re.compile(".*"),)), NAMES, options)


def test_copy_of_a_recreated_topic_is_deleted_and_created_again() -> None:
    target = FakeTarget().with_copy()
    (copy,) = catalog_of(target, orders=RECREATED).copies().values()
    assert target.changes == [("delete", "orders"), ("create", "orders")]
    assert copy.target_id == str(target.ids["orders"]) != str(COPY_ID)


def test_copy_stays_if_the_brokers_refuse_a_setting_of_the_recreated_topic() -> None:
    target = FakeTarget({"retention.ms"}).with_copy()
    catalog = catalog_of(target, orders=RECREATED, plain=SourceTopic(1, {}, uuid4()))
    assert catalog.copies().keys() == {TopicPartition("plain", 0)}
    assert target.changes == [("create", "plain")]
    assert target.ids["orders"] == COPY_ID
    assert target.progress
    assert catalog.refused.keys() == {"orders"}
    assert "INVALID_CONFIG" in catalog.refused["orders"]
    assert "The former copy orders stays on the target" in catalog.refused["orders"]
    # It would not be deleted, so the plan does not say so.
    (planned, _) = catalog.plan()
    assert (planned.exists, planned.replaces) == (True, None)


def test_a_plan_names_every_refused_topic_and_changes_nothing() -> None:
    """A restore begins only if no topic of its plan is refused."""
    target = FakeTarget({"retention.ms"})
    catalog = catalog_of(target, orders=RECREATED, plain=SourceTopic(1, {}, uuid4()))
    problems = {planned.source: planned.problem for planned in catalog.plan()}
    assert problems.pop("plain") is None
    assert "INVALID_CONFIG" in (problems["orders"] or "")
    assert target.changes == []


def test_nothing_is_changed_if_the_topic_of_the_offset_map_is_refused() -> None:
    target = FakeTarget({"cleanup.policy"}).with_copy()
    del target.ids[NAMES.offsets_topic]
    with pytest.raises(KafkaApiError, match="INVALID_CONFIG"):
        catalog_of(target, orders=RECREATED, plain=SourceTopic(1, {}, uuid4())).copies()
    assert target.changes == []


def test_no_topic_is_created_if_all_are_refused() -> None:
    target = FakeTarget({"retention.ms"})
    with pytest.raises(ConfigurationError, match="INVALID_CONFIG"):
        catalog_of(target, orders=RECREATED).copies()
    assert target.changes == []


def test_no_copy_is_created_that_replaces_timestamps_by_default_of_the_brokers() -> None:
    target = FakeTarget(message_timestamp_type="LogAppendTime").with_copy()
    with pytest.raises(ConfigurationError, match="would have message"):
        catalog_of(target, orders=RECREATED, plain=SourceTopic(1, {}, uuid4())).copies()
    assert target.changes == []

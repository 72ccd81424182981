"""What may be created, what exists already, and what topics are changed to at the end."""

import pytest

from sidetier.mirror.hydrate.finish import check_placed, wanted_replicas
from sidetier.mirror.hydrate.plan import (
    HydratePlan,
    PlannedPartition,
    PlannedTopic,
    PreparedTopic,
)
from sidetier.mirror.hydrate.topics import (
    SAFE_CONFIGS,
    DescribedTopic,
    check_existing,
    final_configs,
    to_create,
)
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import TopicPartition

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
    assert to_create(planned(), {}) == {"orders": 1}
    assert to_create(planned(), {"orders": described(1)}) == {}


def test_an_empty_topic_of_an_interrupted_run_is_taken_over() -> None:
    check_existing(planned(), {"orders": described(1)}, {ORDERS: (0, 0)})
    check_existing(planned(), {"orders": described(1)}, {ORDERS: (7, 7)})


@pytest.mark.parametrize(
    ("found", "ends", "message"),
    [
        (described(1), (0, 1), "has records in partition 0"),
        (described(1, 2), (0, 0), "exists with several replicas"),
        (DescribedTopic("id", ((1,), (1,)), (1, 1)), (0, 0), "exists with 2 partitions"),
    ],
)
def test_a_topic_that_cannot_take_segments_is_refused(
    found: DescribedTopic, ends: tuple[int, int], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_existing(planned(), {"orders": found}, {ORDERS: ends})


def test_the_safe_settings_go_and_the_real_ones_come() -> None:
    final = final_configs({"cleanup.policy": "compact", "max.message.bytes": "5"})
    assert final["cleanup.policy"] == "compact"
    assert final["max.message.bytes"] == "5"
    assert {name for name, value in final.items() if value is None} == set(SAFE_CONFIGS) - {
        "cleanup.policy"
    }


def test_without_a_snapshot_retention_stays_unlimited() -> None:
    assert final_configs(None) == {"cleanup.policy": None, "min.insync.replicas": None}


def test_a_partition_that_was_not_placed_is_refused() -> None:
    check_placed(planned(), {"orders": described(1)}, {ORDERS: (5, 60)})
    check_placed(planned(), {"orders": described(1)}, {ORDERS: (5, 61)})  # an abort marker
    with pytest.raises(ConfigurationError, match="was `sidetier hydrate place` run"):
        check_placed(planned(), {"orders": described(1)}, {ORDERS: (0, 0)})
    with pytest.raises(ConfigurationError, match="is not the one that"):
        check_placed(planned(), {"orders": described(1, topic_id="other")}, {ORDERS: (5, 60)})


def test_replicas_are_added_behind_the_one_that_has_the_records() -> None:
    wanted = wanted_replicas(planned(3), {"orders": described(2)}, [1, 2, 3])
    assert wanted == {ORDERS: (2, 3, 1)}
    assert wanted_replicas(planned(3), {"orders": described(2, 3, 1)}, [1, 2, 3]) == {}
    assert wanted_replicas(planned(None), {"orders": described(2)}, [1, 2, 3]) == {}


def test_too_few_brokers_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="had 3 replicas, but only 2 brokers are up"):
        wanted_replicas(planned(3), {"orders": described(1)}, [1, 2])

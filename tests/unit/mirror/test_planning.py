"""The plan of a copy: what is created, changed or refused."""

from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

import pytest

from sidetier.mirror.topics.planning import (
    CatalogOptions,
    CopySettings,
    PlannedCopy,
    SourceTopic,
    TargetState,
    plan_copy,
)
from sidetier.mirror.topics.rules import Lineage
from sidetier.segments.offsets import BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.wire.cluster import PartitionMetadata, TopicMetadata
from sidetier.wire.requests import CommittedOffset

SOURCE_ID, TARGET_ID, OTHER_ID = (UUID(int=number) for number in (1, 2, 3))
ORDERS = SourceTopic(2, {"cleanup.policy": "compact", "min.insync.replicas": "2"}, SOURCE_ID)
LINEAGE = Lineage("orders", ("a",))
PARTITION = PartitionMetadata(BrokerId(1), LeaderEpoch(0), (), ())
NOTED = replace(LINEAGE, source_id=str(SOURCE_ID), target_id=str(TARGET_ID), partitions=2)


def target(
    partitions: int = 2,
    settings: Mapping[str, str] | None = None,
    noted: Lineage | None = NOTED,
    with_records: tuple[str, ...] = (),
) -> TargetState:
    """Return a target cluster with topic `orders`, and the progress of a copy if `noted` is set."""
    topic = TopicMetadata(
        "orders",
        TARGET_ID,
        is_internal=False,
        partitions=dict.fromkeys(range(partitions), PARTITION),
    )
    progress = {}
    if noted is not None:
        committed = CommittedOffset(Offset(5), metadata=noted.encoded())
        progress = {TopicPartition("orders", number): committed for number in range(partitions)}
    return TargetState("b", {"orders": topic}, {"orders": settings or {}}, progress, with_records)


EMPTY = TargetState("b", {}, {}, {}, ())


def plan(state: TargetState, **options: object) -> PlannedCopy:
    chosen = replace(CatalogOptions(), **options)  # type: ignore[arg-type]
    return plan_copy(ORDERS, "orders", LINEAGE, state, chosen)


def test_a_missing_topic_is_created_with_the_settings_that_fit_another_cluster() -> None:
    planned = plan(EMPTY)
    assert (planned.exists, planned.problem, planned.partitions) == (False, None, 2)
    assert planned.settings == {"cleanup.policy": "compact"}
    assert plan(EMPTY, settings=CopySettings.NONE).settings == {}
    assert plan(EMPTY, create=False).problem == "topic orders does not exist on the target"


def test_the_copy_of_a_topic_with_log_append_time_keeps_the_timestamps() -> None:
    source = replace(ORDERS, settings={"message.timestamp.type": "LogAppendTime"})
    planned = plan_copy(source, "orders", LINEAGE, EMPTY, CatalogOptions())
    assert (planned.problem, planned.settings) == (None, {"message.timestamp.type": "CreateTime"})
    accepting = CatalogOptions(accept_log_append_time=True)
    planned = plan_copy(source, "orders", LINEAGE, EMPTY, accepting)
    assert (planned.problem, planned.settings) == (None, source.settings)


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({}, None),
        ({"max.message.bytes": "1048588"}, 1048588),
        ({"max.message.bytes": "1048588", "segment.bytes": "2048"}, 2048),
    ],
)
def test_maximum_size_of_a_batch_is_a_setting_of_the_target(
    settings: dict[str, str], size: int | None
) -> None:
    assert plan(target(settings=settings)).max_batch_bytes == size


def test_an_existing_copy_gets_missing_partitions_and_changed_settings() -> None:
    state = target(partitions=1, settings={"cleanup.policy": "delete"})
    planned = plan(state)
    assert (planned.exists, planned.problem, planned.added_partitions) == (True, None, 1)
    assert planned.changed_settings == {}
    assert plan(state, settings=CopySettings.SYNC).changed_settings == {"cleanup.policy": "compact"}
    assert "1" in (plan(state, raise_partitions=False).problem or "")


@pytest.mark.parametrize(
    ("state", "options", "problem"),
    [
        (target(partitions=1, noted=None), {}, "has 2 partitions and orders on the target 1"),
        (target(noted=None, with_records=("orders",)), {}, "has records, and this mirror has no"),
        (target(settings={"message.timestamp.type": "LogAppendTime"}), {}, "LogAppendTime"),
        (
            target(settings={"message.timestamp.type": "LogAppendTime"}),
            {"accept_log_append_time": True},
            None,
        ),
        (replace(target(), cluster_id="a"), {}, "the same cluster a"),
        (replace(target(), cluster_id="a"), {"refuse_loops": False}, None),
        (replace(target(), problems={"orders": "may not be described"}), {}, "may not be"),
        (target(noted=replace(NOTED, source_id=str(OTHER_ID))), {}, "created again on the source"),
        (target(noted=replace(NOTED, target_id=str(OTHER_ID))), {}, "created again on the target"),
    ],
)
def test_a_topic_that_cannot_be_copied_has_a_problem(
    state: TargetState, options: dict[str, object], problem: str | None
) -> None:
    planned = plan(state, **options)
    if problem is None:
        assert planned.problem is None
    else:
        assert problem in (planned.problem or "")


def test_only_the_copy_of_a_recreated_topic_is_replaced() -> None:
    state = target(noted=replace(NOTED, source_id=str(OTHER_ID)))
    planned = plan(state, restart_recreated=True)
    assert (planned.replaces, planned.exists, planned.problem) == (TARGET_ID, False, None)
    assert planned.former == state.progress
    assert plan(target(), restart_recreated=True).replaces is None

"""The status as JSON: what the daemon writes, the commands read, also of other versions."""

import json
from dataclasses import replace
from typing import Any

import pytest

from sidetier.segments.offsets import BaseOffset, BrokerId, LeaderEpoch, Offset
from sidetier.telemetry.status import (
    ClusterSnapshotStatus,
    Condition,
    DrillStatus,
    HeldError,
    LocalRetentionStatus,
    PartitionState,
    PartitionStatus,
    PinnedRange,
    Role,
    SegmentStatus,
    StatusSnapshot,
)
from sidetier.telemetry.status_json import parsed, status_json

SEGMENT = SegmentStatus(
    BaseOffset(30), Offset(40), 100, "queued", pinned=True, marked_for_deletion=False, error="403"
)
PARTITION = PartitionStatus(
    "orders",
    0,
    PartitionState.WAITING,
    LeaderEpoch(4),
    next_offset=Offset(30),
    unarchived_age_seconds=3.0,
    gaps=((Offset(1), Offset(3)), (Offset(5), Offset(9))),
    role=Role.FOLLOWER,
    segments=(SEGMENT,),
)
SNAPSHOT = StatusSnapshot(
    "prod-a",
    BrokerId(1),
    partitions=(PARTITION, replace(PARTITION, topic="pay", segments=())),
    pins=(PinnedRange("orders", 0, Offset(30), None, 100),),
    held_errors=(HeldError("orders-0", "OSError: x", 3),),
    log_dir_problems=("/b cannot be read",),
    cluster_snapshots=(ClusterSnapshotStatus("acls", 9.5, stored=False, problem="p"),),
    last_drill=DrillStatus(7, succeeded=False, last_successful_ms=None, problem="p"),
    local_retention=(LocalRetentionStatus("orders", "r", 5),),
)


def received(snapshot: StatusSnapshot) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(json.dumps(status_json(snapshot)))
    return answer


def test_reader_gets_what_the_daemon_has_written() -> None:
    assert parsed(StatusSnapshot, received(SNAPSHOT)) == SNAPSHOT
    assert parsed(Condition, {"name": "a", "holds": True, "reason": ""}) == Condition(
        "a", holds=True
    )
    assert [row["topic"] for row in status_json(SNAPSHOT, "pay")["partitions"]] == ["pay"]


def test_older_and_newer_sidecars_are_read() -> None:
    answer = received(SNAPSHOT)
    del answer["local_retention"], answer["partitions"][0]["gaps"]
    answer |= {"of_a_newer_version": {"a": 1}, "last_drill": None}
    answer["partitions"][0] |= {"state": "resting", "x": []}
    found = parsed(StatusSnapshot, answer)
    assert (found.local_retention, found.last_drill, found.partitions[0].gaps) == ((), None, ())
    assert str(found.partitions[0].state) == "resting"


@pytest.mark.parametrize(
    "change",
    [
        {"cluster": 5},
        {"broker_id": "1"},
        {"partitions": {}},
        {"partitions": [{"topic": "orders"}]},
        {"pins": [7]},
        {"started_ms": True},
        {"log_dir_problems": [None]},
    ],
)
def test_other_types_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        parsed(StatusSnapshot, received(SNAPSHOT) | change)

"""Mutual exclusion of actions that need the same lock."""

import threading
from typing import Any, cast

import pytest

from tests.end_to_end.chaos.disasters import Guards, Stage, not_in_first_batch
from tests.end_to_end.chaos.nemesis import LAG_SECONDS, Nemesis, guards_of
from tests.end_to_end.chaos.schedule import (
    BROKERS,
    Action,
    DeleteRecords,
    FailLogDir,
    FillDisk,
    KillBroker,
    KillSidecar,
    RecreateTopic,
    RestartEverything,
    RestartOnSpool,
    Schedule,
    TroubleStore,
    draw,
)
from tests.harness.waiting import wait_until


def actions() -> list[Action]:
    """All actions of an hour."""
    tracks = draw(7, 3600, 7).tracks.values()
    return [step.action for track in tracks for step in track]


def test_only_topic_actions_run_while_records_are_only_in_the_spool() -> None:
    alone = set(guards_of(RestartOnSpool(0, 1.0)))
    beside = {type(action) for action in actions() if not alone & set(guards_of(action))}
    assert beside == {DeleteRecords, RecreateTopic}


def test_brokers_sidecars_and_the_store_can_fail_at_the_same_time() -> None:
    broker, sidecar = guards_of(KillBroker(1, 1.0)), guards_of(KillSidecar(1, 1.0))
    store = guards_of(TroubleStore("away", (1,), 1.0))
    assert len({*broker, *sidecar, *store}) == 3
    assert set(guards_of(RestartEverything())) == set(broker)


def test_no_topic_is_recreated_while_a_disk_is_away() -> None:
    recreation = set(guards_of(RecreateTopic(1.0, ahead=False)))
    assert recreation & set(guards_of(FillDisk(1, 1.0)))
    assert recreation & set(guards_of(FailLogDir(1, "absent", 1.0)))


def test_lock_is_held_by_one_action_at_a_time() -> None:
    guards, held, over = Guards(), threading.Event(), threading.Event()

    def hold_all() -> None:
        with guards.held(*guards_of(RestartOnSpool(0, 1.0))):
            held.set()
            over.wait(60)

    with guards.held(*guards_of(KillSidecar(BROKERS[0], 1.0))):
        other = threading.Thread(target=hold_all, daemon=True)
        other.start()
        assert not held.wait(0.2)
    assert held.wait(60)
    over.set()
    wait_until(lambda: not other.is_alive(), 60, "the other action to end")


def test_no_fault_begins_while_the_archive_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have fallen behind while the fault waited for its guards."""
    lags = [0.0, LAG_SECONDS + 1, LAG_SECONDS + 1, 0.0, 1.0]
    begun: list[int] = []
    nothing = cast("Any", None)
    stage = Stage(nothing, nothing, nothing, nothing, lambda _: None)
    nemesis = Nemesis(stage, Schedule(1, 1.0, (), (), (), ()), lambda: lags.pop(0), lambda: None)
    monkeypatch.setattr(nemesis, "_carry_out", lambda _action: begun.append(len(lags)))
    assert nemesis._begin(RestartOnSpool(0, 1.0))
    assert begun == [0], "after the last look"


@pytest.mark.parametrize(
    ("before", "starts", "expected"),
    [
        (7207, [0, 7206, 7300], 7206),
        (7206, [0, 7206], 7206),
        (7225, [0, 7206], 7206),
        (7226, [0, 7206], 7226),
        (100, [], 100),
    ],
)
def test_records_are_not_deleted_within_the_first_batch_of_a_leader_epoch(
    before: int, starts: list[int], expected: int
) -> None:
    assert not_in_first_batch(before, starts) == expected

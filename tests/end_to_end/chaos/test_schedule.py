"""The schedule depends only on the seed and contains everything that short runs must cover."""

from typing import get_args

import pytest

from tests.end_to_end.chaos.schedule import (
    BROKERS,
    FEW_PARTITIONS,
    Action,
    DeleteRecords,
    Disaster,
    ElectLeaders,
    ElectUncleanly,
    FailLogDir,
    FillDisk,
    ForkLeader,
    KillBroker,
    KillSidecar,
    PauseBroker,
    PauseSidecar,
    Reassign,
    RecreateTopic,
    RestartOnSpool,
    RestartSidecar,
    Step,
    StopBroker,
    TroubleStore,
    draw,
    draw_early,
    draw_tail,
    lasts,
)
from tests.harness.disks import Failure

LONGEST_OUTAGE = 15.0
DISASTERS = set(get_args(Disaster))


def kinds(steps: tuple[Step, ...]) -> set[type]:
    return {type(step.action) for step in steps}


def test_schedule_is_determined_by_the_seed() -> None:
    assert draw(7, 600, 7) == draw(7, 600, 7)
    assert draw(7, 600, 7) != draw(8, 600, 7)


def test_early_archiving_is_drawn_by_the_seed() -> None:
    drawn = [draw_early(seed, ["a", "b", "c"]) for seed in range(200)]
    assert drawn == [draw_early(seed, ["a", "b", "c"]) for seed in range(200)]
    assert 20 < sum(not early.topics for early in drawn) < 80
    for name in ("a", "b", "c"):
        assert 60 < sum(name in early.topics for early in drawn) < 140
    assert len({(early.bytes, early.age) for early in drawn}) == 9
    intervals = [draw_tail(seed) for seed in range(200)]
    assert set(intervals) == {None, 1.0, 2.0, 5.0}
    assert 20 < intervals.count(None) < 80


def test_longer_run_begins_like_a_shorter_one() -> None:
    short, long = draw(7, 60, 7), draw(7, 600, 7)
    for name, steps in short.tracks.items():
        assert long.tracks[name][: len(steps)] == steps


@pytest.mark.parametrize("seed", range(20))
def test_steps_cover_the_whole_time_and_one_round_has_every_kind(seed: int) -> None:
    schedule = draw(seed, 180, 7)
    for steps in schedule.tracks.values():
        assert sum(step.quiet + lasts(step.action) for step in steps) >= 180
    wanted = {KillBroker, StopBroker, PauseBroker, ForkLeader, ElectLeaders, Reassign}
    assert kinds(schedule.brokers[:12]) - DISASTERS == wanted
    assert kinds(schedule.sidecars[:5]) == {
        PauseSidecar,
        KillSidecar,
        RestartSidecar,
        RestartOnSpool,
    }
    assert kinds(schedule.topics[:3]) == {DeleteRecords, RecreateTopic}
    troubles = {s.action.trouble for s in schedule.store[:9] if isinstance(s.action, TroubleStore)}
    assert len(troubles) == 8


@pytest.mark.parametrize("seed", range(20))
def test_three_broker_steps_have_one_disaster_and_six_disasters_are_all_kinds(
    seed: int,
) -> None:
    steps = draw(seed, 600, 7).brokers[:18]
    disasters = [type(step.action) for step in steps if type(step.action) in DISASTERS]
    assert set(disasters) == DISASTERS
    assert len(disasters) == 6
    for first in range(0, 18, 3):
        assert len(kinds(steps[first : first + 3]) & DISASTERS) == 1


@pytest.mark.parametrize("seed", range(20))
def test_hour_has_every_kind_and_every_disk_failure(seed: int) -> None:
    schedule = draw(seed, 3600, 7)
    assert schedule.kinds == {kind.__name__ for kind in get_args(Action)}
    actions = [step.action for step in schedule.brokers]
    failures = {action.failure for action in actions if isinstance(action, FailLogDir)}
    assert failures == set(get_args(Failure))
    disks = {action.broker for action in actions if isinstance(action, FillDisk | FailLogDir)}
    assert disks == set(BROKERS)


@pytest.mark.parametrize("seed", range(20))
def test_no_outage_exceeds_the_promised_duration(seed: int) -> None:
    schedule = draw(seed, 3600, 7)
    steps = [step for track in schedule.tracks.values() for step in track]
    assert max(lasts(step.action) for step in steps) <= LONGEST_OUTAGE
    for step in steps:
        if isinstance(step.action, Reassign):
            assert len(step.action.replicas) >= 2, "two replicas must be in sync"
            assert set(step.action.replicas) <= set(BROKERS)
            assert 0 <= step.action.number < 7
        if isinstance(step.action, ElectUncleanly | RestartOnSpool | DeleteRecords):
            assert 0 <= step.action.number < FEW_PARTITIONS
        if isinstance(step.action, PauseSidecar):
            assert step.action.heir != step.action.broker

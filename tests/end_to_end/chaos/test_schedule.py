"""The schedule: of the seed alone, and with everything in it that short runs must see."""

import pytest

from tests.end_to_end.chaos.schedule import (
    BROKERS,
    ElectLeaders,
    ForkLeader,
    KillBroker,
    KillSidecar,
    PauseBroker,
    PauseSidecar,
    Reassign,
    RestartSidecar,
    Step,
    StopBroker,
    TroubleStore,
    draw,
    lasts,
)

LONGEST_OUTAGE = 15.0


def kinds(steps: tuple[Step, ...]) -> set[type]:
    return {type(step.action) for step in steps}


def test_the_same_seed_draws_the_same_and_another_seed_another() -> None:
    assert draw(7, 600, 7) == draw(7, 600, 7)
    assert draw(7, 600, 7) != draw(8, 600, 7)


def test_a_longer_run_begins_like_a_shorter_one() -> None:
    short, long = draw(7, 60, 7), draw(7, 600, 7)
    assert long.brokers[: len(short.brokers)] == short.brokers
    assert long.sidecars[: len(short.sidecars)] == short.sidecars
    assert long.store[: len(short.store)] == short.store


@pytest.mark.parametrize("seed", range(20))
def test_there_are_steps_for_the_whole_time_and_one_round_holds_every_kind(seed: int) -> None:
    schedule = draw(seed, 180, 7)
    for steps in (schedule.brokers, schedule.sidecars, schedule.store):
        assert sum(step.quiet + lasts(step.action) for step in steps) >= 180
    wanted = {KillBroker, StopBroker, PauseBroker, ForkLeader, ElectLeaders, Reassign}
    assert kinds(schedule.brokers[:7]) == wanted
    assert kinds(schedule.sidecars[:4]) == {PauseSidecar, KillSidecar, RestartSidecar}
    troubles = {s.action.trouble for s in schedule.store[:9] if isinstance(s.action, TroubleStore)}
    assert len(troubles) == 8


@pytest.mark.parametrize("seed", range(20))
def test_no_outage_is_longer_than_what_is_promised_to_be_survived(seed: int) -> None:
    schedule = draw(seed, 3600, 7)
    steps = (*schedule.brokers, *schedule.sidecars, *schedule.store)
    assert max(lasts(step.action) for step in steps) <= LONGEST_OUTAGE
    for step in steps:
        if isinstance(step.action, Reassign):
            assert len(step.action.replicas) >= 2, "two replicas must be in sync"
            assert set(step.action.replicas) <= set(BROKERS)
            assert 0 <= step.action.number < 7
        if isinstance(step.action, PauseSidecar):
            assert step.action.heir != step.action.broker

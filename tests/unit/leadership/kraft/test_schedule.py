"""Times at which Metadata requests are sent."""

import pytest

from sidetier.leadership.kraft.metadata_request import RequestSchedule

INTERVAL = 10.0


def answered_at(schedule: RequestSchedule, now: float, *, settled: bool = True) -> None:
    schedule.asked()
    schedule.answered(now, took=0.01, settled=settled)


def test_first_request_is_due_at_once_and_the_next_after_the_interval() -> None:
    schedule = RequestSchedule(INTERVAL)
    assert schedule.may_ask(0.0)
    answered_at(schedule, 1.0)
    assert not schedule.may_ask(10.9)
    assert schedule.may_ask(11.0)


def test_only_one_request_is_sent_at_a_time() -> None:
    schedule = RequestSchedule(INTERVAL)
    schedule.asked()
    schedule.hinted(1.0)
    assert not schedule.may_ask(100.0)


def test_hint_waits_only_for_the_previous_hint() -> None:
    schedule = RequestSchedule(INTERVAL)
    answered_at(schedule, 1.0)
    schedule.hinted(2.0)
    schedule.hinted(2.015)
    assert not schedule.may_ask(2.01)
    assert schedule.may_ask(2.02)


def test_hint_during_a_request_needs_another_request() -> None:
    schedule = RequestSchedule(INTERVAL)
    schedule.asked()
    schedule.hinted(1.0)
    schedule.answered(1.5, took=0.5, settled=True)
    assert not schedule.may_ask(1.5)
    assert schedule.may_ask(1.52)


def test_pauses_double_up_to_the_interval_while_the_sources_disagree() -> None:
    schedule = RequestSchedule(INTERVAL)
    now, pauses = 0.0, []
    for _ in range(12):
        answered_at(schedule, now, settled=False)
        pauses.append(schedule.due - now)
        now = schedule.due
    assert pauses[:4] == pytest.approx([0.05, 0.1, 0.2, 0.4])
    assert pauses[-1] == pytest.approx(INTERVAL)


def test_silent_broker_is_asked_less_often() -> None:
    schedule = RequestSchedule(INTERVAL)
    now = 0.0
    for _ in range(100):
        schedule.asked()
        schedule.failed(now)
        assert now < schedule.due <= now + INTERVAL
        now = schedule.due
    answered_at(schedule, now)
    schedule.asked()
    schedule.failed(now)
    assert schedule.due - now < 0.1, "an answer ends the row of failures"


def test_slow_requests_are_sent_rarely() -> None:
    schedule = RequestSchedule(INTERVAL)
    schedule.asked()
    schedule.answered(0.0, took=2.0, settled=True)
    assert schedule.due == 100.0

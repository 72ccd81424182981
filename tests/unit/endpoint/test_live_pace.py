"""How often the topics of the live cluster are asked for."""

from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from math import inf

from sidetier.endpoint.live.topics import INTERVAL, Pace


def asked(
    until: float, wanted: Iterable[float], took: float, changes_at: float = inf
) -> list[float]:
    """Return when requests begin, if somebody wants a change at these moments."""
    pace, now, due, found = Pace(), 0.0, deque(wanted), list[float]()
    while now < until:
        is_due = bool(due) and due[0] <= now + pace.wait
        now = max(now, due[0]) if is_due else now + pace.wait
        while due and due[0] <= now:
            due.popleft()
        found.append(now)
        pace.begin(now, is_due=is_due)
        is_changed, now = now < changes_at <= now + took + pace.pause, now + took
        pace.end(now, is_changed=is_changed, is_away=False)
        now += pace.pause
    return found


def test_a_small_cluster_is_asked_often_while_a_leader_is_missing_and_then_seldom() -> None:
    moments = asked(20, [1.0], took=0.01)
    assert len([at for at in moments if 1 <= at < 2.1]) >= 4
    assert [at for at in moments if 2.5 <= at < 1 + INTERVAL - 0.5] == []
    held = [1 + 0.5 * number for number in range(14)]
    moments = asked(20, held, took=0.01, changes_at=8.0)
    missing = [at for at in moments if 1 <= at <= 8]
    assert max(b - a for a, b in pairwise(missing)) < 0.3
    assert [at for at in moments if 8.5 <= at < 8 + INTERVAL] == [], "the change has come"


def test_a_large_cluster_is_asked_once_a_second_at_most() -> None:
    moments = asked(20, [0.5 * number for number in range(40)], took=0.2)
    later = [at for at in moments if at > 3]
    assert min(b - a for a, b in pairwise(later)) >= 1.0


def test_nothing_is_asked_before_the_interval_without_a_reason() -> None:
    moments = asked(35, [], took=0.01)
    assert all(b - a > INTERVAL for a, b in pairwise(moments))

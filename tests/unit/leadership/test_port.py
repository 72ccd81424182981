"""Views and the difference between two views."""

from sidetier.leadership.port import LeadershipView, diff
from sidetier.segments.offsets import LeaderEpoch, TopicPartition

A, B, C = (TopicPartition("t", number) for number in range(3))


def view(**epochs: int) -> LeadershipView:
    known = {"a": A, "b": B, "c": C}
    return LeadershipView({known[k]: LeaderEpoch(e) for k, e in epochs.items()}, known=True)


def test_gained_lost_and_renewed_leads_are_distinguished_and_sorted() -> None:
    change = diff(view(b=1, a=1, c=1), view(c=1, a=2))
    assert (change.gained, change.lost, change.renewed) == ((), (B,), (A,))
    change = diff(view(), view(c=0, a=0))
    assert change.gained == (A, C)


def test_empty_difference_is_false() -> None:
    assert not diff(view(a=1), view(a=1))
    assert diff(view(a=1), view(a=2))


def test_new_view_is_unknown_and_empty() -> None:
    assert LeadershipView() == LeadershipView({}, {}, known=False)


def test_another_topic_id_of_the_same_name_is_a_renewed_lead() -> None:
    """The topic was deleted and recreated between two views, in the same epoch."""
    leads = {A: LeaderEpoch(0), TopicPartition("u", 0): LeaderEpoch(0)}
    old = LeadershipView(leads, {"t": "1", "u": "1"}, known=True)
    assert diff(old, LeadershipView(leads, {"t": "2", "u": "1"}, known=True)).renewed == (A,)
    assert not diff(old, LeadershipView(leads, {}, known=True)), "an id that is not told"

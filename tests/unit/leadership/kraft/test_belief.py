"""What is believed when the metadata log and the broker's answers say this and that."""

import pytest

from sidetier.leadership.kraft.source import Belief
from sidetier.segments.offsets import UNKNOWN_EPOCH, LeaderEpoch, TopicPartition

ORDERS, PAYMENTS = TopicPartition("orders", 0), TopicPartition("payments", 3)
STALE = 60.0
IDS = {"orders": "AAAAAAAAAAAAAAAAAAAAAQ"}


def log_says(belief: Belief, **epochs: int) -> bool:
    known = {"orders": ORDERS, "payments": PAYMENTS}
    return belief.log_read({known[name]: LeaderEpoch(e) for name, e in epochs.items()}, IDS)


def ask(belief: Belief, *leads: TopicPartition, now: float = 0.0) -> None:
    belief.asked()
    belief.answered(leads, now)


@pytest.fixture
def belief() -> Belief:
    return Belief(confirms=True, stale_after=STALE)


def test_nothing_is_known_before_the_first_answer(belief: Belief) -> None:
    log_says(belief, orders=4)
    assert not belief.view(0.0).known


def test_what_both_say_is_led_with_the_epoch_and_the_ids_of_the_log(belief: Belief) -> None:
    log_says(belief, orders=4, payments=1)
    ask(belief, ORDERS)
    view = belief.view(0.0)
    assert view.known
    assert (view.leads, view.topic_ids) == ({ORDERS: 4}, IDS)


def test_a_partition_that_only_the_answer_shows_is_not_led(belief: Belief) -> None:
    log_says(belief)
    ask(belief, ORDERS)
    assert belief.view(0.0).leads == {}
    assert not belief.settled()


@pytest.mark.parametrize("first", ["log", "answer"])
def test_a_loss_counts_from_either(belief: Belief, first: str) -> None:
    log_says(belief, orders=4)
    ask(belief, ORDERS)
    if first == "log":
        log_says(belief)
    else:
        ask(belief)
    assert belief.view(0.0).leads == {}


def test_a_new_epoch_must_be_confirmed_anew(belief: Belief) -> None:
    log_says(belief, orders=4)
    ask(belief, ORDERS)
    assert log_says(belief, orders=6)
    assert belief.view(0.0).leads == {}
    ask(belief, ORDERS)
    assert belief.view(0.0).leads == {ORDERS: 6}


def test_an_answer_to_an_older_request_confirms_no_newer_gain(belief: Belief) -> None:
    log_says(belief, payments=1)
    belief.asked()
    log_says(belief, payments=1, orders=4)
    belief.answered({ORDERS, PAYMENTS}, 0.0)
    assert belief.view(0.0).leads == {PAYMENTS: 1}
    assert not belief.settled()


def test_a_ghost_in_the_tail_is_never_led(belief: Belief) -> None:
    log_says(belief, orders=4)
    for _ in range(5):
        ask(belief, PAYMENTS)
        assert belief.view(0.0).leads == {}
    assert not belief.settled()


def test_the_last_answer_stands_while_the_broker_is_away(belief: Belief) -> None:
    log_says(belief, orders=4, payments=1)
    ask(belief, ORDERS, PAYMENTS, now=100.0)
    assert belief.view(100.0 + STALE).leads == {ORDERS: 4, PAYMENTS: 1}
    log_says(belief, payments=1)
    assert belief.view(100.0 + STALE).leads == {PAYMENTS: 1}, "the log still says what is lost"
    view = belief.view(100.1 + STALE)
    assert (view.known, view.leads) == (False, {})


def test_a_later_answer_makes_the_view_known_again(belief: Belief) -> None:
    log_says(belief, orders=4)
    ask(belief, ORDERS, now=0.0)
    assert not belief.view(1000.0).known
    ask(belief, ORDERS, now=1000.0)
    assert belief.view(1000.0).leads == {ORDERS: 4}


def test_a_log_that_was_never_read_leaves_the_answers(belief: Belief) -> None:
    belief.log_failed(0.0)
    ask(belief, ORDERS)
    view = belief.view(0.0)
    assert (view.leads, view.topic_ids) == ({ORDERS: UNKNOWN_EPOCH}, {})
    assert belief.settled()


def test_a_log_that_fails_is_stood_in_for_by_its_last_state_for_a_while(belief: Belief) -> None:
    log_says(belief, orders=4)
    belief.log_failed(10.0)
    belief.log_failed(50.0)
    ask(belief, ORDERS, PAYMENTS, now=69.0)
    assert belief.view(69.0).leads == {ORDERS: 4}
    assert belief.settled(), "a log that cannot be read is no reason to ask again and again"
    assert belief.view(71.0).leads == {ORDERS: UNKNOWN_EPOCH, PAYMENTS: UNKNOWN_EPOCH}
    log_says(belief, orders=4)
    ask(belief, ORDERS, now=72.0)
    assert belief.view(72.0).leads == {ORDERS: 4}


def test_the_log_alone_is_taken_as_it_is() -> None:
    belief = Belief(confirms=False, stale_after=STALE)
    assert not belief.view(0.0).known
    log_says(belief, orders=4)
    assert belief.view(5000.0).leads == {ORDERS: 4}, "a quiet log is no stale log"
    belief.log_failed(5000.0)
    assert belief.view(5000.0 + STALE).known
    assert not belief.view(5000.1 + STALE).known


def test_only_changes_are_news(belief: Belief) -> None:
    assert log_says(belief)
    assert not log_says(belief)
    assert log_says(belief, orders=4)
    assert not log_says(belief, orders=4)

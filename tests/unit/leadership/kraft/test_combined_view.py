"""What is believed when the metadata log and the broker's answers say this and that."""

import pytest

from sidetier.leadership.kraft.source import CombinedView
from sidetier.segments.offsets import UNKNOWN_EPOCH, LeaderEpoch, TopicPartition

ORDERS, PAYMENTS = TopicPartition("orders", 0), TopicPartition("payments", 3)
STALE = 60.0
IDS = {"orders": "AAAAAAAAAAAAAAAAAAAAAQ"}


def log_says(combined: CombinedView, **epochs: int) -> bool:
    known = {"orders": ORDERS, "payments": PAYMENTS}
    return combined.log_read({known[name]: LeaderEpoch(e) for name, e in epochs.items()}, IDS)


def ask(combined: CombinedView, *leads: TopicPartition, now: float = 0.0) -> None:
    combined.asked()
    combined.answered(leads, now)


@pytest.fixture
def combined() -> CombinedView:
    return CombinedView(confirms=True, stale_after=STALE)


def test_nothing_is_known_before_the_first_answer(combined: CombinedView) -> None:
    log_says(combined, orders=4)
    assert not combined.view(0.0).known


def test_what_both_say_is_led_with_the_epoch_and_the_ids_of_the_log(combined: CombinedView) -> None:
    log_says(combined, orders=4, payments=1)
    ask(combined, ORDERS)
    view = combined.view(0.0)
    assert view.known
    assert (view.leads, view.topic_ids) == ({ORDERS: 4}, IDS)


def test_a_partition_that_only_the_answer_shows_is_not_led(combined: CombinedView) -> None:
    log_says(combined)
    ask(combined, ORDERS)
    assert combined.view(0.0).leads == {}
    assert not combined.settled()


@pytest.mark.parametrize("first", ["log", "answer"])
def test_a_loss_counts_from_either(combined: CombinedView, first: str) -> None:
    log_says(combined, orders=4)
    ask(combined, ORDERS)
    if first == "log":
        log_says(combined)
    else:
        ask(combined)
    assert combined.view(0.0).leads == {}


def test_a_new_epoch_must_be_confirmed_anew(combined: CombinedView) -> None:
    log_says(combined, orders=4)
    ask(combined, ORDERS)
    assert log_says(combined, orders=6)
    assert combined.view(0.0).leads == {}
    ask(combined, ORDERS)
    assert combined.view(0.0).leads == {ORDERS: 6}


def test_an_answer_to_an_older_request_confirms_no_newer_gain(combined: CombinedView) -> None:
    log_says(combined, payments=1)
    combined.asked()
    log_says(combined, payments=1, orders=4)
    combined.answered({ORDERS, PAYMENTS}, 0.0)
    assert combined.view(0.0).leads == {PAYMENTS: 1}
    assert not combined.settled()


def test_a_ghost_in_the_tail_is_never_led(combined: CombinedView) -> None:
    log_says(combined, orders=4)
    for _ in range(5):
        ask(combined, PAYMENTS)
        assert combined.view(0.0).leads == {}
    assert not combined.settled()


def test_the_last_answer_stands_while_the_broker_is_away(combined: CombinedView) -> None:
    log_says(combined, orders=4, payments=1)
    ask(combined, ORDERS, PAYMENTS, now=100.0)
    assert combined.view(100.0 + STALE).leads == {ORDERS: 4, PAYMENTS: 1}
    log_says(combined, payments=1)
    assert combined.view(100.0 + STALE).leads == {PAYMENTS: 1}, "the log still says what is lost"
    view = combined.view(100.1 + STALE)
    assert (view.known, view.leads) == (False, {})


def test_a_later_answer_makes_the_view_known_again(combined: CombinedView) -> None:
    log_says(combined, orders=4)
    ask(combined, ORDERS, now=0.0)
    assert not combined.view(1000.0).known
    ask(combined, ORDERS, now=1000.0)
    assert combined.view(1000.0).leads == {ORDERS: 4}


def test_a_log_that_was_never_read_leaves_the_answers(combined: CombinedView) -> None:
    combined.log_failed(0.0)
    ask(combined, ORDERS)
    view = combined.view(0.0)
    assert (view.leads, view.topic_ids) == ({ORDERS: UNKNOWN_EPOCH}, {})
    assert combined.settled()


def test_a_log_that_fails_is_stood_in_for_by_its_last_state_for_a_while(
    combined: CombinedView,
) -> None:
    log_says(combined, orders=4)
    combined.log_failed(10.0)
    combined.log_failed(50.0)
    ask(combined, ORDERS, PAYMENTS, now=69.0)
    assert combined.view(69.0).leads == {ORDERS: 4}
    assert combined.settled(), "a log that cannot be read is no reason to ask again and again"
    assert combined.view(71.0).leads == {ORDERS: UNKNOWN_EPOCH, PAYMENTS: UNKNOWN_EPOCH}
    log_says(combined, orders=4)
    ask(combined, ORDERS, now=72.0)
    assert combined.view(72.0).leads == {ORDERS: 4}


def test_the_log_alone_is_taken_as_it_is() -> None:
    combined = CombinedView(confirms=False, stale_after=STALE)
    assert not combined.view(0.0).known
    log_says(combined, orders=4)
    assert combined.view(5000.0).leads == {ORDERS: 4}, "a quiet log is no stale log"
    combined.log_failed(5000.0)
    assert combined.view(5000.0 + STALE).known
    assert not combined.view(5000.1 + STALE).known


def test_only_changes_are_news(combined: CombinedView) -> None:
    assert log_says(combined)
    assert not log_says(combined)
    assert log_says(combined, orders=4)
    assert not log_says(combined, orders=4)

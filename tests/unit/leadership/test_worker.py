"""The mailbox, the worker thread and the publisher."""

from threading import Event, Thread

from sidetier.leadership.port import LeadershipView
from sidetier.leadership.worker import Mailbox, ViewPublisher, Worker
from sidetier.segments.offsets import LeaderEpoch, TopicPartition
from tests.harness.waiting import wait_until

KNOWN = LeadershipView(known=True)
LEADING = LeadershipView({TopicPartition("t", 0): LeaderEpoch(1)}, known=True)


def test_messages_arrive_in_order_and_at_once() -> None:
    mailbox: Mailbox[int] = Mailbox()
    for number in (1, 2, 2):
        mailbox.post(number)
    mailbox.post_once(2)
    mailbox.post_once(3)
    assert mailbox.take(0) == [1, 2, 2, 3]
    assert mailbox.take(0) == []


def test_receiver_wakes_for_a_message_and_for_the_end() -> None:
    mailbox: Mailbox[int] = Mailbox()
    taken: list[list[int]] = []

    def post() -> None:
        mailbox.post(1)

    for act in (post, mailbox.close):
        taker = Thread(target=lambda: taken.append(mailbox.take(None)))
        taker.start()
        act()
        taker.join(5)
    assert taken == [[1], []]
    mailbox.post(2)
    assert mailbox.take(None) == []


def test_worker_remembers_the_exception_it_died_of() -> None:
    error = OSError("no more files")

    def die() -> None:
        raise error

    worker = Worker("dying", die)
    worker.join()
    assert worker.failure is None
    worker.start()
    worker.join()
    assert worker.failure is error


def test_regular_end_is_no_failure() -> None:
    worker = Worker("ending", lambda: None)
    worker.start()
    worker.join()
    assert worker.failure is None


def test_only_new_views_are_published() -> None:
    publisher, seen = ViewPublisher(), list[LeadershipView]()
    publisher.publish(KNOWN)
    assert publisher.view == LeadershipView()
    publisher.open(seen.append)
    for view in (LeadershipView(), KNOWN, KNOWN, LEADING):
        publisher.publish(view)
    assert seen == [KNOWN, LEADING]
    assert publisher.view == LEADING


def test_close_waits_for_the_listener_and_ends_publishing() -> None:
    publisher, seen = ViewPublisher(), list[LeadershipView]()
    inside, go_on, closed = Event(), Event(), Event()

    def listener(view: LeadershipView) -> None:
        inside.set()
        go_on.wait(5)
        seen.append(view)

    publisher.open(listener)
    publishing = Thread(target=publisher.publish, args=(KNOWN,))
    publishing.start()
    inside.wait(5)

    def close() -> None:
        publisher.close()
        closed.set()

    closing = Thread(target=close)
    closing.start()
    assert not closed.wait(0.05)
    go_on.set()
    wait_until(closed.is_set, 5, "close to return")
    publisher.publish(LEADING)
    assert seen == [KNOWN]
    publishing.join()
    closing.join()


def test_listener_may_close_the_publisher() -> None:
    publisher = ViewPublisher()
    publisher.open(lambda _: publisher.close())
    publisher.publish(KNOWN)
    publisher.publish(LEADING)
    assert publisher.view == KNOWN

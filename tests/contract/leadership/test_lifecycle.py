"""Behaviour of every leadership source from start to stop."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import enumerate as threads

import pytest

from sidetier.leadership.kraft.source import KraftLeadership
from sidetier.leadership.port import LeadershipSource, LeadershipView
from sidetier.leadership.settings import KraftSettings, StaticSettings, ZookeeperSettings
from sidetier.leadership.static import StaticLeadership
from sidetier.leadership.zookeeper.client import Session
from sidetier.leadership.zookeeper.source import ZookeeperLeadership
from sidetier.segments.offsets import BrokerId, TopicPartition
from tests.harness import metadata_log as written
from tests.harness.fake_leadership import FakeMetadataRequest, FakeTree, ViewRecorder
from tests.harness.metadata_log import MetadataLogWriter
from tests.harness.waiting import wait_until

US = BrokerId(1)
ORDERS = TopicPartition("orders", 0)
ID = b"A" * 16


@dataclass(frozen=True, slots=True)
class Rig:
    """A source that leads ORDERS once `connect` was called; `lose` is None if the source cannot
    lose a partition, `kill` is None if it has no thread that could die.
    """

    source: LeadershipSource
    connect: Callable[[], None] = lambda: None
    lose: Callable[[], None] | None = None
    kill: Callable[[], None] | None = None


def static_rig(_: Path) -> Rig:
    return Rig(StaticLeadership(StaticSettings(partitions=(ORDERS,))))


def log_rig(directory: Path) -> Rig:
    writer = new_log(directory)
    return Rig(
        KraftLeadership(kraft_settings(directory)),
        lose=lambda: writer.append(written.partition_change(ID, 0, 2)),
        kill=lambda: writer.append(written.frame(3, 99, b"")),
    )


def confirmed_rig(directory: Path) -> Rig:
    writer = new_log(directory)
    request = FakeMetadataRequest([ORDERS])
    return Rig(
        KraftLeadership(kraft_settings(directory), request=request),
        lose=lambda: writer.append(written.partition_change(ID, 0, 2)),
        kill=lambda: request.fail(SystemExit("killed")),
    )


def broker_rig(_: Path) -> Rig:
    request = FakeMetadataRequest([ORDERS])
    return Rig(
        KraftLeadership(kraft_settings(None), request=request),
        lose=request.says,
        kill=lambda: request.fail(SystemExit("killed")),
    )


def zookeeper_rig(_: Path) -> Rig:
    tree = FakeTree()
    tree.create_topic("orders", {0: 1})
    return Rig(
        ZookeeperLeadership(ZookeeperSettings(US, "zk:2181"), client=tree),
        connect=lambda: tree.session(Session.CONNECTED),
        lose=lambda: tree.elect(ORDERS, 2),
        kill=lambda: tree.session(Session.REFUSED),
    )


def new_log(directory: Path) -> MetadataLogWriter:
    writer = MetadataLogWriter(directory).create()
    writer.append(written.topic("orders", ID), written.partition(ID, 0, 1))
    return writer


def kraft_settings(directory: Path | None) -> KraftSettings:
    return KraftSettings(US, directory, poll_interval=0.1, log_poll_interval=0.05)


RIGS = [static_rig, log_rig, confirmed_rig, broker_rig, zookeeper_rig]


@pytest.fixture(params=RIGS, ids=lambda make: make.__name__)
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    made: Rig = request.param(tmp_path)
    yield made
    made.source.stop()


@pytest.fixture
def views() -> ViewRecorder:
    return ViewRecorder()


def start(rig: Rig, views: ViewRecorder) -> None:
    rig.source.start(views)
    rig.connect()
    views.wait_for([ORDERS])


def test_source_is_unknown_and_without_failure_before_start(rig: Rig) -> None:
    assert rig.source.view() == LeadershipView()
    assert rig.source.failure() is None


def test_start_publishes_a_first_view_without_a_change(rig: Rig, views: ViewRecorder) -> None:
    start(rig, views)
    assert rig.source.view() == views.last
    assert rig.source.failure() is None


def test_loss_is_published(rig: Rig, views: ViewRecorder) -> None:
    start(rig, views)
    if rig.lose is None:
        return
    rig.lose()
    views.wait_for([])
    assert rig.source.view().leads == {}


def test_stop_may_be_called_twice_and_before_start(rig: Rig, views: ViewRecorder) -> None:
    rig.source.stop()
    rig.source.stop()
    assert views.views == []
    assert rig.source.failure() is None


def test_nothing_is_published_after_stop(rig: Rig, views: ViewRecorder) -> None:
    others = set(threads())
    start(rig, views)
    rig.source.stop()
    rig.source.stop()
    delivered = len(views.views)
    if rig.lose is not None:
        rig.lose()
    wait_until(
        lambda: not set(threads()) - others,
        5,
        "the source's threads to end",
    )
    assert len(views.views) == delivered
    assert rig.source.view().leads == {ORDERS: views.last.leads[ORDERS]}
    assert rig.source.failure() is None


def test_listener_may_stop_its_source(rig: Rig) -> None:
    seen: list[LeadershipView] = []

    def listener(view: LeadershipView) -> None:
        seen.append(view)
        rig.source.stop()

    rig.source.start(listener)
    rig.connect()
    wait_until(lambda: seen, 5, "the first view")
    if rig.lose is not None:
        rig.lose()
    assert len(seen) == 1


def test_death_of_a_thread_is_a_failure_with_its_reason(rig: Rig, views: ViewRecorder) -> None:
    start(rig, views)
    if rig.kill is None:
        return
    rig.kill()
    wait_until(rig.source.failure, 5, "the failure")
    assert str(rig.source.failure())
    rig.source.stop()


def test_exception_of_a_listener_is_a_failure(rig: Rig) -> None:
    error = ValueError("the listener's own")

    def listener(_: LeadershipView) -> None:
        raise error

    if rig.kill is None:
        with pytest.raises(ValueError, match="own"):
            rig.source.start(listener)
        return
    rig.source.start(listener)
    rig.connect()
    wait_until(lambda: rig.source.failure() is error, 5, "the failure")

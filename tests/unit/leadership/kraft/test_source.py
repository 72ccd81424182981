"""The KRaft source over a metadata log on disk and a broker with prepared answers."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic

import pytest
from structlog.testing import capture_logs

from sidetier.leadership.kraft.source import KraftLeadership
from sidetier.leadership.settings import KraftSettings
from sidetier.segments.errors import ConfigurationError, LeadershipError
from sidetier.segments.offsets import UNKNOWN_EPOCH, BrokerId, TopicPartition
from tests.harness import metadata_log as written
from tests.harness.fake_leadership import FakeMetadataRequest, ViewRecorder
from tests.harness.metadata_log import MetadataLogWriter
from tests.harness.waiting import wait_until

ID = b"A" * 16
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
ORDERS, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


@pytest.fixture
def writer(tmp_path: Path) -> MetadataLogWriter:
    writer = MetadataLogWriter(tmp_path).create()
    writer.append(written.topic("orders", ID), written.partition(ID, 0, 1, epoch=4))
    return writer


@pytest.fixture
def settings(tmp_path: Path) -> KraftSettings:
    return KraftSettings(
        BrokerId(1), tmp_path, cluster_id=CLUSTER, poll_interval=0.2, log_poll_interval=0.05
    )


@pytest.fixture
def views() -> ViewRecorder:
    return ViewRecorder()


Start = Callable[..., KraftLeadership]


@pytest.fixture
def start(views: ViewRecorder) -> Iterator[Start]:
    with ExitStack() as stack:

        def start(settings: KraftSettings, request: FakeMetadataRequest | None) -> KraftLeadership:
            source = KraftLeadership(settings, request=request)
            stack.callback(source.stop)
            source.start(views)
            return source

        yield start


@pytest.mark.usefixtures("writer")
def test_first_view_is_confirmed_and_has_epochs(
    settings: KraftSettings, start: Start, views: ViewRecorder
) -> None:
    source = start(settings, FakeMetadataRequest([ORDERS], CLUSTER))
    assert views.wait_for([ORDERS]).leads == {ORDERS: 4}
    assert source.view() == views.last
    assert len(views.views) == 1


def test_gain_in_the_log_is_published_once_the_broker_confirms_it(
    writer: MetadataLogWriter, settings: KraftSettings, start: Start, views: ViewRecorder
) -> None:
    request = FakeMetadataRequest([ORDERS])
    start(replace(settings, poll_interval=60.0, log_poll_interval=60.0), request)
    views.wait_for([ORDERS])
    asked = request.asked
    writer.append(written.partition(ID, 1, 1))
    wait_until(lambda: request.asked > asked + 2, 5, "requests while the sources disagree")
    assert views.last.leads == {ORDERS: 4}
    request.says(ORDERS, SECOND)
    views.wait_for([ORDERS, SECOND])


def test_loss_in_the_log_counts_at_once(
    writer: MetadataLogWriter, settings: KraftSettings, start: Start, views: ViewRecorder
) -> None:
    request = FakeMetadataRequest([ORDERS])
    start(replace(settings, log_poll_interval=60.0), request)
    views.wait_for([ORDERS])
    request.hold()
    writer.append(written.partition_change(ID, 0, 2))
    views.wait_for([])
    request.hold(held=False)


@pytest.mark.usefixtures("writer")
def test_loss_in_an_answer_counts_at_once(
    settings: KraftSettings, start: Start, views: ViewRecorder
) -> None:
    request = FakeMetadataRequest([ORDERS])
    start(settings, request)
    views.wait_for([ORDERS])
    request.says()
    views.wait_for([])


def test_answer_under_way_does_not_confirm_a_newer_gain(
    writer: MetadataLogWriter, settings: KraftSettings, start: Start, views: ViewRecorder
) -> None:
    request = FakeMetadataRequest([ORDERS, SECOND])
    request.hold()
    start(replace(settings, poll_interval=60.0), request)
    wait_until(lambda: request.asked == 1, 5, "the first request")
    request.says()
    writer.append(written.partition(ID, 1, 1))
    request.hold(held=False)
    views.wait_for([])
    assert all(SECOND not in view.leads for view in views.views)


@pytest.mark.usefixtures("writer")
def test_silent_broker_is_logged_at_its_begin_once_a_minute_and_at_its_end(
    settings: KraftSettings, views: ViewRecorder
) -> None:
    request, ahead = FakeMetadataRequest([ORDERS]), [0.0]
    source = KraftLeadership(settings, request=request, clock=lambda: monotonic() + ahead[0])
    with capture_logs() as lines:
        source.start(views)
        try:
            views.wait_for([ORDERS])
            request.be_silent()
            for seconds in (0.0, 30.0, 40.0, 30.0):
                ahead[0] += seconds
                enough = request.asked + 2
                wait_until(partial(lambda wanted: request.asked >= wanted, enough), 5, "requests")
            request.be_silent(silent=False)
            wait_until(lambda: lines[-1]["event"] == "leadership.broker_answers", 5, "an answer")
        finally:
            source.stop()
    about = [line for line in lines if "broker" in line["event"]]
    assert [line["event"].rpartition("_")[2] for line in about] == ["silent", "silent", "answers"]
    assert about[0]["seconds"] == 0
    assert 70 <= about[1]["seconds"] < 100 <= about[2]["seconds"]


@pytest.mark.usefixtures("writer")
def test_last_answer_of_a_silent_broker_is_valid_for_stale_after(
    settings: KraftSettings, start: Start, views: ViewRecorder
) -> None:
    request = FakeMetadataRequest([ORDERS])
    start(replace(settings, stale_after=0.5), request)
    views.wait_for([ORDERS])
    request.be_silent()
    asked = request.asked
    wait_until(lambda: request.asked >= asked + 3, 5, "three requests without an answer")
    assert views.last.leads == {ORDERS: 4}
    views.wait_until_unknown()
    assert views.last.leads == {}
    request.be_silent(silent=False)
    views.wait_for([ORDERS])


def test_broker_alone_is_a_source(
    settings: KraftSettings, start: Start, views: ViewRecorder
) -> None:
    request = FakeMetadataRequest([ORDERS])
    start(replace(settings, metadata_log_dir=None), request)
    assert views.wait_for([ORDERS]).leads == {ORDERS: UNKNOWN_EPOCH}
    request.says(SECOND)
    views.wait_for([SECOND])


def test_log_alone_is_a_source(
    writer: MetadataLogWriter, settings: KraftSettings, start: Start, views: ViewRecorder
) -> None:
    start(settings, None)
    assert views.wait_for([ORDERS]).topic_ids == {"orders": "QUFBQUFBQUFBQUFBQUFBQQ"}
    writer.append(written.partition(ID, 1, 1))
    views.wait_for([ORDERS, SECOND])


def test_log_that_appears_later_is_found(
    tmp_path: Path, settings: KraftSettings, start: Start, views: ViewRecorder
) -> None:
    request = FakeMetadataRequest([ORDERS])
    start(settings, request)
    assert views.wait_for([ORDERS]).leads == {ORDERS: UNKNOWN_EPOCH}
    writer = MetadataLogWriter(tmp_path).create()
    writer.append(written.topic("orders", ID), written.partition(ID, 0, 1, epoch=4))
    wait_until(lambda: views.last.leads == {ORDERS: 4}, 5, "the epoch from the log")


def test_unreadable_log_leaves_the_broker_as_the_source(
    writer: MetadataLogWriter, settings: KraftSettings, start: Start, views: ViewRecorder
) -> None:
    writer.append(written.frame(3, 9, b""))
    source = start(settings, FakeMetadataRequest([ORDERS]))
    assert views.wait_for([ORDERS]).leads == {ORDERS: UNKNOWN_EPOCH}
    assert source.failure() is None


def test_unreadable_log_without_a_broker_is_a_failure(
    writer: MetadataLogWriter, settings: KraftSettings, start: Start
) -> None:
    writer.append(written.frame(3, 9, b""))
    source = start(settings, None)
    wait_until(source.failure, 5, "the failure")
    assert isinstance(source.failure(), LeadershipError)
    assert "version 9 of PartitionRecord" in str(source.failure())


@pytest.mark.usefixtures("writer")
def test_answer_from_another_cluster_is_a_failure(
    settings: KraftSettings, start: Start, views: ViewRecorder
) -> None:
    source = start(settings, FakeMetadataRequest([ORDERS], "another"))
    wait_until(source.failure, 5, "the failure")
    assert isinstance(source.failure(), ConfigurationError)
    assert f"cluster another, but the log dirs belong to cluster {CLUSTER}" in str(source.failure())
    assert views.views == []


@pytest.mark.usefixtures("writer")
def test_unexpected_answer_fails_only_its_own_request(
    settings: KraftSettings, start: Start, views: ViewRecorder
) -> None:
    request = FakeMetadataRequest([ORDERS])
    request.fail(KeyError("partitions"))
    source = start(settings, request)
    what = "the Metadata request"
    wait_until(lambda: what in views.last.unreadable, 5, "the error to be told")
    assert views.last.unreadable[what].kind == "KeyError"
    request.fail(None)
    views.wait_for([ORDERS])
    wait_until(lambda: not views.last.unreadable, 5, "the error to be gone")
    assert source.failure() is None


@pytest.mark.usefixtures("writer")
def test_death_of_the_request_thread_is_a_failure(settings: KraftSettings, start: Start) -> None:
    request = FakeMetadataRequest([ORDERS])
    error = SystemExit("for the test")
    request.fail(error)
    source = start(settings, request)
    wait_until(lambda: source.failure() is error, 5, "the failure")
    assert request.closed


def test_configuration_without_a_source_is_refused(settings: KraftSettings, start: Start) -> None:
    with pytest.raises(ConfigurationError, match="needs the metadata log, bootstrap servers"):
        start(replace(settings, metadata_log_dir=None), None)


def test_missing_metadata_log_dir_is_refused(
    tmp_path: Path, settings: KraftSettings, start: Start
) -> None:
    with pytest.raises(ConfigurationError, match=r"metadata log dir .*/gone is not a directory"):
        start(replace(settings, metadata_log_dir=tmp_path / "gone"), None)


@pytest.mark.usefixtures("writer")
def test_stop_does_not_wait_for_a_hung_broker(settings: KraftSettings, start: Start) -> None:
    request = FakeMetadataRequest([ORDERS])
    request.hold()
    source = start(settings, request)
    wait_until(lambda: request.asked == 1, 5, "the first request")
    source.stop()
    assert not request.closed
    request.hold(held=False)
    wait_until(lambda: request.closed, 5, "the connection to be let go")

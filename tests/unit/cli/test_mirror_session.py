"""The end of a copy: the result from the last progress and the last group offsets."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from sidetier.cli.mirror.view import CopyResult
from sidetier.mirror import spark_driver
from sidetier.mirror.copy.engine import Copy, Counts, Limits
from sidetier.mirror.copy.run import CopyReport, run_engine
from sidetier.mirror.spark_copy import PartitionTask, SparkCopy, TaskOutcome
from sidetier.mirror.topics.rules import MirrorNames
from sidetier.segments.errors import BrokerUnavailableError, MirrorError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.wire.cluster import Cluster
from sidetier.wire.protocol import ApiKey
from sidetier.wire.settings import ClientSettings
from tests.harness.fake_broker import (
    FakeBroker,
    Received,
    committed_by,
    coordinated_by,
    fake_broker,
    led_by,
)

TP = TopicPartition("copy", 0)
WAIT = 30.0


class Sync:
    """A group sync whose offsets cannot be committed."""

    counts = None
    groups_problem = "the source is away"

    def __init__(self) -> None:
        self.was_urgent = False

    def run(self, ended: threading.Event, abandon: threading.Event) -> None:
        ended.wait(WAIT)
        self.was_urgent = abandon.is_set()


def ran(work: Callable[[], None], sync: Any, stop: threading.Event) -> CopyReport:  # noqa: ANN401 -- a stub
    engine: Any = SimpleNamespace(run=work, counts=Counts())
    return run_engine(engine, stop, offset_sync=sync)


def test_groups_not_committed_at_the_end_are_reported() -> None:
    sync = Sync()
    result = CopyResult(ran(lambda: None, sync, threading.Event()))
    assert not sync.was_urgent
    assert result.exit_code == 3
    assert result.as_json()["groups_problem"] == "the source is away"
    assert any("the source is away" in (table.footer or "") for table in result.as_tables())


def test_stopped_mirror_does_not_wait_for_groups() -> None:
    sync, stop = Sync(), threading.Event()

    def is_stopped() -> None:
        stop.set()

    report = ran(is_stopped, sync, stop)
    assert sync.was_urgent
    assert report.is_complete


def test_failed_engine_does_not_wait_for_groups() -> None:
    def fails() -> None:
        raise BrokerUnavailableError("gone")

    sync = Sync()
    with pytest.raises(BrokerUnavailableError):
        ran(fails, sync, threading.Event())
    assert sync.was_urgent


@contextmanager
def no_spark(*_: object, **__: object) -> Iterator[Any]:
    context = SimpleNamespace(defaultParallelism=2, setJobGroup=lambda *_, **__: None)
    yield SimpleNamespace(sparkContext=context)


def task(number: int) -> PartitionTask:
    copy = Copy(TopicPartition("orders", number), TopicPartition("copy", number))
    return PartitionTask(copy, Offset(0), Offset(50), is_begun=True)


class Group:
    """A group coordinator whose last commit stays under way for some requests."""

    def __init__(self, broker: FakeBroker, committed: Mapping[int, int]) -> None:
        self.committed = committed
        self.before = dict.fromkeys(committed, 30)
        self.unstable = 0
        broker.answers |= {
            ApiKey.METADATA: lambda request: led_by(broker, request, TP),
            ApiKey.FIND_COORDINATOR: lambda request: coordinated_by(broker, request),
            ApiKey.OFFSET_FETCH: self.fetch,
        }

    def fetch(self, request: Received) -> bytes:
        if self.unstable:
            self.unstable -= 1
            if request.entity.require_stable:
                return committed_by(request, {}, ErrorCode.unstable_offset_commit)
            return committed_by(request, self.before)
        return committed_by(request, self.committed)


def ended(cluster: Cluster, planned: list[PartitionTask], with_task: int) -> CopyReport:
    """Result of a job whose tasks have all succeeded."""
    names = MirrorNames("dr")
    copy = SparkCopy(names, tuple(planned[:with_task]), Limits(), {"bootstrap.servers": "b:9092"})
    spark = spark_driver.SparkEngine(no_spark)
    return spark_driver.copy_on_spark(spark, copy, cluster, threading.Event(), planned=planned)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBroker]:
    monkeypatch.setattr(SparkCopy, "run", lambda *_: {0: TaskOutcome(Counts(records=20))})
    with fake_broker() as made:
        yield made


def test_commit_under_way_at_the_end_is_waited_for(broker: FakeBroker) -> None:
    Group(broker, {0: 50}).unstable = 2
    with Cluster(ClientSettings((broker.address,))) as cluster:
        result = ended(cluster, [task(0)], 1)
    assert result.counts.records == 20
    assert result.counts.lag_records == 0


def test_open_transaction_is_waited_for_only_for_a_limited_time(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_driver, "_STABLE_SECONDS", 0.5)
    Group(broker, {0: 50}).unstable = 1000
    with (
        Cluster(ClientSettings((broker.address,))) as cluster,
        pytest.raises(MirrorError, match=r"copy-0 is copied up to source offset 30 of 50"),
    ):
        ended(cluster, [task(0)], 1)


def test_finished_partition_is_verified_again_at_the_end(broker: FakeBroker) -> None:
    """Its topic was deleted on the target while other partitions were copied."""
    Group(broker, {0: 50})
    with (
        Cluster(ClientSettings((broker.address,))) as cluster,
        pytest.raises(MirrorError, match=r"copy-1 is .* its progress has disappeared"),
    ):
        ended(cluster, [task(0), task(1)], 1)

"""The driver of a copy on Spark: its tasks, and the partitions that they left incomplete."""

import pickle
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from sidetier.config.storage import StorageConfig
from sidetier.config.types import References, SecretRef, resolved
from sidetier.mirror.copy.engine import Copy, Counts, Limits, PartitionLag, summed
from sidetier.mirror.copy.source import SourceGap
from sidetier.mirror.spark_copy import (
    PartitionTask,
    SparkCopy,
    TaskArchive,
    TaskOutcome,
    plan_tasks,
    unfinished,
)
from sidetier.mirror.topics.rules import MirrorNames
from sidetier.segments.errors import ConfigurationError, MirrorError, SourceUnavailableError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.storage.local import LocalStorage
from sidetier.wire.requests import Membership
from tests.harness.encryption import FIRST, encrypting, encryption
from tests.harness.made_archive import MadeArchive, batches
from tests.harness.tailed_log import mixed_log

NAMES = MirrorNames("dr", "restore")


def task(number: int, end: int) -> PartitionTask:
    source = TopicPartition("orders", number)
    return PartitionTask(
        Copy(source, TopicPartition("copy", number), "note"), Offset(0), Offset(end)
    )


def test_unfinished_partitions_become_tasks_the_largest_first() -> None:
    tasks = [task(number, end) for number, end in enumerate((50, 500, 100, 900, 900, 0))]
    reached = {1: 490, 3: 900, 4: 1000}
    progress = {TopicPartition("copy", number): Offset(at) for number, at in reached.items()}
    assert plan_tasks(tasks, progress) == (tasks[2], tasks[0], tasks[1], tasks[5])


def test_incomplete_partitions_are_reported_with_the_reason() -> None:
    tasks = [task(0, 50), task(1, 60), task(2, 70), task(3, 80)]
    progress = {
        TopicPartition("copy", 0): Offset(50),
        TopicPartition("copy", 1): Offset(30),
        TopicPartition("copy", 3): Offset(90),
    }
    outcomes = {1: TaskOutcome(Counts(), "a gap"), 3: TaskOutcome(Counts())}
    assert unfinished(tasks, progress, outcomes) == [
        "copy-1 is copied up to source offset 30 of 60: a gap",
        "copy-2 is copied up to source offset 0 of 70",
    ]


def test_success_of_a_task_without_progress_does_not_count() -> None:
    """The progress on the target decides, not the outcome of the task."""
    assert unfinished([task(0, 50)], {}, {0: TaskOutcome(Counts(records=50))})


def test_a_complete_partition_whose_progress_has_disappeared_is_reported() -> None:
    whole = replace(task(0, 50), is_begun=True)
    [line] = unfinished([whole], {}, {})
    assert line.endswith("0 of 50: its progress has disappeared since the copy was planned")


def test_counts_of_several_attempts_are_added() -> None:
    gap = SourceGap(TopicPartition("orders", 0), Offset(5), Offset(9), "deleted")
    one = Counts(records=1, bytes=10, transactions=2, gaps=[gap], newest_latency=3.0)
    other = Counts(records=5, aborts=1, lags={gap.tp: PartitionLag(Offset(7))})
    both = summed([one, other])
    assert (both.records, both.bytes, both.transactions, both.aborts) == (6, 10, 2, 1)
    assert both.gaps == [gap]
    assert both.lags == other.lags


def test_transactional_id_of_a_partition_differs_from_any_workers() -> None:
    """A restore named `dr-a` has the ID of its process; one named `dr` has the ID of partition
    a-0.
    """
    target = TopicPartition("a", 0)
    assert MirrorNames("dr-a", "restore").transactional_id() != NAMES.partition_transactional_id(
        target
    )


def test_settings_that_are_sent_to_executors_have_no_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TARGET_PASSWORD", "hunter2")
    reference = SecretRef(env="TARGET_PASSWORD")
    target: References = {"bootstrap.servers": "b:9092", "sasl.password": reference}
    copy = SparkCopy(
        NAMES,
        (task(0, 50),),
        Limits(),
        target,
        source=target,
        archive=TaskArchive("lost", StorageConfig(url="s3://bucket/archive")),
        membership=Membership(3, "member", "worker"),
    )
    assert resolved(target)["sasl.password"] == "hunter2"
    sent = pickle.dumps(copy)
    assert b"hunter2" not in sent
    assert pickle.loads(sent) == copy  # noqa: S301 -- made in this test


def test_a_task_reads_encrypted_segments_with_keys_that_it_resolves(tmp_path: Path) -> None:
    """A restore and a mirror on Spark open the archive of their tasks in this way."""
    layout, tp = ArchiveLayout("lost", 5), TopicPartition("orders", 0)
    store = encrypting(LocalStorage(tmp_path / "store"))
    MadeArchive(store, layout, tp).segment(0, batches(0, 20))
    storage = StorageConfig.model_validate(
        {"url": f"file://{tmp_path}/store", "encryption": encryption(tmp_path, None, topics=())},
        strict=False,
    )
    copy = SparkCopy(NAMES, (task(0, 20),), Limits(), {}, archive=TaskArchive("lost", storage))
    sent = pickle.dumps(copy)
    assert FIRST.secret not in sent
    assert (tmp_path / "k1").read_bytes().strip() not in sent
    with ExitStack() as stack:
        archive = pickle.loads(sent)._open_archive(stack)  # noqa: S301 -- made in this test
        key = layout.object_key(tp, BaseOffset(0), FileKind.LOG)
        assert archive.store("orders").get_object(key).data == store.get_object(key).data
        (tmp_path / "k1").unlink()
        with pytest.raises(ConfigurationError, match=f"file {tmp_path}/k1 cannot be read"):
            copy._open_archive(stack)


@pytest.mark.parametrize("with_tail", [False, True])
def test_a_task_reads_tail_packs(tmp_path: Path, *, with_tail: bool) -> None:
    layout, tp = ArchiveLayout("lost", 5), TopicPartition("orders", 0)
    log = mixed_log(LocalStorage(tmp_path / "store"))
    log.layout = layout
    log.archived(0, 5, 12)
    log.pack(1, 0, (12, log.next_offset))
    storage = StorageConfig.model_validate({"url": f"file://{tmp_path}/store"}, strict=False)
    place = TaskArchive("lost", storage, abort_open=True, with_tail=with_tail)
    copy = SparkCopy(NAMES, (task(0, 12),), Limits(), {}, archive=place)
    with ExitStack() as stack:
        stored = copy._stored(copy.tasks[0], copy._open_archive(stack), reads_brokers=False)
        assert stored is not None
        assert stored.last_stable_offset(tp) == (log.next_offset if with_tail else 12)


def test_a_permanent_error_ends_only_its_partition() -> None:
    """Raised, Spark would retry it and then end the tasks of all partitions."""
    lacking = {"env": "NOT_SET_ON_THIS_EXECUTOR"}
    s3 = {"access_key_id": lacking, "secret_access_key": lacking}
    storage = StorageConfig.model_validate({"url": "s3://bucket/archive", "s3": s3})
    copy = SparkCopy(
        NAMES,
        (task(0, 50), task(1, 60)),
        Limits(),
        {"bootstrap.servers": "b:9092"},
        archive=TaskArchive("lost", storage),
    )
    numbers = pa.RecordBatch.from_pydict({"id": [0, 1]})
    rows = [row for batch in copy([numbers]) for row in batch.to_pylist()]
    assert [row["number"] for row in rows] == [0, 1]
    assert all("NOT_SET_ON_THIS_EXECUTOR is not set" in row["problem"] for row in rows)


def test_unavailable_source_is_retried_by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = pa.RecordBatch.from_pydict({"id": [0]})
    copy = SparkCopy(NAMES, (task(0, 50),), Limits(), {"bootstrap.servers": "b:9092"})
    errors = iter([SourceUnavailableError("away"), MirrorError("a gap")])

    def fails(*_: object) -> None:
        raise next(errors)

    monkeypatch.setattr(SparkCopy, "_carry_out", fails)
    with pytest.raises(SourceUnavailableError):
        list(copy([numbers]))
    [batch] = copy([numbers])
    assert batch.to_pylist()[0]["problem"] == "a gap"

"""`sidetier mirror --engine spark`: killed executors, parallel attempts, another worker."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
import yaml
from confluent_kafka import Producer

from devtools.sandbox.kafka import KraftCluster
from devtools.sandbox.spark import SPARK_4
from sidetier.mirror.copy.engine import Copy, Limits
from sidetier.mirror.copy.workers import KafkaWorkerGroup, group_kind
from sidetier.mirror.spark_copy import PartitionTask, SparkCopy
from sidetier.mirror.topics.rules import MirrorNames
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.wire.cluster import Cluster
from sidetier.wire.requests import (
    CommittedOffset,
    add_offsets_to_txn,
    commit_offsets_in_txn,
    committed_offsets,
    init_producer_id,
    list_transactions,
)
from sidetier.wire.settings import ClientSettings
from tests.harness.archive_objects import BucketObjects
from tests.harness.encryption import count_logs, encryption
from tests.harness.killed_tasks import (
    KilledAndFenced,
    both_have_committed,
    middle_segments,
    patient_settings,
)
from tests.harness.local_segments import small_segments
from tests.harness.mirror_runs import WAIT, command, consumed, mirror
from tests.harness.s3 import S3Bucket
from tests.harness.s3_proxy import S3Proxy
from tests.harness.sidecar import merged
from tests.harness.spark import SparkDriver, spark_driver
from tests.harness.spark_cli import command_line
from tests.harness.spark_cluster import (
    executor_logs,
    speculating,
    speculative_attempts,
)
from tests.harness.topics import create_topic, delete_records
from tests.harness.waiting import wait_until
from tests.integration.mirror.test_restore import Commands

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]
ON_SPARK = ("--engine", "spark", "--until-caught-up", "--transaction-bytes", "5KiB")
SLOWLY = ("--max-rate", "30KiB")
"""The rate of both tasks together."""
LONG = 240.0


def write(servers: str, topic: str, transactions: int) -> None:
    """Write the records, a fifth of them to partition 0; every third transaction is aborted."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic, "linger.ms": 5})
    producer.init_transactions(WAIT)
    for number in range(transactions):
        producer.begin_transaction()
        for row in range(50):
            value = b"%d-%d " % (number, row) + b"." * 100
            producer.produce(topic, value, partition=min(row % 5, 1))
        producer.flush(WAIT)
        if number % 3 == 0:
            producer.abort_transaction(WAIT)
        else:
            producer.commit_transaction(WAIT)


def progress(target: Cluster, name: str) -> Mapping[TopicPartition, Any]:
    return committed_offsets(target, MirrorNames(name).group, require_stable=False)


def client(servers: str) -> Cluster:
    return Cluster(ClientSettings.from_properties({"bootstrap.servers": servers}))


def on_driver(driver: SparkDriver, line: list[str]) -> int:
    """Run the command in the driver's process; `line` comes from `mirror_runs.command`."""
    return int(driver.call(command_line, line=line[3:]))


def test_each_record_is_copied_once_whichever_attempt_ends(
    kraft43: KraftCluster, target: str, s3_bucket: S3Bucket, topic: str, tmp_path: Path
) -> None:
    source = kraft43.bootstrap_servers
    create_topic(source, topic, partitions=2, configs=small_segments(size=10_000, retention_ms=-1))
    config = tmp_path / "sidetier.yaml"
    with (
        S3Proxy(s3_bucket.server.port) as proxy,
        speculating(tmp_path / "spark") as (driver, cluster),
    ):
        settings = patient_settings(kraft43, s3_bucket, proxy.url, tmp_path)
        encrypted = {"storage": {"encryption": encryption(tmp_path)}}
        for chosen in (settings, merged(settings, encrypted)):
            write(source, topic, 60)
            config.write_text(yaml.safe_dump(chosen))
            Commands(config, os.environ).run("backfill", "--topic", topic)
        assert min(count_logs(BucketObjects(s3_bucket))) > 1
        expected = consumed(source, topic)
        # The tasks read segments of the archive, and then the rest from the brokers.
        middle = middle_segments(s3_bucket, topic)
        for number, key in enumerate(middle):
            delete_records(source, topic, number, int(Path(key).stem) + 1)
        day = KilledAndFenced(middle, cluster, target, MirrorNames(topic).group)
        proxy.misbehave(day.rule)
        line = command(topic, topic, source, target, "--config", str(config), *ON_SPARK)
        assert on_driver(driver, line) == 0, driver.log()
        assert day.killed.is_set()
        assert day.asked_again.is_set()
        wait_until(lambda: speculative_attempts(cluster), 60, "the end of the other attempt")
        assert "mirror.attempt_stands_by" in executor_logs(cluster)
        assert consumed(target, topic) == expected

        # A complete partition needs no task; later records are copied by one process.
        assert on_driver(driver, line) == 0, driver.log()
        write(source, topic, 6)
        local = command(topic, topic, source, target, "--config", str(config), "--until-caught-up")
        code, copied, errors = mirror(local)
        assert code == 0, errors
        assert copied["records"] == 200
        later = consumed(source, topic)
        assert consumed(target, topic) == {
            0: expected[0] + later[0][-40:],
            1: expected[1] + later[1][-160:],
        }


def test_starting_worker_takes_over_from_the_tasks(
    kraft43: KraftCluster, target: str, topic: str, tmp_path: Path
) -> None:
    source = kraft43.bootstrap_servers
    # A broker answers with records of one segment: the tasks commit several times.
    create_topic(source, topic, partitions=2, configs=small_segments(size=20_000, retention_ms=-1))
    write(source, topic, 120)
    line = command(topic, topic, source, target)
    log = tmp_path / "worker.log"
    started: list[subprocess.Popen[bytes]] = []

    with (
        client(target) as watching,
        spark_driver(SPARK_4, tmp_path / "driver") as driver,
        log.open("wb") as errors,
    ):

        def start_once_both_have_begun() -> None:
            group = MirrorNames(topic).group
            wait_until(lambda: both_have_committed(watching, group), LONG, "a commit of each task")
            started.append(subprocess.Popen([*line, "--worker", "other"], stderr=errors))

        starter = threading.Thread(target=start_once_both_have_begun)
        starter.start()
        try:
            code = on_driver(driver, [*line, *ON_SPARK, *SLOWLY])
            starter.join()
            assert code == 1, driver.log()
            assert f"another worker of mirror {topic} has started" in driver.log()
            expected = consumed(source, topic)
            wait_until(lambda: consumed(target, topic) == expected, LONG, "the worker's copies", 1)

            assert on_driver(driver, [*line, *ON_SPARK]) == 2
            assert f"mirror {topic} has other running workers (1)" in driver.log()

            others = command(topic, f"{topic}|another", source, target, "--worker", "third")
            assert on_driver(driver, [*others, *ON_SPARK]) == 2
            assert "run with other --topic, --exclude or --rename" in driver.log()
            code, _, said = mirror([*others, "--until-caught-up"])
            assert code == 2, said
            assert "run with other --topic, --exclude or --rename" in said
            # It continues with its share, which is everything again.
            write(source, topic, 6)
            expected = consumed(source, topic)
            wait_until(lambda: consumed(target, topic) == expected, LONG, "the later records", 1)
        finally:
            starter.join()
            for worker in started:
                worker.send_signal(signal.SIGTERM)
    assert [worker.wait(WAIT) for worker in started] == [0], log.read_text()


def of_task(tp: TopicPartition, name: str) -> str:
    return MirrorNames(name).partition_transactional_id(tp)


def open_transactions(target: Cluster) -> set[str]:
    return {item.transactional_id for item in list_transactions(target, states=["Ongoing"])}


def test_worker_does_not_wait_for_open_transactions_of_killed_tasks(
    kraft43: KraftCluster, target: str, topic: str
) -> None:
    source = kraft43.bootstrap_servers
    create_topic(source, topic, partitions=1)
    producer = Producer({"bootstrap.servers": source})
    for row in range(10):
        producer.produce(topic, b"%d" % row, partition=0)
    producer.flush(WAIT)
    line = command(topic, topic, source, target, "--until-caught-up")
    code, copied, errors = mirror(line)
    assert (code, copied["records"]) == (0, 10), errors
    tp, names = TopicPartition(topic, 0), MirrorNames(topic)
    with client(target) as watching, client(target) as cluster:
        # A task was killed between TxnOffsetCommit and EndTxn; the timeout is the brokers' longest.
        producer_of_task = init_producer_id(cluster, of_task(tp, topic), transaction_timeout=900)
        add_offsets_to_txn(cluster, of_task(tp, topic), producer_of_task, names.group)
        at = {tp: CommittedOffset(Offset(5), metadata=progress(watching, topic)[tp].metadata)}
        commit_offsets_in_txn(cluster, of_task(tp, topic), producer_of_task, names.group, at)
        assert of_task(tp, topic) in open_transactions(watching)
        producer.produce(topic, b"10", partition=0)
        producer.flush(WAIT)
        code, copied, errors = mirror(line)
        assert (code, copied["records"]) == (0, 1), errors
        assert of_task(tp, topic) not in open_transactions(watching)
    assert consumed(target, topic) == consumed(source, topic)


def outcome_of(copy: SparkCopy) -> str | None:
    """The error that ends its only task, run in this process; None if it has copied everything."""
    [batch] = copy([pa.RecordBatch.from_pydict({"id": [0]})])
    problem = batch.to_pylist()[0]["problem"]
    return None if problem is None else str(problem)


def test_task_refuses_a_recreated_topic_and_a_former_workers_membership(
    kraft43: KraftCluster, target: str, topic: str
) -> None:
    source = kraft43.bootstrap_servers
    for servers in (source, target):
        create_topic(servers, topic, partitions=1)
        create_topic(servers, f"sidetier-mirror-{topic}-offsets", partitions=1)
    producer = Producer({"bootstrap.servers": source})
    for row in range(10):
        producer.produce(topic, b"%d" % row, partition=0)
    producer.flush(WAIT)
    with client(source) as cluster:
        now = cluster.metadata([topic]).topics[topic].topic_id
    tp = TopicPartition(topic, 0)
    task = PartitionTask(Copy(tp, tp, source_id=now), Offset(0), Offset(10))
    copy = SparkCopy(
        MirrorNames(topic),
        (task,),
        Limits(),
        {"bootstrap.servers": target},
        source={"bootstrap.servers": source},
    )

    former = replace(task, copy=replace(task.copy, source_id=uuid4()))
    said = outcome_of(replace(copy, tasks=(former,)))
    assert f"topic {topic} was deleted and created again on the source" in (said or "")
    assert consumed(target, topic) == {}
    said = outcome_of(replace(copy, tasks=(replace(task, is_begun=True),)))
    assert "deleted and created again on the target" in (said or "")
    assert consumed(target, topic) == {}

    settings = ClientSettings.from_properties({"bootstrap.servers": target})
    workers = [
        KafkaWorkerGroup(settings, copy.names.group, name, group_kind(None)) for name in ("a", "b")
    ]
    with closing(workers[0]), closing(workers[1]):
        workers[0].join()
        of_driver = replace(copy, membership=workers[0].membership())
        joining = threading.Thread(target=workers[1].join)
        joining.start()
        wait_until(workers[0].must_join_again, WAIT, "the other worker")
        workers[0].join()
        joining.join()
        began = time.monotonic()
        said = outcome_of(of_driver)
        assert time.monotonic() - began < Limits().patience / 2
        assert "the driver is no longer a member of the progress group" in (said or "")
        assert "ILLEGAL_GENERATION" in (said or "")
        with client(target) as watching:
            assert progress(watching, topic) == {}
            # Nothing has to wait for the transaction that the task had begun.
            assert of_task(tp, topic) not in open_transactions(watching)
        assert consumed(target, topic) == {}
        # Records deleted before the copy begins are no gap.
        delete_records(source, topic, 0, 4)
        assert outcome_of(replace(copy, membership=workers[0].membership())) is None
    assert consumed(target, topic) == consumed(source, topic)

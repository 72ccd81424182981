"""`sidetier mirror` between two real clusters: each record once and in order under all failures."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from devtools.sandbox.kafka import KraftCluster
from tests.harness.archive_objects import file_store, s3_store
from tests.harness.encryption import count_logs, encryption
from tests.harness.local_segments import small_segments
from tests.harness.markdown import blocks, text_of
from tests.harness.mirror_runs import (
    WAIT,
    command,
    consumed,
    mirror,
    values_from,
    write_until,
)
from tests.harness.s3 import S3Bucket
from tests.harness.sidecar import beside, merged
from tests.harness.topics import admin_of, create_topic
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]
KEPT = {"retention.ms": -1}
START_MS = 1_700_000_000_000
KILL_SECONDS = float(os.environ.get("MIRROR_KILL_SECONDS", "35"))
KILL_SEED = int(os.environ.get("MIRROR_KILL_SEED", "7"))


def produce_in_transactions(servers: str, topic: str, transactions: int) -> None:
    """Produce transactions; every third is aborted."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic, "linger.ms": 5})
    producer.init_transactions(WAIT)
    for number in range(transactions):
        producer.begin_transaction()
        for row in range(40):
            value = b"%d-%d" % (number, row)
            producer.produce(topic, value, partition=row % 2, timestamp=START_MS + number)
        producer.flush(WAIT)
        if number % 3 == 0:
            producer.abort_transaction(WAIT)
        else:
            producer.commit_transaction(WAIT)


def test_copies_are_equal_and_groups_continue_at_their_offsets(
    kraft43: KraftCluster, target: str, topic: str
) -> None:
    source = kraft43.bootstrap_servers
    names = {kind: f"{topic}.{kind}" for kind in ("plain", "lz4", "transactional")}
    for name in names.values():
        create_topic(source, name, partitions=2, configs=KEPT)
    for kind, codec in (("plain", "none"), ("lz4", "lz4")):
        producer = Producer({"bootstrap.servers": source, "compression.type": codec})
        for row in range(5000):
            producer.produce(
                names[kind],
                b"value %d" % row * 5,
                key=b"key %d" % (row % 7),
                headers=[("row", b"%d" % row), ("empty", None)],
                partition=row % 2,
                timestamp=START_MS + row,
            )
        producer.flush(WAIT)
    produce_in_transactions(source, names["transactional"], 12)
    line = command(topic, f"{topic}.*", source, target, "--rename", r"(.*)=copy.\1")

    code, _, errors = mirror(line, "--until-caught-up")
    assert code == 0, errors
    for name in names.values():
        assert consumed(target, f"copy.{name}") == consumed(source, name)
    code, again, errors = mirror(line, "--until-caught-up")
    assert (code, again["records"]) == (0, 0), errors

    # A group that has read up to the middle of a transactional partition.
    group = f"group-{topic}"
    reader = Consumer({"bootstrap.servers": source, "group.id": group})
    position = 100
    reader.commit(offsets=[KafkaPartition(names["transactional"], 0, position)], asynchronous=False)
    reader.close()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "sidetier.cli", "mirror", "translate-offsets"),
            *("--name", topic, "--group", group, "-o", "json"),
            *("--source", f"bootstrap.servers={source}"),
            *("--target", f"bootstrap.servers={target}"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT,
    )
    assert done.returncode == 0, done.stderr
    (translated,) = json.loads(done.stdout)["groups"]
    assert [row["outcome"] for row in translated["partitions"]] == ["set"]
    copied = f"copy.{names['transactional']}"
    admin = admin_of(target)
    asked = ConsumerGroupTopicPartitions(group, [KafkaPartition(copied, 0)])
    result = admin.list_consumer_group_offsets([asked])[group].result(WAIT).topic_partitions[0]
    assert values_from(target, copied, result.offset) == values_from(
        source, names["transactional"], position
    )


@pytest.mark.timeout(KILL_SECONDS * 4 + 300)
def test_worker_killed_again_and_again_loses_and_repeats_nothing(
    kraft43: KraftCluster, target: str, topic: str
) -> None:
    source = kraft43.bootstrap_servers
    create_topic(source, topic, partitions=3, configs=KEPT)
    stop = threading.Event()
    failures: list[BaseException] = []
    writer = threading.Thread(target=write_until, args=(stop, source, topic, failures))
    writer.start()
    line = command(topic, topic, source, target)
    choices = random.Random(KILL_SEED)
    end = time.monotonic() + KILL_SECONDS
    while time.monotonic() < end:
        with subprocess.Popen(line, stderr=subprocess.DEVNULL) as worker:
            stop.wait(choices.uniform(2, 6))
            worker.kill()
    stop.set()
    writer.join(WAIT)
    assert failures == []
    code, _, errors = mirror(line, "--until-caught-up")
    assert code == 0, errors
    expected = consumed(source, topic)
    assert sum(map(len, expected.values())) > 1000
    assert consumed(target, topic) == expected


def test_second_process_of_a_worker_fences_the_first(
    kraft43: KraftCluster, target: str, topic: str
) -> None:
    source = kraft43.bootstrap_servers
    create_topic(source, topic, configs=KEPT)
    producer = Producer({"bootstrap.servers": source})
    line = command(topic, topic, source, target)
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as first:
        producer.produce(topic, b"first")
        producer.flush(WAIT)
        wait_until(
            lambda: (
                topic in admin_of(target).list_topics(timeout=WAIT).topics
                and bool(consumed(target, topic))
            ),
            WAIT,
            "the first record on the target",
        )
        with subprocess.Popen(line, stderr=subprocess.DEVNULL) as second:
            written = itertools.count()
            wait_until(
                lambda: has_ended_behind(first, producer, topic, next(written)),
                WAIT,
                "the end of the first process",
            )
            second.send_signal(signal.SIGTERM)
            second.wait(WAIT)
        assert first.stderr is not None
        assert "another process with the transactional id" in first.stderr.read()
        assert first.returncode == 1
    code, _, errors = mirror(line, "--until-caught-up")
    assert code == 0, errors
    assert consumed(target, topic) == consumed(source, topic)


def write_one(producer: Producer, topic: str, number: int) -> None:
    producer.produce(topic, b"%d" % number)
    producer.flush(WAIT)


def has_ended_behind(
    process: subprocess.Popen[str], producer: Producer, topic: str, number: int
) -> bool:
    """Return whether the process has ended; give it another record to copy."""
    write_one(producer, topic, number)
    return process.poll() is not None


def test_gap_is_never_silent(kraft43: KraftCluster, target: str, topic: str) -> None:
    source = kraft43.bootstrap_servers
    create_topic(source, topic, configs=KEPT)
    producer = Producer({"bootstrap.servers": source})
    for number in range(20):
        write_one(producer, topic, number)
    line = command(topic, topic, source, target)
    assert mirror(line, "--until-caught-up")[0] == 0
    for number in range(20, 40):
        write_one(producer, topic, number)
    admin = admin_of(source)
    for future in admin.delete_records([KafkaPartition(topic, 0, 30)]).values():
        future.result(WAIT)
    code, result, errors = mirror(line, "--until-caught-up")
    assert code == 3
    (reason,) = result["left_out_partitions"].values()
    assert f"{topic}-0: offsets [20, 30) are deleted on the brokers" in reason
    code, result, errors = mirror(line, "--until-caught-up", "--on-gap", "skip")
    assert code == 3, errors
    assert [(gap["start"], gap["end"]) for gap in result["gaps"]] == [(20, 30)]
    values = [record[1] for record in consumed(target, topic)[0]]
    assert values == [b"%d" % number for number in (*range(20), *range(30, 40))]


def backfill(file: Path, topic: str) -> dict[int, int]:
    """Archive a topic with this configuration; return the archive end offset of each partition."""
    archived = subprocess.run(
        [
            *(sys.executable, "-m", "sidetier.cli", "--config", str(file)),
            *("backfill", "--topic", topic, "-o", "json"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT,
    )
    assert archived.returncode == 0, archived.stderr
    rows = json.loads(archived.stdout)["partitions"]
    return {row["partition"]: row["next_offset"] for row in rows}


def test_records_that_the_brokers_have_deleted_come_from_the_archive(
    kraft43: KraftCluster, target: str, topic: str, tmp_path: Path
) -> None:
    """The first records are copied, the next ones deleted on the brokers; the mirror continues from
    an archive whose second half is encrypted.
    """
    source = kraft43.bootstrap_servers
    create_topic(source, topic, partitions=2, configs=small_segments(size=10_000) | KEPT)
    store = file_store(tmp_path / "store")
    file = tmp_path / "sidetier.yaml"
    settings = beside(kraft43, store)
    file.write_text(yaml.safe_dump(settings))
    line = command(topic, topic, source, target, "--config", str(file))
    produce_in_transactions(source, topic, 4)
    assert mirror(line, "--until-caught-up")[0] == 0
    produce_in_transactions(source, topic, 30)
    backfill(file, topic)
    encrypted = {"storage": {"encryption": encryption(tmp_path)}}
    file.write_text(yaml.safe_dump(merged(settings, encrypted)))
    produce_in_transactions(source, topic, 30)
    ends = backfill(file, topic)
    expected = consumed(source, topic)
    assert min(count_logs(store.objects)) > 1
    assert min(ends.values()) > 300, "too little is archived for the test"
    below = [KafkaPartition(topic, number, end - 50) for number, end in ends.items()]
    admin = admin_of(source)  # kept while its futures are waited for
    for future in admin.delete_records(below).values():
        future.result(WAIT)

    code, _, errors = mirror(line, "--until-caught-up", "--no-archive")
    assert code == 3
    assert "no archive of them is configured" in errors
    code, result, errors = mirror(line, "--until-caught-up")
    assert (code, result["gaps"]) == (0, []), errors
    assert consumed(target, topic) == expected


def test_programs_of_the_python_page_archive_check_and_copy_a_topic(
    kraft43: KraftCluster,
    target: str,
    s3_bucket: S3Bucket,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = kraft43.bootstrap_servers
    create_topic(source, topic, partitions=2, configs=small_segments(size=10_000) | KEPT)
    produce_in_transactions(source, topic, 30)
    store = s3_store(s3_bucket)
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    kept = {"topics": [topic], "bytes": "10KiB"}
    retention = {"retention": {"store": [kept], "local": kept | {"bytes": 0}}}
    Path(tmp_path / "sidetier.yaml").write_text(
        yaml.safe_dump(merged(beside(kraft43, store), retention))
    )
    monkeypatch.chdir(tmp_path)
    addresses = {"source.example:9092": source, "target.example:9092": target}
    values: dict[str, dict[str, Any]] = {}
    for block in blocks(text_of(Path("docs/python-api.md")), "python"):
        text = block.text.replace("orders", topic)
        for name, address in addresses.items():
            text = text.replace(name, address)
        variables: dict[str, Any] = {}
        exec(compile(text, "docs/python-api.md", "exec"), variables)  # noqa: S102 -- our own page
        result = variables["report"] if "report" in variables else variables["reading"]
        values[type(result).__name__] = variables
    assert list(values) == [
        "BackfillReport",
        "VerifyReport",
        "RetentionReport",
        "TrimReport",
        "TopicReading",
        "FilesReport",
        "RestoreReport",
        "CopyReport",
    ]
    assert values["BackfillReport"]["plan"].segments >= 2
    assert not values["BackfillReport"]["report"].findings
    assert values["VerifyReport"]["report"].totals.checked_segments >= 2
    assert values["VerifyReport"]["problems"] == []
    assert values["RetentionReport"]["report"].segments > 0
    assert values["TrimReport"]["report"].trims
    assert values["TopicReading"]["reading"].records > 0
    assert not values["FilesReport"]["report"].has_findings
    assert values["RestoreReport"]["report"].is_complete
    report = values["CopyReport"]["report"]
    assert (report.is_complete, report.counts.lag_records) == (True, 0)
    assert consumed(target, topic) == consumed(source, topic)

"""`sidetier restore --engine spark`: executors are killed and tasks run twice; each record arrives
once.
"""

import os
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from devtools.sandbox.kafka import KraftCluster
from devtools.sandbox.s3server import S3Server
from sidetier.mirror.copy.target import KafkaTarget
from sidetier.segments.errors import KafkaApiError, ProducerFencedError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.wire.cluster import Cluster
from sidetier.wire.requests import CommittedOffset
from sidetier.wire.settings import ClientSettings
from tests.harness.archive_objects import BucketObjects
from tests.harness.encryption import count_logs, encryption
from tests.harness.killed_tasks import KilledAndFenced, middle_segments, patient_settings
from tests.harness.local_segments import small_segments
from tests.harness.mirror_runs import consumed_at
from tests.harness.s3 import S3Bucket
from tests.harness.s3_proxy import S3Proxy
from tests.harness.sidecar import merged
from tests.harness.spark_cli import command_line
from tests.harness.spark_cluster import (
    executor_logs,
    speculating,
    speculative_attempts,
)
from tests.harness.topics import create_topic
from tests.harness.waiting import wait_until
from tests.integration.mirror.test_restore import (
    Commands,
    contents,
    write_transactions,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]


def test_each_record_is_restored_once_whichever_attempt_ends(
    kraft43: KraftCluster, s3_bucket: S3Bucket, s3_server: S3Server, topic: str, tmp_path: Path
) -> None:
    servers = kraft43.bootstrap_servers
    create_topic(servers, topic, partitions=2, configs=small_segments(size=10_000, retention_ms=-1))
    with S3Proxy(s3_server.port) as proxy, speculating(tmp_path / "spark") as (driver, cluster):
        file = tmp_path / "sidetier.yaml"
        commands = Commands(file, os.environ)
        settings = patient_settings(kraft43, s3_bucket, proxy.url, tmp_path)
        encrypted = {"storage": {"encryption": encryption(tmp_path)}}
        for chosen in (settings, merged(settings, encrypted)):
            write_transactions(servers, topic, 30)
            file.write_text(yaml.safe_dump(chosen))
            commands.run("backfill", "--topic", topic)
        assert min(count_logs(BucketObjects(s3_bucket))) > 1
        source = consumed_at(servers, topic)
        copy = f"copy.{topic}"
        restore = ("--topic", topic, "--open-transactions", "abort")
        whole = (*restore, "--name", topic, "--rename", f"{topic}={copy}")
        # The archive may end within a transaction, which then counts as aborted.
        planned, _ = commands.run(
            "restore", *whole, "--dry-run", "--open-transactions", "leave-out"
        )
        ends = {item["partition"]: item["end"] for item in planned["partitions"]}

        day = KilledAndFenced(
            middle_segments(s3_bucket, topic),
            cluster,
            servers,
            f"sidetier-restore-{topic}",
        )
        proxy.misbehave(day.rule)
        line = ["restore", "--config", str(file), *whole, "--transaction-bytes", "5KiB"]
        code = driver.call(command_line, line=[*line, "--engine", "spark"])
        assert code == 0, driver.log()
        assert day.killed.is_set()
        assert day.asked_again.is_set()
        wait_until(lambda: speculative_attempts(cluster), 60, "the end of the other attempt")
        expected = {number: contents(source, 0, end)[number] for number, end in ends.items()}
        result = contents(consumed_at(servers, copy))
        assert result == expected, {number: len(seen) for number, seen in result.items()}
        events = "".join(
            log.read_text()
            for log in Path(cluster["spark.eventLog.dir"].removeprefix("file://")).iterdir()
        )
        shown = events + driver.log() + executor_logs(cluster)
        assert s3_server.secret_key not in shown
        assert (tmp_path / "k1").read_text().strip() not in shown

        # A complete partition needs no task; one process continues after the tasks.
        assert driver.call(command_line, line=[*line, "--engine", "spark"]) == 0, driver.log()
        again, _ = commands.run("restore", *whole)
        assert (again["records"], again["transactions"]) == (0, 0)
        assert all(item["verified"]["problems"] == [] for item in again["partitions"])


def test_task_and_process_fence_each_other(kraft43: KraftCluster, topic: str) -> None:
    """They have different transactional IDs and write the same partition."""
    servers = kraft43.bootstrap_servers
    create_topic(servers, topic, partitions=1)
    settings = ClientSettings.from_properties({"bootstrap.servers": servers})
    progress = {TopicPartition(topic, 0): CommittedOffset(Offset(7))}

    def target(own: str, rival: str) -> KafkaTarget:
        return KafkaTarget(
            Cluster(settings), topic, f"{topic}{own}", rivals=lambda: [topic + rival]
        )

    with (
        closing(target(":0", "-0")) as task,
        closing(target("-0", ":0")) as process,
        closing(target(":0", "-0")) as other_task,
    ):
        task.start()
        for former, later in ((task, process), (process, other_task)):
            former.commit(progress)
            later.start()
            with pytest.raises(KafkaApiError):
                former.commit(progress)
            with pytest.raises(ProducerFencedError):
                former.start()

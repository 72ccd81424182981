"""The consumer group example, with a real broker and a real S3 server."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from devtools.sandbox.kafka import KraftCluster
from tests.harness.archive_check import wait_until_stored
from tests.harness.archive_objects import s3_store
from tests.harness.examples import command
from tests.harness.ledger import Ledger
from tests.harness.local_segments import closed_end, small_segments
from tests.harness.s3 import S3Bucket
from tests.harness.sidecar import Sidecar, beside
from tests.harness.topics import create_topic, delete_records

pytestmark = pytest.mark.integration

RECORDS = 300


def test_group_reads_records_deleted_in_kafka(
    kraft43: KraftCluster, topic: str, s3_bucket: S3Bucket, tmp_path: Path
) -> None:
    bootstrap = kraft43.bootstrap_servers
    create_topic(bootstrap, topic, configs=small_segments())
    Ledger().produce(bootstrap, topic, RECORDS)
    end = closed_end(kraft43.log_dirs(1)[0] / f"{topic}-0")
    store = s3_store(s3_bucket)
    with Sidecar(tmp_path / "sidecar", beside(kraft43, store, topics=[topic]), store) as sidecar:
        wait_until_stored(store.objects, topic, 0, end)
        sidecar.stop()
    delete_records(bootstrap, topic, 0, end - 10)
    # If a shell runs the tests in the background, SIGINT is ignored here and in child processes
    # such as the example.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        command("group.py", bootstrap, sidecar.config, topic),
        env={**os.environ, **store.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as example:
        try:
            assert example.stdout is not None
            lines = [example.stdout.readline() for _ in range(RECORDS)]
            example.send_signal(signal.SIGINT)
            assert example.wait(60) == 0
        finally:
            example.kill()
            signal.signal(signal.SIGINT, before)
    assert [line.split(" ")[:2] for line in lines] == [["0", str(at)] for at in range(RECORDS)]

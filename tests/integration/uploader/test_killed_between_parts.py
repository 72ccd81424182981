"""A sidecar that sends a large segment in parts is killed between two of them."""

import signal
import threading
from pathlib import Path

import pytest

from tests.harness.archive_objects import s3_store
from tests.harness.log_dir import LogDir
from tests.harness.s3 import S3Bucket
from tests.harness.s3_proxy import Fault, S3Proxy, hang
from tests.harness.sidecar import Sidecar, basic_settings, merged
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.integration


def unfinished(bucket: S3Bucket) -> list[str]:
    """Return the keys of unfinished uploads."""
    page = bucket.client.list_multipart_uploads(Bucket=bucket.name)
    return [upload["Key"] for upload in page.get("Uploads", [])]


def test_kill_leaves_an_unfinished_upload_and_no_object_and_the_segment_is_sent_again(
    s3_bucket: S3Bucket, tmp_path: Path
) -> None:
    log_dir = LogDir(tmp_path / "logs")
    log = log_dir.create("t")
    log.closed_segment(20, batch=1, size=900_000)
    log.append()
    log_dir.checkpoint_high_watermarks()
    requests: list[str] = []
    third = threading.Event()

    def rule(method: str, key: str) -> Fault | None:
        if method != "PUT" or not key.endswith(".log"):
            return None
        requests.append(key)
        if len(requests) < 3:
            return None
        third.set()
        return hang

    with S3Proxy(s3_bucket.server.port) as proxy:
        store = s3_store(s3_bucket, proxy.url)
        proxy.misbehave(rule)
        changes = {
            "leadership": {"source": "static"},
            "storage": {"s3": {"multipart_threshold": "5MiB", "part_size": "5MiB"}},
        }
        settings = merged(basic_settings([log_dir.path], store), changes)
        with Sidecar(tmp_path / "sidecar", settings, store) as sidecar:
            assert third.wait(60)
            sidecar.kill()
            assert sidecar.exit_code() == -signal.SIGKILL
            [key] = set(requests)
            assert store.objects.read(key) is None
            assert unfinished(s3_bucket) == [key]
            proxy.heal()
            sidecar.start()
            wait_until(lambda: store.objects.read(key) == log.written[0], 60, "the segment")
            assert sidecar.stop() == 0
    # The upload of the killed process stays until a lifecycle rule or `sidetier gc` aborts it.
    assert unfinished(s3_bucket) == [key]

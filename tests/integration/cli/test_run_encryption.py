"""`sidetier run` with encryption: a key that cannot be used, a kill between two parts."""

import base64
import threading
from pathlib import Path

import pytest

from sidetier.storage.encrypted_format import stored_size
from tests.harness.archive_objects import file_store, s3_store
from tests.harness.encryption import count_logs, encryption, write_key
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


def refusal(sidecar: Sidecar) -> str:
    """Start the sidecar, which refuses; return its output."""
    sidecar.start_unchecked()
    assert sidecar.exit_code() == 2
    assert "Traceback" not in sidecar.text
    return sidecar.text


def test_sidecar_refuses_to_start_without_its_key_and_archives_once_it_is_back(
    tmp_path: Path,
) -> None:
    log_dir = LogDir(tmp_path / "logs")
    log_dir.create("t").closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    store = file_store(tmp_path / "store")
    changes = {
        "leadership": {"source": "static"},
        "storage": {"encryption": encryption(tmp_path)},
    }
    settings = merged(basic_settings([log_dir.path], store), changes)
    sidecar = Sidecar(tmp_path / "sidecar", settings, store)
    key = tmp_path / "k1"
    place = f"storage.encryption.keys, key 'k1': the %s in file {key} "
    key.unlink()
    assert place % "secret" + "cannot be read: [Errno 2] No such file" in refusal(sidecar)
    key.write_bytes(base64.b64encode(bytes(31)))
    assert place % "encryption key" + "must be 32 bytes in base64" in refusal(sidecar)
    assert store.objects.listing() == frozenset()
    write_key(key)
    with sidecar:
        wait_until(lambda: count_logs(store.objects) == (0, 2), 60, "two encrypted segments")
        assert sidecar.stop() == 0


def test_kill_between_two_parts_leaves_an_unfinished_upload_and_no_object(
    s3_bucket: S3Bucket, tmp_path: Path
) -> None:
    log_dir = LogDir(tmp_path / "logs")
    log = log_dir.create("t")
    log.closed_segment(20, batch=1, size=900_000)
    log.append()
    log_dir.checkpoint_high_watermarks()
    parts: list[str] = []
    third = threading.Event()

    def rule(method: str, key: str) -> Fault | None:
        if method != "PUT" or not key.endswith(".log"):
            return None
        parts.append(key)
        if len(parts) == 3:
            third.set()
            return hang
        return None

    with S3Proxy(s3_bucket.server.port) as proxy:
        store = s3_store(s3_bucket, proxy.url)
        proxy.misbehave(rule)
        changes = {
            "leadership": {"source": "static"},
            "storage": {"encryption": encryption(tmp_path)},
        }
        settings = merged(basic_settings([log_dir.path], store), changes)
        with Sidecar(tmp_path / "sidecar", settings, store) as sidecar:
            assert third.wait(60)
            sidecar.kill()
            assert sidecar.exit_code() == -9
            assert count_logs(store.objects) == (0, 0)
            assert len(unfinished(s3_bucket)) == 1
            proxy.heal()
            sidecar.start()
            wait_until(lambda: count_logs(store.objects) == (0, 1), 60, "the segment")
            assert sidecar.stop() == 0
    (key,) = set(parts)
    assert len(parts) == 3
    assert len(store.objects.read(key) or b"") == stored_size(len(log.written[0]))
    assert len(unfinished(s3_bucket)) == 1

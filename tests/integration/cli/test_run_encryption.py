"""`sidetier run` with a key that cannot be used."""

import base64
from pathlib import Path

import pytest

from tests.harness.archive_objects import file_store
from tests.harness.encryption import count_logs, encryption, write_key
from tests.harness.log_dir import LogDir
from tests.harness.sidecar import Sidecar, basic_settings, merged
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.integration


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

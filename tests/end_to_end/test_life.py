"""Start and end of the process: refusals, signals, deaths."""

import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.harness.archive_check import ArchiveWatch, compare, wait_until_stored
from tests.harness.archive_objects import ArchiveStore, file_store, s3_store
from tests.harness.ci import SEARCHES
from tests.harness.copied_log_dir import CopiedLogDir, Original, static_settings
from tests.harness.s3 import S3Bucket
from tests.harness.s3_proxy import S3Proxy
from tests.harness.sidecar import Sidecar, merged
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def store(tmp_path: Path) -> ArchiveStore:
    return file_store(tmp_path / "store")


@pytest.fixture
def log_dir(tmp_path: Path, original: Original) -> CopiedLogDir:
    copied = CopiedLogDir(tmp_path / "data", original)
    copied.add("t", segments=3)
    return copied


def refusal(sidecar: Sidecar, code: int = 2) -> str:
    """The error message when it refuses to start."""
    sidecar.start_unchecked()
    assert sidecar.exit_code() == code, sidecar.text
    assert sidecar.seen("daemon.started") == []
    return sidecar.text


def test_sigterm_ends_an_idle_sidecar_at_once(
    log_dir: CopiedLogDir, store: ArchiveStore, tmp_path: Path
) -> None:
    with Sidecar(tmp_path, static_settings([log_dir], store)) as sidecar:
        wait_until_stored(store.objects, "t", 0, log_dir.original.bases[3])
        wait_until(lambda: sidecar.partitions()[0]["state"] == "archived", 30, "nothing to do")
        began = monotonic()
        assert sidecar.stop() == 0
        assert monotonic() - began < 1.0
        assert sidecar.seen("daemon.stopped")


SETTINGS: dict[str, tuple[dict[str, Any], Sequence[str]]] = {
    "an unknown key": ({"uploader": {"thread": 3}}, ["uploader.thread", "threads"]),
    "a wrong type": ({"uploader": {"threads": "many"}}, ["uploader.threads", "many"]),
    "a contradiction": (
        {"uploader": {"high_watermark": {"checkpoint": False, "list_offsets": False}}},
        ["uploader.high_watermark"],
    ),
    "a number out of range": (
        {"storage": {"prefix_entropy_bits": 500}},
        ["prefix_entropy_bits", "128"],
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_invalid_setting_is_refused_by_name_before_any_write(
    name: str, log_dir: CopiedLogDir, store: ArchiveStore, tmp_path: Path
) -> None:
    changes, said = SETTINGS[name]
    text = refusal(Sidecar(tmp_path, static_settings([log_dir], store, changes)))
    assert all(part in text for part in said), text
    assert "Traceback" not in text
    assert not (tmp_path / "store").exists()


def _missing(path: Path) -> None:
    shutil.rmtree(path)


def _file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("no directory")


def _foreign(path: Path) -> None:
    meta = path / "meta.properties"
    lines = meta.read_text().splitlines()
    kept = [line for line in lines if not line.startswith("cluster.id")]
    meta.write_text("\n".join([*kept, "cluster.id=AAAAAAAAAAAAAAAAAAAAAA"]))


def _never_started(path: Path) -> None:
    (path / "meta.properties").unlink()


LOG_DIRS: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (_missing, "does not exist"),
    "a file": (_file, "is not a directory"),
    "unreadable": (lambda path: path.chmod(0), "cannot be read"),
    "of another cluster": (_foreign, "belongs to cluster AAAAAAAAAAAAAAAAAAAAAA"),
    "never started": (_never_started, "meta.properties is missing"),
}


def without_privileges() -> list[str]:
    """Command prefix that removes root's privileges, so that permissions apply."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]


@pytest.mark.parametrize("name", LOG_DIRS)
def test_invalid_log_dir_is_refused(
    name: str, log_dir: CopiedLogDir, store: ArchiveStore, tmp_path: Path
) -> None:
    """A log dir without a broker identity is refused if no other log dir has one."""
    other = CopiedLogDir(tmp_path / "other", log_dir.original)
    spoil, said = LOG_DIRS[name]
    spoil(other.path)
    beside = [log_dir] if name == "of another cluster" else []
    settings = static_settings([*beside, other], store)
    text = refusal(Sidecar(tmp_path, settings, launcher=without_privileges()))
    assert f"log_dirs[{len(beside)}]" in text
    assert str(other.path) in text
    assert said in text
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("name", ["missing", "unreadable", "never started"])
def test_log_dir_without_a_broker_identity_does_not_block_the_others(
    name: str, log_dir: CopiedLogDir, store: ArchiveStore, tmp_path: Path
) -> None:
    other = CopiedLogDir(tmp_path / "other", log_dir.original)
    spoil, _ = LOG_DIRS[name]
    spoil(other.path)
    settings = static_settings([log_dir, other], store)
    with Sidecar(tmp_path, settings, launcher=without_privileges()) as sidecar:
        wait_until_stored(store.objects, "t", 0, log_dir.original.bases[3])
        assert f"log dir {other.path} cannot be read" in sidecar.text
        assert sidecar.stop() == 0


def test_archive_of_another_cluster_is_refused(
    log_dir: CopiedLogDir, store: ArchiveStore, tmp_path: Path
) -> None:
    settings = static_settings([log_dir], store)
    with Sidecar(tmp_path, settings) as sidecar:
        wait_until_stored(store.objects, "t", 0, log_dir.original.bases[3])
        assert sidecar.stop() == 0
    stored = store.objects.listing()
    _foreign(log_dir.path)
    log_dir.grow(log_dir.path / "t-0", 5)
    text = refusal(Sidecar(tmp_path, settings))
    assert "AAAAAAAAAAAAAAAAAAAAAA" in text
    assert "cluster.name" in text
    text = refusal(Sidecar(tmp_path, merged(settings, {"storage": {"prefix_entropy_bits": 7}})))
    assert "prefix_entropy_bits" in text
    assert store.objects.listing() == stored


TAMPERED = """
import sys
from sidetier.cli.main import main
from sidetier.uploader.{module} import {name}
def die(*_, **__):
    raise {error}
{name}.{method} = die
sys.argv[0] = "sidetier"
main()
"""


def tampered(directory: Path, settings: Mapping[str, Any], error: str) -> Sidecar:
    """A sidecar in which every upload raises this error."""
    script = directory / "tampered.py"
    where = {"module": "sending.upload", "name": "Uploader", "method": "upload"}
    script.write_text(TAMPERED.format(**where, error=error))
    return Sidecar(directory, settings, program=(sys.executable, script))


def test_death_of_a_thread_ends_the_process_with_its_reason(
    log_dir: CopiedLogDir, store: ArchiveStore, tmp_path: Path
) -> None:
    error = 'SystemExit("the worker is gone")'
    sidecar = tampered(tmp_path, static_settings([log_dir], store), error)
    sidecar.start_unchecked()
    assert sidecar.exit_code() == 1
    assert "the worker is gone" in sidecar.text.splitlines()[-1]


def test_unexpected_exception_delays_its_partition_and_ends_nothing(
    log_dir: CopiedLogDir, store: ArchiveStore, tmp_path: Path
) -> None:
    error = 'TypeError("what a mistake")'
    with tampered(tmp_path, static_settings([log_dir], store), error) as sidecar:
        name = "sidetier_unexpected_errors_total"
        wait_until(lambda: sidecar.metric(name, kind="TypeError") > 0, 30, "the count")
        assert "what a mistake" in sidecar.get("/api/partitions")[1]
        assert sidecar.stop() == 0


def wait_for_more(proxy: S3Proxy) -> None:
    """Wait until six more segments are stored."""
    wanted = len(proxy.found("PUT", ".log")) + 6
    wait_until(lambda: len(proxy.found("PUT", ".log")) >= wanted, 30, "six segments more")


@SEARCHES
def test_kill_and_sigterm_during_a_catch_up_lose_nothing_and_upload_nothing_twice(
    original: Original, s3_bucket: S3Bucket, tmp_path: Path
) -> None:
    copied = CopiedLogDir(tmp_path / "data", original)
    topics = [f"t{number}" for number in range(6)]
    for topic in topics:
        copied.add(topic)
    with S3Proxy(s3_bucket.server.port) as proxy:
        store = s3_store(s3_bucket, proxy.url)
        slowly = {
            "uploader": {"max_bytes_per_second": "500KB"},
            "storage": {"deadline": {"min_bytes_per_second": "10KB"}},
        }
        sidecar = Sidecar(tmp_path, static_settings([copied], store, slowly), store)
        with sidecar, ArchiveWatch(store.objects):
            for code in (-signal.SIGKILL, 0, -signal.SIGKILL):
                wait_for_more(proxy)
                sidecar.process.terminate() if code == 0 else sidecar.kill()
                assert sidecar.exit_code() == code
                sidecar.start()
            for topic in topics:
                wait_until_stored(store.objects, topic, 0, original.bases[-1])
            assert sidecar.stop() == 0
        assert compare(store.objects, copied.sent()) == len(topics) * original.bases[-1]
        sent = [seen.key for seen in proxy.found("PUT", ".log")]
        assert len(sent) == len(topics) * (len(original.bases) - 1)
        assert len(set(sent)) == len(sent)

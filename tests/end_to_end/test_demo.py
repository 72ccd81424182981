"""`make demo` as a newcomer runs it: it proves itself, and leaves nothing behind."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from sidetier.brokers.java import Java
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(500)]

SECONDS = 400


def start(directory: Path, *options: str) -> "subprocess.Popen[str]":
    line = [sys.executable, "-m", "devtools.demo", "--directory", str(directory), *options]
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        line, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def processes_in(directory: Path) -> Sequence[str]:
    """Command lines of this machine's processes that contain the directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(directory) in line:
            found.append(line)
    return found


def test_every_record_is_read_back(java: Java, tmp_path: Path) -> None:
    assert java.version >= 17
    work, picture = tmp_path / "work", tmp_path / "tiering.png"
    demo = start(work, "--megabytes", "12", "--output", "json", "--picture", str(picture))
    out, err = demo.communicate(timeout=SECONDS)
    assert demo.returncode == 0, err
    found = json.loads(out)
    assert found["ok"] is True
    partitions = found["partitions"]
    assert len(partitions) == 3
    for row in partitions:
        assert row["problems"] == []
        assert row["produced"] == row["expected"] == row["found"] == row["log_start"] > 3000
        assert row["checksum_produced"] == row["checksum_stored"]
        assert row["deleted_segments"] == row["segments"] > 2
        assert row["lag"] == 0
    assert "archived records read back" in err
    alone = re.search(r"on the broker alone for longer than (\d+\.\d) s", err)
    assert alone is not None
    assert 0 < float(alone[1]) < 60
    produced = sum(row["produced"] for row in partitions)
    assert found["counted_by_spark"] == found["read_by_console_consumer"] == produced
    assert found["read_while_produced"] == 1.0
    assert err.count("kafka-console-consumer.sh --bootstrap-server 127.0.0.1:") == 4
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert processes_in(work) == []
    assert not work.exists()


def test_kept_archive_can_be_listed(java: Java, tmp_path: Path) -> None:
    assert java.version >= 17
    work = tmp_path / "work"
    demo = start(work, "--megabytes", "4", "--partitions", "1", "--keep")
    out, err = demo.communicate(timeout=SECONDS)
    assert demo.returncode == 0, out + err
    assert "Nothing is missing: " in out
    assert all(len(line) <= 100 for line in out.splitlines() if str(work) not in line)
    assert processes_in(work) == []
    hint = next(line for line in out.splitlines() if "sidetier ls --config" in line)
    config = hint.split("--config ")[1]
    line = [sys.executable, "-m", "sidetier.cli", "ls", "--config", config]
    listed = subprocess.run(line, capture_output=True, text=True, timeout=180, check=False)
    assert listed.returncode == 0, listed.stderr
    assert listed.stdout.splitlines()[1].split()[:2] == ["orders", "0"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_demo_cleans_up(number: signal.Signals, java: Java, tmp_path: Path) -> None:
    assert java.version >= 17
    work = tmp_path / "work"
    demo = start(work, "--megabytes", "100")
    try:
        log = work / "sidecar" / "sidecar.log"
        wait_until(
            lambda: (
                demo.poll() is not None or (log.exists() and "segment.uploaded" in log.read_text())
            ),
            SECONDS,
            "the sidecar to upload something",
        )
        demo.send_signal(number)
        out, err = demo.communicate(timeout=180)
    finally:
        demo.kill()
    assert demo.returncode == 130, out + err
    assert "interrupted" in err
    assert "Traceback" not in out + err
    assert processes_in(work) == []
    assert not work.exists()

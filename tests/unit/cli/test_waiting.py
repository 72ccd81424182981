"""`sidetier run --wait` as a process that starts before its broker has created the log dirs."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from sidetier.brokers.ports import free_port
from tests.harness.archive_objects import file_store
from tests.harness.log_dir import LogDir
from tests.harness.sidecar import PROGRAM, Sidecar, basic_settings, merged
from tests.harness.waiting import wait_until

SECONDS = 30.0


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    basic = basic_settings([tmp_path / "data" / "kafka-log*"], file_store(tmp_path / "store"))
    more = {"leadership": {"source": "static"}, "http": {"port": free_port()}}
    return merged(basic, more)


def unprivileged() -> list[str]:
    """Return the prefix of a command that must not pass the permissions of files."""
    return [] if os.geteuid() else ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]


class Waiting(Sidecar):
    """A sidecar started with `--wait`."""

    def __init__(self, directory: Path, settings: dict[str, Any]) -> None:
        super().__init__(directory, settings)
        self.process.command = type(self.process.command)(
            "sidecar",
            [*unprivileged(), PROGRAM, "--config", self.config, "run", "--wait"],
            self._log,
        )
        self.port = settings["http"]["port"]

    def status(self, path: str) -> int:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                return int(answer.status)
        except HTTPError as error:
            with error:
                return error.code


@pytest.fixture
def waiting(tmp_path: Path, settings: dict[str, Any]) -> Iterator[Waiting]:
    sidecar = Waiting(tmp_path / "sidecar", settings)
    sidecar.start_unchecked()
    sidecar.wait_for_event("daemon.waiting", SECONDS)
    yield sidecar
    sidecar.kill()


def test_waiting_sidecar_is_alive_and_starts_with_the_broker(
    waiting: Waiting, tmp_path: Path
) -> None:
    wait_until(lambda: waiting.status("/healthz") == 200, SECONDS, "/healthz")
    assert waiting.status("/readyz") == 503
    assert not waiting.seen("daemon.started")
    log_dir = LogDir(tmp_path / "data" / "kafka-log7")
    log_dir.create("t").closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    started = waiting.wait_for_event("daemon.started", SECONDS)
    assert started["log_dirs"] == [str(tmp_path / "data" / "kafka-log7")]
    stored = tmp_path / "store"
    wait_until(lambda: len(list(stored.rglob("*.log"))) == 2, SECONDS, "two segments")
    assert waiting.stop() == 0


def test_directory_that_cannot_be_entered_is_named_while_it_waits(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    """As the kubelet's directory of a pod, which only root and its group may enter."""
    pod = tmp_path / "pods" / "7d1"
    LogDir(pod / "mount" / "kafka-log7")
    settings["log_dirs"] = [str(tmp_path / "pods" / "*" / "mount" / "kafka-log*")]
    pod.chmod(0)
    sidecar = Waiting(tmp_path / "sidecar", settings)
    sidecar.start_unchecked()
    try:
        waiting = sidecar.wait_for_event("daemon.waiting", SECONDS)
        assert f"{pod} cannot be read, so {settings['log_dirs'][0]} is not" in waiting["reason"]
        pod.chmod(0o750)
        sidecar.wait_for_event("daemon.started", SECONDS)
        assert sidecar.stop() == 0
    finally:
        sidecar.kill()


def test_sigterm_ends_the_wait(waiting: Waiting) -> None:
    assert waiting.stop() == 143


def test_missing_log_dir_is_refused_without_wait(tmp_path: Path, settings: dict[str, Any]) -> None:
    sidecar = Sidecar(tmp_path / "sidecar", settings)
    sidecar.start_unchecked()
    assert sidecar.exit_code() == 2
    assert "kafka-log* does not exist" in sidecar.text


def test_one_missing_log_dir_does_not_delay_the_start(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    """Its disk has failed, and the broker continues with its other log dir; so does the sidecar."""
    LogDir(tmp_path / "there")
    settings["log_dirs"] = [str(tmp_path / "there"), str(tmp_path / "failed")]
    sidecar = Waiting(tmp_path / "sidecar", settings)
    sidecar.start_unchecked()
    try:
        sidecar.wait_for_event("daemon.waiting", SECONDS)
        sidecar.wait_for_event("daemon.started", SECONDS)
        why = f"log dir {tmp_path / 'failed'} cannot be read"
        wait_until(lambda: why in sidecar.text, SECONDS, "a warning")
        assert sidecar.stop() == 0
    finally:
        sidecar.kill()

"""The sidecar as a separate process beside a broker, observed through its logs and HTTP pages."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml
from prometheus_client.parser import text_string_to_metric_families

from devtools.sandbox.kafka import KafkaCluster, ZookeeperCluster
from sidetier.brokers.processes import Command, ManagedProcess
from tests.harness.archive_objects import ArchiveStore
from tests.harness.waiting import wait_for, wait_until

Settings = dict[str, Any]
Event = dict[str, Any]

PROGRAM = Path(sys.executable).parent / "sidetier"
START_SECONDS = 60.0
STOP_SECONDS = 120.0
_HTTP_SECONDS = 60.0


def merged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> Settings:
    """Merge settings into others, level by level."""
    result = dict(settings)
    for name, value in changes.items():
        current = result.get(name)
        deeper = isinstance(current, dict) and isinstance(value, Mapping)
        result[name] = merged(current, value) if deeper and isinstance(current, dict) else value
    return result


def basic_settings(log_dirs: Sequence[Path], store: ArchiveStore) -> Settings:
    """Return minimal settings with a free HTTP port and short timeouts.

    Niceness is 0, because brokers that delete within half a second share the machine with other
    tests.
    """
    return {
        "cluster": {"name": "test"},
        "log_dirs": [str(path) for path in log_dirs],
        "storage": dict(store.settings),
        "uploader": {"rescue": {"patience": "2s"}, "niceness": 0},
        "http": {"host": "127.0.0.1", "port": 0},
    }


def beside(
    cluster: KafkaCluster, store: ArchiveStore, *, broker_id: int = 1, topics: Sequence[str] = ()
) -> Settings:
    """Return settings for a sidecar beside this broker, for these topics (regular expressions)."""
    settings = basic_settings(cluster.log_dirs(broker_id), store)
    settings["broker"] = {"bootstrap_servers": cluster.bootstrap_of(broker_id)}
    if isinstance(cluster, ZookeeperCluster):
        settings["leadership"] = {"zookeeper": {"connect": cluster.zookeeper_connect}}
    if topics:
        settings["topics"] = {"include": list(topics)}
    return settings


class Sidecar:
    """`sidetier run` with these settings; leaving the context kills a running process.

    `launcher` is a prefix of the command line (`setpriv ...`, `unshare ...`). `program` replaces
    the program, for a modified sidecar.
    """

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, Any],
        store: ArchiveStore | None = None,
        *,
        launcher: Sequence[str] = (),
        program: Sequence[str | os.PathLike[str]] = (PROGRAM,),
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.config = directory / "sidetier.yaml"
        self.config.write_text(yaml.safe_dump(dict(settings)))
        self._log = directory / "sidetier.log"
        self._start = 0
        line = [*launcher, *program, "--config", self.config, "run"]
        environment = dict(store.environment) if store is not None else {}
        self.process = ManagedProcess(Command("sidecar", line, self._log, environment))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()

    def start(self) -> None:
        """Start it, and return once it is ready; ServerDiedError with the log's tail if it ends."""
        self.start_unchecked()
        self.process.wait_until(lambda: bool(self.seen("daemon.started")), START_SECONDS)

    def start_unchecked(self) -> None:
        """Start it, and return at once. It may refuse to start."""
        self._start = self._log.stat().st_size if self._log.exists() else 0
        self.process.start()

    def stop(self) -> int:
        """Send SIGTERM, and return the exit code."""
        self.process.terminate()
        return self.exit_code()

    def exit_code(self) -> int:
        """Wait until it ends by itself, and return the exit code."""
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end\n{self.process.log_tail()}") from None
        assert code is not None, "it was never started"
        return code

    def kill(self) -> None:
        """Send SIGKILL."""
        self.process.kill()

    def pause(self) -> None:
        """Send SIGSTOP."""
        self.process.pause()

    def resume(self) -> None:
        """Send SIGCONT."""
        self.process.resume()

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    # -- log ---------------------------------------------------------------------------------------

    @property
    def text(self) -> str:
        """Its output since the last start."""
        with self._log.open("rb") as log:
            log.seek(self._start)
            return log.read().decode()

    def events(self) -> list[Event]:
        """Return its log events since the last start, without lines that are not JSON."""
        lines = (line for line in self.text.splitlines() if line.startswith("{"))
        return [json.loads(line) for line in lines if line.endswith("}")]

    def seen(self, name: str, **values: object) -> list[Event]:
        """Return the events of this name with these values."""
        return [
            event
            for event in self.events()
            if event["event"] == name and values.items() <= event.items()
        ]

    def wait_for_event(self, name: str, timeout: float = 60.0, **values: object) -> Event:
        """Wait for the first such event, and return it."""

        def first() -> Event | None:
            return next(iter(self.seen(name, **values)), None)

        try:
            return wait_for(first, timeout, f"the event {name} {values or ''}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.process.log_tail()}") from None

    # -- HTTP pages --------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Base URL of its pages."""
        return str(self.seen("daemon.started")[-1]["url"])

    def get(self, path: str) -> tuple[int, str]:
        """Return status and body of a page."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=_HTTP_SECONDS) as answer:  # noqa: S310 - a local URL
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def is_ready(self) -> bool:
        """Return whether `/readyz` answers that it is ready."""
        return self.get("/readyz")[0] == 200

    def wait_until_ready(self, timeout: float = START_SECONDS) -> None:
        """Wait until it is ready."""
        wait_until(self.is_ready, timeout, "/readyz")

    def partitions(self, topic: str | None = None) -> list[dict[str, Any]]:
        """Return the rows of `/api/partitions`."""
        _, body = self.get("/api/partitions" + (f"?topic={topic}" if topic else ""))
        rows: list[dict[str, Any]] = json.loads(body)["partitions"]
        return rows

    def partition(self, topic: str, partition: int = 0) -> dict[str, Any] | None:
        """Return one row of `/api/partitions`; None if the partition is not led here."""
        rows = [row for row in self.partitions(topic) if row["partition"] == partition]
        return rows[0] if rows else None

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples with these labels; 0 without samples."""
        _, text = self.get("/metrics")
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

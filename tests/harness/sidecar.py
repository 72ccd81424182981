"""The sidecar as it runs beside a broker: a process of its own, seen through its logs and pages."""

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

from sidetier.sandbox.kafka import KafkaCluster, ZookeeperCluster
from sidetier.sandbox.processes import Command, ManagedProcess
from tests.harness.archive_objects import ArchiveStore
from tests.harness.waiting import wait_for, wait_until

Settings = dict[str, Any]
Event = dict[str, Any]

PROGRAM = Path(sys.executable).parent / "sidetier"
START_SECONDS = 60.0
STOP_SECONDS = 120.0
_HTTP_SECONDS = 60.0


def merged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> Settings:
    """Settings with others laid over them, level by level."""
    result = dict(settings)
    for name, value in changes.items():
        known = result.get(name)
        deeper = isinstance(known, dict) and isinstance(value, Mapping)
        result[name] = merged(known, value) if deeper and isinstance(known, dict) else value
    return result


def basic_settings(log_dirs: Sequence[Path], store: ArchiveStore) -> Settings:
    """The least that a sidecar needs, on a free HTTP port, and little patience with others. It does
    not stand back: brokers that delete within half a second share the machine with much else here.
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
    """Settings for a sidecar beside this broker, for these topics (regular expressions)."""
    settings = basic_settings(cluster.log_dirs(broker_id), store)
    settings["broker"] = {"bootstrap_servers": cluster.bootstrap_of(broker_id)}
    if isinstance(cluster, ZookeeperCluster):
        settings["leadership"] = {"zookeeper": {"connect": cluster.zookeeper_connect}}
    if topics:
        settings["topics"] = {"include": list(topics)}
    return settings


class Sidecar:
    """`sidetier run` with these settings; leaving the context kills what still runs.

    `launcher` stands before the program on the command line (`setpriv ...`, `unshare ...`);
    `program` takes its place, for a sidecar that is tampered with.
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
        """Start it, and return once it works; raises ServerDiedError with its log's tail."""
        self.start_unchecked()
        self.process.wait_until(lambda: bool(self.seen("daemon.started")), START_SECONDS)

    def start_unchecked(self) -> None:
        """Start it, and return at once: it may refuse."""
        self._start = self._log.stat().st_size if self._log.exists() else 0
        self.process.start()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        return self.exit_code()

    def exit_code(self) -> int:
        """Wait for the end that it comes to by itself."""
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end\n{self.process.log_tail()}") from None
        assert code is not None, "it was never started"
        return code

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()

    def pause(self) -> None:
        """SIGSTOP."""
        self.process.pause()

    def resume(self) -> None:
        """SIGCONT."""
        self.process.resume()

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    # -- its log ----------------------------------------------------------------------------------

    @property
    def text(self) -> str:
        """All that it has said since it was started last."""
        with self._log.open("rb") as log:
            log.seek(self._start)
            return log.read().decode()

    def events(self) -> list[Event]:
        """The lines of its log since it was started last; whatever is no JSON is left out."""
        lines = (line for line in self.text.splitlines() if line.startswith("{"))
        return [json.loads(line) for line in lines if line.endswith("}")]

    def seen(self, name: str, **values: object) -> list[Event]:
        """The events of this name that have these values."""
        return [
            event
            for event in self.events()
            if event["event"] == name and values.items() <= event.items()
        ]

    def wait_for_event(self, name: str, timeout: float = 60.0, **values: object) -> Event:
        """The first such event, once it is there."""

        def first() -> Event | None:
            return next(iter(self.seen(name, **values)), None)

        try:
            return wait_for(first, timeout, f"the event {name} {values or ''}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.process.log_tail()}") from None

    # -- its pages --------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Where its pages are."""
        return str(self.seen("daemon.started")[-1]["url"])

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of one of its pages."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=_HTTP_SECONDS) as answer:  # noqa: S310 - our own
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def is_ready(self) -> bool:
        """What `/readyz` says."""
        return self.get("/readyz")[0] == 200

    def wait_until_ready(self, timeout: float = START_SECONDS) -> None:
        """Until `/readyz` says yes."""
        wait_until(self.is_ready, timeout, "/readyz")

    def partitions(self, topic: str | None = None) -> list[dict[str, Any]]:
        """The rows of `/api/partitions`."""
        _, body = self.get("/api/partitions" + (f"?topic={topic}" if topic else ""))
        rows: list[dict[str, Any]] = json.loads(body)["partitions"]
        return rows

    def partition(self, topic: str, partition: int = 0) -> dict[str, Any] | None:
        """One row of `/api/partitions`; None while the partition is not led here."""
        rows = [row for row in self.partitions(topic) if row["partition"] == partition]
        return rows[0] if rows else None

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels; 0 where there is none."""
        _, text = self.get("/metrics")
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

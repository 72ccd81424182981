"""`sidetier serve` as a process that a test can kill and start again at the same address."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Consumer

from sidetier.brokers.ports import free_port
from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.local import LocalStorage
from tests.harness.archive_objects import ArchiveStore, file_store
from tests.harness.sidecar import PROGRAM
from tests.harness.waiting import wait_until

LAYOUT = ArchiveLayout("test", 0)


class ServeProcess:
    """The endpoint over the store in `root`/store, or over another one.

    Args:
        root: Directory of the store, the configuration and the log.
        options: Further options of `sidetier serve`.
        store: Another store.
        layout: The layout of the archive.
    """

    def __init__(
        self,
        root: Path,
        *options: str,
        store: ArchiveStore | None = None,
        layout: ArchiveLayout = LAYOUT,
    ) -> None:
        self._archive = store or file_store(root / "store")
        self.store = LocalStorage(root / "store")
        self.log = root / "log"
        self.bootstrap = f"127.0.0.1:{free_port()}"
        self._root = root
        self._options = options
        self._layout = layout
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the process, and return when it accepts clients."""
        config = self._root / "sidetier.yaml"
        (self._root / "logs").mkdir(exist_ok=True)
        settings = {
            "cluster": {"name": self._layout.cluster},
            "log_dirs": [str(self._root / "logs")],
            "storage": {**self._archive.settings, "prefix_entropy_bits": self._layout.bits},
        }
        config.write_text(yaml.safe_dump(settings))
        command = [
            str(PROGRAM), "--config", str(config), "serve", "--listen", self.bootstrap,
            *self._options,
        ]  # fmt: skip
        before = self.count("endpoint.listening")
        with self.log.open("a") as output:
            self._process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                text=True,
                env={**os.environ, **self._archive.environment},
            )
        wait_until(lambda: self.count("endpoint.listening") > before, 90, "the endpoint to listen")

    def kill(self) -> None:
        """Send SIGKILL, if the process runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Send SIGTERM, and wait for the end."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(30) == 0, self.log.read_text()

    def count(self, event: str) -> int:
        """Return how often the log has an event."""
        return self.log.read_text().count(event) if self.log.exists() else 0

    def member(self, group: str, **settings: Any) -> Consumer:  # noqa: ANN401 - librdkafka's
        """Return a consumer of a group that commits nothing by itself."""
        return Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 20,
                "reconnect.backoff.max.ms": 500,
                **settings,
            }
        )


@contextmanager
def serve_process(
    root: Path,
    *options: str,
    store: ArchiveStore | None = None,
    layout: ArchiveLayout = LAYOUT,
) -> Iterator[ServeProcess]:
    """Run the endpoint until the block ends; no request may have failed in an unexpected way."""
    process = ServeProcess(root, *options, store=store, layout=layout)
    try:
        process.start()
        yield process
        process.stop()
    finally:
        process.kill()
    assert process.count("request_failed") == 0, process.log.read_text()

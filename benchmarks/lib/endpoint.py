"""`sidetier serve` as a separate process, measured from outside."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from lib import processes
from lib.clock import wait_until
from lib.installed import installed_programs
from lib.sidecar import CLUSTER
from sidetier.brokers.processes import Command, ManagedProcess


class Endpoint:
    """A running `sidetier serve`; leaving the context stops it with SIGTERM.

    Args:
        directory: Directory of its files.
        storage: The setting `storage`.
        environment: Environment variables with the store's keys.
        options: More options of the command.
    """

    def __init__(
        self,
        directory: Path,
        storage: Mapping[str, Any],
        environment: Mapping[str, str],
        options: Sequence[str] = (),
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / "sidetier.yaml"
        path.write_text(json.dumps({"cluster": {"name": CLUSTER}, "storage": storage}))
        program = str(installed_programs("consumer") / "sidetier")
        line = [program, "serve", "--config", str(path), "--listen", "127.0.0.1:0", *options]
        self._log = directory / "serve.log"
        self.process = ManagedProcess(Command("sidetier serve", line, self._log, {**environment}))

    def __enter__(self) -> Self:
        self.process.start()
        wait_until(self._port, 30, f"the endpoint to listen ({self._log})")
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port at which it listens."""
        return "127.0.0.1", self._port()

    @property
    def bootstrap_servers(self) -> str:
        """Its address, in the form of `bootstrap.servers`."""
        return "{}:{}".format(*self.address)

    @property
    def resident_bytes(self) -> int:
        """Its resident memory now."""
        return processes.resident_bytes(self.process.pid)

    @property
    def peak_resident_bytes(self) -> int:
        """Peak of its resident memory."""
        return processes.peak_resident_bytes(self.process.pid)

    @property
    def cpu_seconds(self) -> float:
        """User and system time since its start."""
        return processes.cpu_seconds(self.process.pid)

    def _port(self) -> int:
        if not self.process.running:
            raise RuntimeError(f"the endpoint has ended:\n{self.process.log_tail()}")
        lines = self._log.read_text().splitlines()
        rows = (json.loads(line) for line in lines if "endpoint.listening" in line)
        return next((int(row["port"]) for row in rows), 0)

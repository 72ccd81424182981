"""`sidetier run` as a separate process, measured from outside."""

import http.client
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

from lib import processes
from lib.clock import wait_until
from lib.installed import installed_programs
from sidetier.brokers.processes import Command, ManagedProcess

CLUSTER = "bench"


BYTE_CODE = {"PYTHONDONTWRITEBYTECODE": ""}
"""Environment that lets Python write compiled modules: they are compiled once, as in the image, and
not at each start.
"""


@dataclass(frozen=True, slots=True)
class Setup:
    """Inputs of the sidecar: directory of its files, log dirs, store, other settings.

    `program` replaces the installed command, for a modified sidecar.
    """

    directory: Path
    log_dirs: Sequence[Path]
    storage: Mapping[str, Any]
    more: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    gives_way: bool = False
    program: Sequence[str] = ()


class Sidecar:
    """A running sidecar; leaving the context stops it with SIGTERM."""

    def __init__(self, setup: Setup) -> None:
        setup.directory.mkdir(parents=True, exist_ok=True)
        config = {
            "cluster": {"name": CLUSTER},
            "log_dirs": [str(path) for path in setup.log_dirs],
            "leadership": {"source": "static"},
            "storage": setup.storage,
            "http": {"host": "127.0.0.1", "port": 0},
            **setup.more,
        }
        path = setup.directory / "sidetier.yaml"
        path.write_text(json.dumps(config, indent=2))
        self.log = setup.directory / "sidetier.log"
        self.log.unlink(missing_ok=True)
        program = setup.program or (str(installed_programs("runtime") / "sidetier"),)
        line = [*program, "--config", str(path), "run"]
        self._gives_way = setup.gives_way
        if setup.gives_way:
            line = ["nice", "-n", str(processes.LOWEST_PRIORITY), *line]
        self.process = ManagedProcess(
            Command("sidetier", line, self.log, {**BYTE_CODE, **setup.environment})
        )
        self._address: tuple[str, int] | None = None

    def __enter__(self) -> Self:
        self.process.start()
        if self._gives_way:
            processes.give_way(self.process.pid)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop()

    @property
    def cpu_seconds(self) -> float:
        """User and system time since its start."""
        return processes.cpu_seconds(self.process.pid)

    @property
    def peak_resident_bytes(self) -> int:
        """Peak resident memory, in bytes."""
        return processes.peak_resident_bytes(self.process.pid)

    def events(self, *names: str) -> Iterator[dict[str, Any]]:
        """Yield its log events with these names."""
        with self.log.open() as lines:
            for line in lines:
                if any(f'"{name}"' in line for name in names) and line.endswith("}\n"):
                    row = json.loads(line)
                    if row.get("event") in names:
                        yield row

    def wait_until(
        self, condition: Callable[[], object], timeout: float, what: str, poll: float = 0.02
    ) -> float:
        """Wait like `clock.wait_until`, but raise an error as soon as the sidecar has ended."""

        def holds() -> object:
            if not self.process.running:
                raise RuntimeError(f"the sidecar has ended:\n{self.process.log_tail()}")
            return condition()

        return wait_until(holds, timeout, f"{what} ({self.log})", poll)

    def wait_until_ready(self, timeout: float) -> float:
        """Wait until `/readyz` answers ready, and return the seconds since this call."""
        return self.wait_until(self._is_ready, timeout, "the sidecar is ready")

    def samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Return the value of each sample of `/metrics`, by name and labels."""
        _, text = self._get("/metrics")
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def _is_ready(self) -> bool:
        try:
            return self._get("/readyz")[0] == 200
        except (OSError, LookupError):
            return False

    def _get(self, path: str) -> tuple[int, str]:
        host, port = self._found_address()
        connection = http.client.HTTPConnection(host, port, timeout=60)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def _found_address(self) -> tuple[str, int]:
        if self._address is None:
            match = re.search(r'"url": ?"http://([^":]+):(\d+)"', self.log.read_text())
            if match is None:
                raise LookupError("the sidecar does not listen yet")
            self._address = match[1], int(match[2])
        return self._address

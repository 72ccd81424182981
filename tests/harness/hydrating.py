"""The steps of `sidetier hydrate`, run as commands with the configuration of the lost cluster."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.ci import STALL_SECONDS
from tests.harness.markdown import ROOT, commands

PAGE = ROOT / "docs" / "hydrate.md"
_TIMEOUT_SECONDS = 300.0 + STALL_SECONDS
_SERVERS, _LOG_DIR = "new-1:9092", "/var/lib/kafka/data"


@dataclass(frozen=True, slots=True)
class HydrateCommands:
    """Runs commands in a directory with the configuration file, each in a separate process."""

    directory: Path
    environment: Mapping[str, str]
    config: str = "old-cluster.yaml"

    def line(self, *arguments: str) -> list[str]:
        """Return the command line, with the configuration unless the arguments name it."""
        configured = () if "--config" in arguments else ("--config", self.config)
        return [sys.executable, "-m", "sidetier.cli", *arguments, *configured]

    def run(self, *arguments: str, code: int = 0) -> Any:  # noqa: ANN401 -- JSON
        """Run a command, check its exit code, and return its JSON."""
        done = self._done(*arguments, "--output", "json")
        assert done.returncode == code, (done.returncode, done.stderr, done.stdout)
        return json.loads(done.stdout) if done.stdout else None

    def refused(self, *arguments: str) -> str:
        """Run a command that must exit with code 2, and return its error message."""
        done = self._done(*arguments)
        assert done.returncode == 2, (done.returncode, done.stderr, done.stdout)
        return done.stderr

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command in the background; its standard error is a pipe."""
        return subprocess.Popen(
            self.line(*arguments),
            cwd=self.directory,
            env=dict(self.environment),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def _done(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.line(*arguments),
            cwd=self.directory,
            env=dict(self.environment),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )


def documented_steps(servers: str) -> dict[str, list[str]]:
    """Return each step's command arguments in docs/hydrate.md by step name, in the page's order.

    The address of the new cluster is replaced by `servers`. The log dir is omitted, because it
    differs by host.
    """
    steps: dict[str, list[str]] = {}
    for words in commands(PAGE.read_text(encoding="utf-8"), "sidetier"):
        if words[0] != "hydrate":
            continue
        arguments = [servers if word == _SERVERS else word for word in words]
        if _LOG_DIR in arguments:
            at = arguments.index(_LOG_DIR)
            del arguments[at - 1 : at + 1]
        steps[words[1]] = arguments
    return steps

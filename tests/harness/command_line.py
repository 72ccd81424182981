"""The command line in this process, with a synthetic log dir and a file-system store."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import pytest
import yaml

from sidetier.cli.main import run
from sidetier.cli.options import filled, parameters
from tests.harness.log_dir import LogDir
from tests.harness.sidecar import merged

T = TypeVar("T")


def options_of(cls: type[T], *words: str) -> T:
    """Return the options of a command line, or of a part of one."""
    command = click.Command("command", params=[*parameters(cls)])
    with command.make_context("command", list(words)) as context:
        return filled(cls, context)


class CommandLine:
    """A configuration with one log dir and a store. Runs commands and reads their output."""

    def __init__(self, root: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self.log_dir = LogDir(root / "logs")
        self.store = root / "store"
        self._file = root / "sidetier.yaml"
        self._capture = capture
        self._settings: dict[str, Any] = {
            "cluster": {"name": "prod-a"},
            "log_dirs": [str(self.log_dir)],
            "storage": {
                "url": f"file://{self.store}",
                "prefix_entropy_bits": 3,
                "retry": {"attempts": 1},
            },
            "uploader": {"threads": 2, "pins": {"min_free_disk": "0"}, "shutdown_grace": 5},
        }
        self.out = self.err = ""

    def configure(self, changes: Mapping[str, Any]) -> None:
        """Merge these settings into the present ones."""
        self._settings = merged(self._settings, changes)

    def run(self, *line: str) -> int:
        """Run one command and return its exit code. Its output is in `out` and `err`."""
        self._file.write_text(yaml.safe_dump(self._settings), encoding="utf-8")
        self._capture.readouterr()
        code = run([line[0], "--config", str(self._file), *line[1:]])
        self.out, self.err = self._capture.readouterr()
        return code

    def json(self, *line: str, code: int = 0) -> Any:  # noqa: ANN401 -- JSON
        """Run one command, check its exit code, and return its JSON."""
        assert self.run(*line, "--output", "json") == code, self.err
        return json.loads(self.out)

    def lines(self) -> list[str]:
        """Return the last command's lines on standard output."""
        return self.out.splitlines()

    def stored(self) -> dict[str, bytes]:
        """Return every object on the store, by its key."""
        files = (path for path in self.store.rglob("*") if path.is_file())
        keys = ((path.relative_to(self.store).as_posix(), path) for path in files)
        return {key: path.read_bytes() for key, path in keys if not key.startswith(".sidetier/")}

    def remove(self, ending: str) -> None:
        """Remove the only object whose key has this suffix."""
        [key] = [key for key in self.stored() if key.endswith(ending)]
        (self.store / key).unlink()

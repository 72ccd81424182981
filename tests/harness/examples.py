"""Runs the files of `examples/` as their readers run them."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "examples"
_SECONDS = 180


def every_example() -> list[str]:
    """Return the names of all examples."""
    return sorted(path.name for path in ROOT.glob("*.py"))


def command(name: str, *arguments: object) -> list[str]:
    """Return the command line of one example."""
    return [sys.executable, "-u", str(ROOT / name), *map(str, arguments)]


def run_example(
    name: str,
    *arguments: object,
    environment: Mapping[str, str] | None = None,
    seconds: float = _SECONDS,
) -> list[str]:
    """Run one example and return its output lines; AssertionError if it fails."""
    done = subprocess.run(
        command(name, *arguments),
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()

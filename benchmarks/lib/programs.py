"""Programs of this package that run in processes of their own, and print their results as JSON."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lib.installed import installed_programs

_TIMEOUT = 300.0


def program_line(script: str, asked: Mapping[str, Any]) -> list[str]:
    """Return the command line of a program with its parameters."""
    return [str(installed_programs("consumer") / "python"), script, json.dumps(asked)]


def program_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a program: it imports `lib`."""
    return {**os.environ, **(more or {}), "PYTHONPATH": str(Path(__file__).parent.parent)}


def run_program(
    script: str, asked: Mapping[str, Any], more: Mapping[str, str] | None = None
) -> Any:  # noqa: ANN401 - JSON
    """Run a program, and return the content of its last line of output.

    Args:
        script: Path of the program.
        asked: Its parameters.
        more: Further environment variables.

    Raises:
        RuntimeError: It failed.
    """
    done = subprocess.run(
        program_line(script, asked),
        env=program_environment(more),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{Path(script).name} {asked} ended:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def ready_program(script: str, asked: Mapping[str, Any]) -> Iterator[Callable[[], Any]]:
    """Run a program whose first line of output says that it is ready.

    Yields:
        A function that waits for its second line, and returns the content.

    Raises:
        RuntimeError: It ended before it was ready.
    """
    line = program_line(script, asked)
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, text=True, env=program_environment()
    ) as program:
        output = program.stdout
        assert output is not None  # noqa: S101 - for mypy
        if not output.readline():
            raise RuntimeError(f"{Path(script).name} {asked} has ended")
        yield lambda: json.loads(output.readline())

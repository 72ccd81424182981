"""The tutorial of the documentation, by its own commands, from a broker to records read back."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sidetier.brokers.java import Java
from sidetier.brokers.ports import free_port
from sidetier.brokers.processes import Command, ManagedProcess
from tests.harness.markdown import ROOT, blocks, text_of
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

PORTS = ("19092", "19093", "19108")
SEGMENTS = 18
RUN_BY_OTHER_TESTS = ("make demo",)
READY = {
    "python -m devtools.sandbox.broker": "listens on",
    "sidetier run": "daemon.started",
    "sidetier serve": "endpoint.listening",
}
"""Commands that run in a terminal of their own until Ctrl-C: what they print once they run."""


class Terminals:
    """Runs the tutorial's commands as bash does, with other ports and another directory."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._processes: list[ManagedProcess] = []
        self._stack = stack
        self._replaced = {port: str(free_port()) for port in PORTS}
        self._replaced["/tmp/sidetier-tutorial"] = str(directory)  # noqa: S108 -- the text to replace
        self._path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def run(self, text: str) -> str:
        """Run a block of commands, and return its output."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self._adapted(text)],
            cwd=ROOT,
            env={**os.environ, "PATH": self._path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, text: str, ready: str) -> None:
        """Run a command in a terminal of its own, and wait for what it prints."""
        log = self._directory.with_name(f"terminal-{len(self._processes)}.log")
        line = ["env", f"PATH={self._path}", *self._adapted(text).split()]
        process = self._stack.enter_context(ManagedProcess(Command(text.strip(), line, log)))
        process.start()
        process.wait_until(lambda: ready in process.log_tail(), 120)
        self._processes.append(process)

    def stop(self) -> None:
        """Stop all commands that run in terminals of their own, the last one first."""
        for process in reversed(self._processes):
            process.stop()

    def wait_until_archived(self) -> None:
        """Wait until every closed segment is archived, as a reader of the tutorial does."""
        config = f"--config {self._directory}/sidetier.yaml"

        def archived() -> bool:
            # `ls` ends with exit code 3 until the first offset.wm is written.
            listed = self.run(f"sidetier ls --output json {config} || [ $? = 3 ]")
            rows = json.loads(listed)["partitions"]
            return [
                row["segments"] >= SEGMENTS and not row["segments_above_watermark"] for row in rows
            ] == [True]

        wait_until(archived, 60, "the closed segments to be archived")

    def _adapted(self, text: str) -> str:
        for old, new in self._replaced.items():
            text = text.replace(old, new)
        return text


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    with ExitStack() as stack:
        yield Terminals(tmp_path / "tutorial", stack)


def test_tutorial(java: Java, terminals: Terminals, tmp_path: Path) -> None:
    assert java.version >= 17
    outputs: dict[str, list[str]] = {}
    for step in [block.text for block in blocks(text_of(Path("docs/tutorial.md")), "sh")]:
        begin = next((begin for begin in READY if step.startswith(begin)), None)
        if step.strip() in RUN_BY_OTHER_TESTS:
            continue
        if begin == "sidetier serve":
            terminals.stop()
        if begin is not None:
            terminals.start(step, READY[begin])
            continue
        if step.startswith("sidetier status"):
            terminals.wait_until_archived()
        for command in re.split(r"\n(?=sidetier )", step.strip()):
            outputs.setdefault(command.split(" --config")[0], []).append(terminals.run(command))
    before, after = outputs["sidetier explain orders 0 5"]
    assert "offsets [0, 20000) are here" in before
    assert "archived in segment 0 " in after
    assert 10_000 < int(re.findall(r"log starts at (\d+)", after)[0]) < 20_000
    (counted,) = (text for command, text in outputs.items() if "count.py" in command)
    assert counted == ["20000 records, in order: True\n"]
    (read,) = (text for command, text in outputs.items() if "plain.py" in command)
    assert int(read[0].split()[0]) == int(read[0].split()[-1]) > 18_000
    assert not tmp_path.joinpath("tutorial").exists()

"""No settings of this machine's, and a command line with a log dir and a store."""

from pathlib import Path

import pytest

from sidetier.cli import invocation
from tests.harness.command_line import CommandLine


@pytest.fixture(autouse=True)
def no_settings_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable and no file of this machine changes what a command does."""
    monkeypatch.setattr(invocation, "DEFAULT_CONFIG", tmp_path / "no-default.yaml")
    monkeypatch.delenv("SIDETIER_CONFIG", raising=False)
    monkeypatch.delenv("SIDETIER_OUTPUT", raising=False)


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Commands over an empty log dir and a store that is not there yet."""
    return CommandLine(tmp_path, capsys)

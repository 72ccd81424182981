"""Isolation from this machine's settings, and a command line with a log dir and a store."""

from pathlib import Path

import pytest

from sidetier.cli import invocation
from tests.harness.command_line import CommandLine


@pytest.fixture(autouse=True)
def no_settings_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide this machine's environment variables and configuration files from the commands."""
    monkeypatch.setattr(invocation, "DEFAULT_CONFIG", tmp_path / "no-default.yaml")
    monkeypatch.delenv("SIDETIER_CONFIG", raising=False)
    monkeypatch.delenv("SIDETIER_OUTPUT", raising=False)


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Commands over an empty log dir and a store directory that does not exist yet."""
    return CommandLine(tmp_path, capsys)

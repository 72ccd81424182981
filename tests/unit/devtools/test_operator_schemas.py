"""The operator's definitions are fetched once, and only what is wanted of them is kept."""

import json
import os
from pathlib import Path

import pytest

from devtools.sandbox.operator_schemas import KINDS, operator_schema
from sidetier.brokers.errors import FetchError

GO = """#!/bin/sh
echo "$*" >> "$SAID"
printf '%s' "$ANSWER"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the definitions lie in what a stand-in for go says it has downloaded."""
    program = tmp_path / "bin" / "go"
    program.parent.mkdir()
    program.write_text(GO, encoding="utf-8")
    program.chmod(0o755)
    folder = tmp_path / "module" / "example" / "prometheus-operator-crd"
    folder.mkdir(parents=True)
    for kind in (*KINDS, "Prometheus"):
        (folder / f"monitoring.coreos.com_{kind.lower()}s.yaml").write_text(kind, encoding="utf-8")
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SAID", str(tmp_path / "said"))
    monkeypatch.setenv("ANSWER", json.dumps({"Dir": str(tmp_path / "module")}))
    return folder


def test_each_definition_is_there_after_one_download(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    for kind in KINDS:
        assert operator_schema(kind, root=root).read_text() == kind
    assert len((tmp_path / "said").read_text().splitlines()) == 1
    assert len(list(folder.iterdir())) == len(KINDS) + 1  # nothing was taken away there
    kept = {path.name for path in operator_schema(KINDS[0], root=root).parent.iterdir()}
    assert len(kept) == len(KINDS) + 1  # and the mark that it is complete


def test_a_module_without_them_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "monitoring.coreos.com_podmonitors.yaml").unlink()
    with pytest.raises(FetchError, match=r"podmonitors\.yaml"):
        operator_schema("PodMonitor", root=tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("prometheus-operator-*/*"))

"""Download of Azurite, with a fake npm."""

import json
from pathlib import Path

import pytest

from devtools.sandbox import azurite
from devtools.sandbox.npm import NodeMissingError
from sidetier.brokers.errors import FetchError

LOCK = Path(azurite.__file__).with_name("azurite_npm") / "package-lock.json"


def programs(folder: Path, **texts: str) -> str:
    """A PATH with programs of these texts."""
    folder.mkdir()
    for name, text in texts.items():
        program = folder / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    return str(folder)


@pytest.mark.parametrize(
    ("there", "missing"), [({}, "npm"), ({"npm": "exit 0"}, "node"), ({"node": "exit 0"}, "npm")]
)
def test_missing_program_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: dict[str, str], missing: str
) -> None:
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", **there))
    with pytest.raises(NodeMissingError, match=rf"{missing} was not found on PATH.*Node.js 20"):
        azurite.azurite(root=tmp_path)


def test_npm_installs_the_lock_file_and_runs_no_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = programs(tmp_path / "bin", npm='echo "$@" >said', node="exit 0")
    monkeypatch.setenv("PATH", path)
    folder = azurite.azurite(root=tmp_path)
    said = (folder / "said").read_text().split()
    assert said[:2] == ["ci", "--ignore-scripts"]
    assert (folder / "package-lock.json").read_bytes() == LOCK.read_bytes()


def test_failed_npm_is_reported_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = programs(tmp_path / "bin", npm='echo "no network" >&2; exit 1', node="exit 0")
    monkeypatch.setenv("PATH", path)
    with pytest.raises(FetchError, match=r"(?s)npm ci of azurite .* failed.*no network"):
        azurite.azurite(root=tmp_path)
    assert not list(tmp_path.glob("azurite-*/"))


def test_lock_file_pins_every_package_by_hash_and_names_no_registry() -> None:
    packages = json.loads(LOCK.read_text())["packages"]
    assert packages["node_modules/azurite"]["version"] == azurite.VERSION
    fetched = [its for name, its in packages.items() if name.startswith("node_modules/")]
    assert all("integrity" in its or its.get("resolved") == "absent" for its in fetched)
    assert {its["resolved"] for its in fetched if "resolved" in its} == {"absent"}

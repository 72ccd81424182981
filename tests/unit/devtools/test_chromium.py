"""Choice and download of Chromium, with a fake npm."""

import io
import json
import tarfile
from pathlib import Path

import cramjam
import pytest

from devtools.sandbox import chromium as module
from devtools.sandbox.chromium import VERSION, Chromium, chromium
from devtools.sandbox.npm import NodeMissingError
from sidetier.brokers.errors import FetchError

PACKAGES = Path(module.__file__).with_name("chromium_npm")


def programs(folder: Path, **texts: str) -> str:
    """A PATH with programs of these texts."""
    folder.mkdir()
    for name, text in texts.items():
        program = folder / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    return str(folder)


def compressed(data: bytes) -> bytes:
    return bytes(cramjam.brotli.compress(data))


def archive_with(name: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.size = 3
        archive.addfile(member, io.BytesIO(b"one"))
    return compressed(buffer.getvalue())


def test_chromium_on_path_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", chromium="exit 0"))
    assert chromium(root=tmp_path) == Chromium(tmp_path / "bin" / "chromium")


def test_missing_npm_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", programs(tmp_path / "bin"))
    with pytest.raises(NodeMissingError, match="neither chromium nor npm was found on PATH"):
        chromium(root=tmp_path)


def test_package_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tmp_path / "packed"
    packed.mkdir()
    (packed / "chromium.br").write_bytes(compressed(b"#!/bin/sh\n"))
    (packed / "al2023.tar.br").write_bytes(archive_with("lib/libnss3.so"))
    (packed / "swiftshader.tar.br").write_bytes(archive_with("libEGL.so"))
    (packed / "fonts.tar.br").write_bytes(archive_with("fonts/Open_Sans/a.ttf"))
    target = "node_modules/@sparticuz/chromium/bin"
    npm = f'echo "$@" >said; /bin/mkdir -p {target}; /bin/cp {packed}/* {target}'
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", npm=npm))
    found = chromium(root=tmp_path / "cache")
    folder = tmp_path / "cache" / f"chromium-{VERSION}"
    assert found == Chromium(folder / "chromium", folder / "lib", folder / "fonts.conf")
    assert found.program.stat().st_mode & 0o111
    assert (folder / "lib" / "libnss3.so").read_bytes() == b"one"
    assert (folder / "said").read_text().split()[:2] == ["ci", "--ignore-scripts"]
    assert not (folder / "node_modules").exists()


def test_failed_npm_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", npm='echo "no network" >&2; exit 1'))
    with pytest.raises(FetchError, match="no network"):
        chromium(root=tmp_path / "cache")


def test_lock_file_pins_the_version() -> None:
    lock = json.loads((PACKAGES / "package-lock.json").read_text())
    package = lock["packages"]["node_modules/@sparticuz/chromium"]
    assert package["version"] == VERSION
    assert package["integrity"].startswith("sha512-")
    assert "resolved" not in package

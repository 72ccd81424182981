"""Apache Ivy, which fetches jars if Maven is not installed.

PySpark contains Ivy's jar, so a Python package registry is enough to get it.
"""

import importlib.util
import tarfile
from pathlib import Path

from sidetier.sandbox.cache import fetch_once
from sidetier.sandbox.errors import FetchError
from sidetier.sandbox.pip import download

PYSPARK_VERSION = "3.5.3"
_PATTERN = "ivy-*.jar"


def ivy_jar(*, root: Path | None = None) -> Path:
    """Return the Ivy jar of the installed PySpark, or else of a download in the cache.

    Only the jar is kept; PySpark is neither installed nor imported.

    Raises:
        FetchError: The download failed.
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
    archive = download("pyspark", PYSPARK_VERSION, folder / "download")
    _unpack_jar(archive, folder)
    archive.unlink()
    archive.parent.rmdir()


def _unpack_jar(archive: Path, folder: Path) -> None:
    """Extract the Ivy jar. Read the archive as a stream and stop at the jar: the rest is large."""
    with tarfile.open(archive, "r|gz") as members:
        for member in members:
            if member.isfile() and Path(member.name).match(f"jars/{_PATTERN}"):
                stream = members.extractfile(member)
                if stream is not None:
                    (folder / Path(member.name).name).write_bytes(stream.read())
                    return
    raise FetchError(f"{archive.name} holds no {_PATTERN}")

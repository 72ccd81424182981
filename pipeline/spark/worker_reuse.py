"""Spares a Python worker that is used again what PySpark does around each task.

At the start of each task PySpark calls `importlib.invalidate_caches`, which reads the directory of
`pyspark.zip` again for each of its packages that was imported, and of Spark's own jar, too: a
quarter of a second of processor time. Here a zip is read again only where it is another file.

At the end of each task it calls `gc.collect`, which goes through every object of every module that
was ever imported, for boto's and PyArrow's a tenth of a second. Here what has been imported and
opened once is left out of that.
"""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from zipimport import zipimporter


@dataclass(slots=True)
class _Kept:
    """The process whose modules are kept: asking the collector takes as long as it does."""

    pid: int = -1


_kept = _Kept()


@contextmanager
def cheap_upkeep() -> Iterator[None]:
    """Around what a worker does for Spark; it costs next to nothing."""
    keep_zips()
    try:
        yield
    finally:
        keep_modules()


def keep_zips() -> None:
    """Let what finds modules in zips remember which file it has read."""
    for path, finder in list(sys.path_importer_cache.items()):
        if type(finder) is zipimporter:
            sys.path_importer_cache[path] = _KnownZip(path)


def keep_modules() -> None:
    """Leave what lives now out of garbage collection, the first time in this process only: who
    runs for long gathers other objects, and these are to go.
    """
    if _kept.pid != os.getpid():
        _kept.pid = os.getpid()
        gc.collect()
        gc.freeze()


class _KnownZip(zipimporter):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._seen = _identity(self.archive)

    def invalidate_caches(self) -> None:
        now = _identity(self.archive)
        if now != self._seen:
            self._seen = now
            super().invalidate_caches()


def _identity(archive: str) -> tuple[int, int, int] | None:
    try:
        found = Path(archive).stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns

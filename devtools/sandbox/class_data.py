"""Archives of classes that a JVM maps into memory in place of loading them (class data sharing).

With one, a broker starts with two thirds of the CPU time, and a Spark session with half; the tests
start about a hundred of each. A JVM ignores an archive of another Java or another class path.

https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html
"""

from collections.abc import Callable
from pathlib import Path

from sidetier.brokers.cache import cache_root, fetch_once
from sidetier.brokers.errors import LocalServerError
from sidetier.brokers.java import Java

_FILE = "classes.jsa"


def class_data_flags(program: str, java: Java) -> tuple[str, ...]:
    """Return the JVM flags that use the program's archive; none if it has not been written."""
    archive = cache_root() / _folder(program, java) / _FILE
    if not archive.is_file():
        return ()
    return (f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off")


def archive_classes(program: str, java: Java, run: Callable[[str], None]) -> Path:
    """Write the archive of a program unless there is one; return its folder in the cache.

    `run` runs the program with one more JVM flag, to a normal end: the JVM writes the archive then.

    Raises:
        LocalServerError: The JVM has written no archive.
    """

    def fill(folder: Path) -> None:
        archive = folder / _FILE
        run(f"-XX:ArchiveClassesAtExit={archive}")
        if not archive.is_file():
            raise LocalServerError(f"the JVM of {program} ended without writing {archive}")

    return fetch_once(_folder(program, java), fill)


def _folder(program: str, java: Java) -> str:
    return f"class-data/{program}-java-{java.version}"

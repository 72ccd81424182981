"""Fetches the jars of pinned Java servers, by Maven where it is installed, else by Ivy."""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sidetier.sandbox.cache import fetch_once
from sidetier.sandbox.errors import FetchError
from sidetier.sandbox.ivy import ivy_jar
from sidetier.sandbox.java import find_java

_COPY_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_TIMEOUT_SECONDS = 900
_ERROR_LINES = 30


@dataclass(frozen=True, slots=True)
class Artifact:
    """Maven coordinates; the classifier may be empty.

    An artifact with a classifier comes alone: such a jar holds what it needs, in the versions that
    its makers chose. The pom beside it would bring others for us, for whom it is a dependency and
    its own `dependencyManagement` does not count. `alone` says so of others: of those that run
    inside a program which brings the rest.
    """

    group: str
    name: str
    version: str
    classifier: str = ""
    alone: bool = False

    @property
    def comes_alone(self) -> bool:
        """Whether nothing is fetched that it depends on."""
        return self.alone or bool(self.classifier)


@dataclass(frozen=True, slots=True)
class Distribution:
    """A server: its name in the cache, and the artifacts that bring all of its jars."""

    name: str
    artifacts: tuple[Artifact, ...]


KAFKA_3_9 = Distribution(
    "kafka-3.9.2",
    (
        Artifact("org.apache.kafka", "kafka_2.13", "3.9.2"),  # brings ZooKeeper 3.8.4
        Artifact("org.slf4j", "slf4j-reload4j", "1.7.36"),
    ),
)
KAFKA_4_3 = Distribution(
    "kafka-4.3.1",
    (
        Artifact("org.apache.kafka", "kafka_2.13", "4.3.1"),
        Artifact("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
    ),
)
HADOOP_HDFS = Distribution(
    "hadoop-hdfs-3.4.2",
    (
        Artifact("org.apache.hadoop", "hadoop-hdfs", "3.4.2"),  # the NameNode and the DataNode
        Artifact("org.apache.hadoop", "hadoop-hdfs-client", "3.4.2"),
        Artifact("org.apache.hadoop", "hadoop-common", "3.4.2"),
    ),
)


def jars_of(distribution: Distribution, *, root: Path | None = None) -> Path:
    """The folder with all jars of the distribution, fetched when it is not in the cache yet.

    Raises:
        FetchError: the download failed; the text ends with what the tool said.
        JavaMissingError: no Java is there to fetch with.
    """
    fetch = fetch_with_maven if shutil.which("mvn") else fetch_with_ivy
    return fetch_once(
        f"jars/{distribution.name}", lambda folder: fetch(distribution, folder), root=root
    )


def class_path(folder: Path) -> str:
    """The class path of all jars in a folder, as one word for `java -cp`."""
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

    Of a Maven module Ivy takes the type `jar` only, unless it is told that others (`bundle`) are
    jars too.
    """
    java = find_java()
    module = folder / "ivy.xml"
    module.write_text(_ivy_module(distribution))
    cache = folder / "ivy-cache"
    pattern = f"{folder}/[artifact]-[revision](-[classifier]).[ext]"
    command = [str(java.program), *java.download_options(), "-jar", str(ivy_jar()), "-warn"]
    command += ["-cache", str(cache), "-ivy", str(module), "-confs", "default"]
    command += ["-retrieve", pattern, "-types", "jar", "bundle"]
    _run(command, folder)
    module.unlink()
    shutil.rmtree(cache)
    _require_jars(distribution, folder)


def _pom(distribution: Distribution) -> str:
    dependencies = "".join(map(_maven_dependency, distribution.artifacts))
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>sidetier</groupId><artifactId>sandbox</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>\n"
    )


def _maven_dependency(artifact: Artifact) -> str:
    classifier = f"<classifier>{artifact.classifier}</classifier>" if artifact.classifier else ""
    alone = (
        "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
        "</exclusions>"
    )
    return (
        f"<dependency><groupId>{artifact.group}</groupId><artifactId>{artifact.name}</artifactId>"
        f"<version>{artifact.version}</version>{classifier}{alone if artifact.comes_alone else ''}"
        "</dependency>"
    )


def _ivy_module(distribution: Distribution) -> str:
    dependencies = "".join(map(_ivy_dependency, distribution.artifacts))
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="sidetier" module="sandbox" revision="1"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>\n"
    )


def _ivy_dependency(artifact: Artifact) -> str:
    head = (
        f'<dependency org="{artifact.group}" name="{artifact.name}" rev="{artifact.version}" '
        f'conf="default-&gt;default"'
    )
    if not artifact.comes_alone:
        return f"{head}/>"
    if not artifact.classifier:
        return f'{head} transitive="false"/>'
    return (
        f'{head} transitive="false"><artifact name="{artifact.name}" type="jar" ext="jar" '
        f'm:classifier="{artifact.classifier}"/></dependency>'
    )


def _require_jars(distribution: Distribution, folder: Path) -> None:
    """Ivy ends with 0 also when an artifact was not found."""
    for artifact in distribution.artifacts:
        if not list(folder.glob(f"{artifact.name}-{artifact.version}*.jar")):
            raise FetchError(f"{distribution.name}: {artifact.name} {artifact.version} is missing")


def _run(command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(
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
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-_ERROR_LINES:])
        raise FetchError(f"{command[0]} ended with {done.returncode}:\n{tail}")

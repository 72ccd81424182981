"""Files of a release: wheel, sdist, chart package, SBOMs, image and checksums.

Everything is built from the last commit, not from the working tree, and every time stamp is the
commit's (SOURCE_DATE_EPOCH). So the same commit gives the same bytes on every machine with the
same versions of Python, zlib and the locked tools. The image is the exception: an engine decides
about the time stamps of its layers.
"""

import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import yaml

CHECKSUMS: Final = "SHA256SUMS"
SBOM_LOCKS: Final = {"": "runtime", "-consumer": "consumer"}
"""Suffix of an SBOM's name, and the lock file that it lists. Each is an image that the Dockerfile
builds.
"""
ENGINES: Final = ("docker", "buildah")
_CHART: Final = Path("helm", "sidetier")
_IMAGE: Final = "sidetier"
_VERSION: Final = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
_IMAGE_VERSION: Final = re.compile(r'org\.opencontainers\.image\.version="([^"]+)"')


class ReleaseError(Exception):
    """A release cannot be built. The message names the remedy."""


@dataclass(frozen=True, slots=True)
class Source:
    """The files of one commit.

    Attributes:
        tree: directory with the files, without those that git does not track.
        commit: full hash.
        epoch: seconds since 1970 at which the commit was created.
    """

    tree: Path
    commit: str
    epoch: int
    version: str


@dataclass(frozen=True, slots=True)
class Tools:
    """Programs that build the files."""

    hatchling: Path
    helm: Path
    cyclonedx: Path


# -- the source -----------------------------------------------------------------------------------


def export(repository: Path, tree: Path) -> Source:
    """Write the files of the last commit into `tree`, which is created.

    Raises:
        ReleaseError: This is not a git repository, or the commit's files differ in their version.
    """
    archive = _git(repository, "archive", "--format=tar", "HEAD")
    tree.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(tree, filter="tar")
    commit, epoch = _git(repository, "log", "-1", "--format=%H %ct").decode().split()
    return Source(tree, commit, int(epoch), version_of(tree))


def _git(repository: Path, *words: str) -> bytes:
    try:
        done = subprocess.run(["git", *words], cwd=repository, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ReleaseError(
            f"git {words[0]} failed in {repository}: a release is built from the last commit of a "
            "git repository"
        ) from error
    return done.stdout


def version_of(tree: Path) -> str:
    """Return the version of the package, which the chart and the image must have too.

    Raises:
        ReleaseError: A file names another version, or none.
    """
    chart = yaml.safe_load((tree / _CHART / "Chart.yaml").read_text(encoding="utf-8"))
    versions: dict[str, str | None] = {
        "src/sidetier/__init__.py": _match(_VERSION, tree / "src" / "sidetier" / "__init__.py"),
        "version in helm/sidetier/Chart.yaml": chart.get("version"),
        "appVersion in helm/sidetier/Chart.yaml": chart.get("appVersion"),
        "label of the Dockerfile": _match(_IMAGE_VERSION, tree / "Dockerfile"),
    }
    version = versions["src/sidetier/__init__.py"]
    if version is None or set(versions.values()) != {version}:
        named = ", ".join(f"{place}: {text}" for place, text in versions.items())
        raise ReleaseError(f"the versions differ: {named}; set all of them to the same version")
    return version


def _match(pattern: re.Pattern[str], file: Path) -> str | None:
    match = pattern.search(file.read_text(encoding="utf-8"))
    return match[1] if match else None


# -- the files ------------------------------------------------------------------------------------


def build(source: Source, tools: Tools, directory: Path) -> None:
    """Write wheel, sdist, chart package and SBOMs into an existing directory.

    Raises:
        ReleaseError: A program failed.
    """
    build_distributions(source, tools.hatchling, directory)
    package_chart(source, tools.helm, directory)
    write_sboms(source, tools.cyclonedx, directory)


def build_distributions(source: Source, hatchling: Path, directory: Path) -> None:
    """Write the wheel and the sdist. The links in src/sidetier become files."""
    _run(source, [hatchling, "build", "--directory", directory], source.tree)


def build_from_sdist(source: Source, sdist: Path, hatchling: Path, directory: Path) -> Path:
    """Build a wheel from the sdist, as `pip install` of an sdist does; return its path."""
    with tempfile.TemporaryDirectory() as unpacked:
        with tarfile.open(sdist) as files:
            files.extractall(unpacked, filter="data")
        (tree,) = Path(unpacked).iterdir()
        _run(source, [hatchling, "build", "--target", "wheel", "--directory", directory], tree)
    (wheel,) = directory.glob("*.whl")
    return wheel


def package_chart(source: Source, helm: Path, directory: Path) -> None:
    """Write the chart package that `helm package` builds, with the commit's time stamps."""
    with tempfile.TemporaryDirectory() as packed:
        _run(source, [helm, "package", source.tree / _CHART, "--destination", packed])
        (package,) = Path(packed).iterdir()
        repack(package, directory / package.name, source.epoch)


def repack(package: Path, target: Path, epoch: int) -> None:
    """Copy a tar.gz file: entries in the order of their names, owned by root, all of one time."""
    content = io.BytesIO()
    with (
        tarfile.open(package) as old,
        tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for entry in sorted(old.getmembers(), key=lambda entry: entry.name):
            copy = tarfile.TarInfo(entry.name)
            copy.size, copy.mode, copy.mtime = entry.size, 0o644, epoch
            new.addfile(copy, old.extractfile(entry))
    # The header of a gzip file contains a file name and a time unless both are given.
    with target.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=epoch) as packed:
        packed.write(content.getvalue())


def write_sboms(source: Source, cyclonedx: Path, directory: Path) -> None:
    """Write a CycloneDX file for each of SBOM_LOCKS: every locked package, with its hashes."""
    # The tool does not know hatchling's dynamic version.
    static = source.tree.parent / "pyproject-for-sbom.toml"
    project = (source.tree / "pyproject.toml").read_text(encoding="utf-8")
    dynamic, version = 'dynamic = ["version"]\n', f'version = "{source.version}"\n'
    static.write_text(project.replace(dynamic, version), encoding="utf-8")
    for suffix, lock in SBOM_LOCKS.items():
        file = directory / f"sidetier-{source.version}{suffix}.cdx.json"
        words: list[str | Path] = ["requirements", "--output-reproducible", "--pyproject", static]
        words += ["--output-file", file, source.tree / "requirements" / f"{lock}.txt"]
        _run(source, [cyclonedx, *words])


def write_checksums(directory: Path) -> None:
    """Write the SHA-256 of every file, in the format that `sha256sum --check` reads."""
    files = sorted(path for path in directory.iterdir() if path.name != CHECKSUMS)
    lines = [f"{_sha256(file)}  {file.name}\n" for file in files]
    (directory / CHECKSUMS).write_text("".join(lines), encoding="utf-8")


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _run(source: Source, command: Sequence[str | Path], directory: Path | None = None) -> None:
    """Run a program with the commit's time. Raises ReleaseError with its output if it fails."""
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(source.epoch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ReleaseError(f"{' '.join(map(str, command))} failed:\n{done.stdout}")


# -- the image ------------------------------------------------------------------------------------


def find_engine() -> str | None:
    """Return the first of ENGINES that can build an image here; None if there is none."""
    for engine in ENGINES:
        if shutil.which(engine) is None:
            continue
        # `docker info` fails without a daemon, `buildah info` where it may not mount.
        done = subprocess.run([engine, "info"], capture_output=True, check=False)
        if done.returncode == 0:
            return engine
    return None


def build_image(source: Source, engine: str, directory: Path, base: str | None = None) -> None:
    """Build the image, and write it as an archive that `docker load` reads.

    `base` is the base image with its digest (`python:...@sha256:...`); None is the Dockerfile's.
    """
    created = datetime.fromtimestamp(source.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    arguments = {"REVISION": source.commit, "CREATED": created}
    if base is not None:
        arguments["BASE_IMAGE"] = base
        arguments["BASE_DIGEST"] = base.partition("@")[2]
    name = f"{_IMAGE}:{source.version}"
    file = directory / f"sidetier-{source.version}-image.tar"
    options = [f"--build-arg={key}={value}" for key, value in arguments.items()]
    if engine == "buildah":
        options.append(f"--timestamp={source.epoch}")
    _run(source, [engine, "build", f"--tag={name}", *options, source.tree])
    if engine == "buildah":
        _run(source, [engine, "push", name, f"docker-archive:{file}:{name}"])
    else:
        _run(source, [engine, "save", f"--output={file}", name])

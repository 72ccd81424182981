"""Build or check a release, or list licences: `python -m devtools.release`."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from devtools.release import artifacts, check, licences
from devtools.release.artifacts import ReleaseError, Source, Tools
from devtools.sandbox.chart_tools import helm
from sidetier.brokers.errors import LocalServerError

_ROOT: Final = Path(__file__).parents[2]
_programs = click.option(
    "--programs",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=True,
    help="Directory of cyclonedx-py and pip-licenses.",
)


@click.group(name="python -m devtools.release")
def main() -> None:
    """Build or check a release, or list licences."""


@main.command()
@_programs
@click.option(
    "--into",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("dist"),
    show_default=True,
    help="Directory of the files; its content is replaced.",
)
@click.option("--base-image", help="Base image with its digest: python:...@sha256:...")
def build(programs: Path, into: Path, base_image: str | None) -> None:
    """Build all files from the last commit."""
    with _problems_as_messages(), _exported() as source:
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir(parents=True)
        artifacts.build(source, _tools(programs), into)
        engine = artifacts.find_engine()
        if engine is None:
            click.echo("no image: neither docker nor buildah can build one here")
        else:
            artifacts.build_image(source, engine, into, base_image)
        artifacts.write_checksums(into)
        click.echo((into / artifacts.CHECKSUMS).read_text(encoding="utf-8"), nl=False)


@main.command(name="check")
@_programs
@click.option("--tag", help="Tag of the release, which must be `v` and the version.")
def check_release(programs: Path, tag: str | None) -> None:
    """Build the files twice, without the image, and compare and check them."""
    with (
        _problems_as_messages(),
        tempfile.TemporaryDirectory(prefix="sidetier-release-") as directory,
    ):
        first, second = Path(directory, "first"), Path(directory, "second")
        for into in (first, second):
            into.mkdir()
            with _exported() as source:
                _require_tag(tag, source.version)
                artifacts.build(source, _tools(programs), into)
                artifacts.write_checksums(into)
        third = Path(directory, "from-sdist")
        sdist = first / f"sidetier-{source.version}.tar.gz"
        wheel = artifacts.build_from_sdist(source, sdist, _tools(programs).hatchling, third)
        problems = [
            *(f"{name} differs between two builds" for name in check.differences(first, second)),
            *check.differing_entries(first / wheel.name, wheel),
            *check.problems(first, source.version),
            *check.sbom_problems(first, source.version),
        ]
        if problems:
            raise ReleaseError("\n".join(problems))
        files = sorted(path.name for path in first.iterdir())
        click.echo(f"byte-equal in two builds of {source.commit[:12]}: {', '.join(files)}")


@main.command(name="licences")
@_programs
def list_licences(programs: Path) -> None:
    """List the licences of all packages that are needed at run time, and check them."""
    found = licences.read_licences(programs / "pip-licenses", licences.runtime_packages())
    for row in found:
        click.echo(f"{row.package:28} {row.version:12} {row.licence}")
    refused = [row.package for row in found if not row.is_allowed]
    if refused:
        raise click.ClickException(
            f"the licence of {', '.join(refused)} is unknown or not in ALLOWED of "
            "devtools/release/licences.py: add it there if Sidetier can be distributed with it"
        )


def _require_tag(tag: str | None, version: str) -> None:
    if tag not in {None, f"v{version}"}:
        raise ReleaseError(
            f"the tag is {tag}, and the version {version}: tag v{version}, or set the version"
        )


@contextmanager
def _exported() -> Iterator[Source]:
    with tempfile.TemporaryDirectory(prefix="sidetier-source-") as directory:
        yield artifacts.export(_ROOT, Path(directory, "tree"))


@contextmanager
def _problems_as_messages() -> Iterator[None]:
    try:
        yield
    except (ReleaseError, LocalServerError) as error:
        raise click.ClickException(str(error)) from error


def _tools(programs: Path) -> Tools:
    return Tools(
        hatchling=Path(sys.executable).parent / "hatchling",
        helm=helm(),
        cyclonedx=programs / "cyclonedx-py",
    )


if __name__ == "__main__":
    main()

"""What must hold for the files of a release."""

import email.parser
import filecmp
import json
import re
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from devtools.release.artifacts import SBOM_LOCKS

_PACKAGE_FILES: Final = re.compile(r"^sidetier(-[0-9a-z.]+\.dist-info)?/")
_PUBLIC_INDEX: Final = "https://pypi.org/simple/"


def differences(first: Path, second: Path) -> list[str]:
    """Return the names of files that only one directory has, or that have different bytes."""
    names = {path.name for path in (*first.iterdir(), *second.iterdir())}
    same, _, _ = filecmp.cmpfiles(first, second, names, shallow=False)
    return sorted(names - set(same))


def differing_entries(wheel: Path, from_sdist: Path) -> list[str]:
    """Return a sentence if a wheel that was built from the sdist has other files."""
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(from_sdist) as second:
        names = set(first.namelist()) ^ set(second.namelist())
        names |= {
            name for name in set(first.namelist()) - names if first.read(name) != second.read(name)
        }
    return (
        [f"a wheel that is built from the sdist differs in {', '.join(sorted(names))}"]
        if names
        else []
    )


def problems(directory: Path, version: str) -> Iterator[str]:
    """Yield a sentence for everything that is wrong with the wheel, the sdist and the chart."""
    yield from _wheel_problems(directory / f"sidetier-{version}-py3-none-any.whl", version)
    yield from _sdist_problems(directory / f"sidetier-{version}.tar.gz", version)
    yield from _chart_problems(directory / f"sidetier-{version}.tgz", version)


def _wheel_problems(wheel: Path, version: str) -> Iterator[str]:
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
        metadata = files.read(f"sidetier-{version}.dist-info/METADATA").decode()
    for name in names:
        if not _PACKAGE_FILES.match(name) or name.startswith("sidetier/tests/"):
            yield f"{wheel.name} contains {name}, which is not part of the package"
    if "sidetier/cli/__main__.py" not in names:
        yield f"{wheel.name} has no sidetier/cli/__main__.py: the links in src/sidetier are missing"
    if (stated := email.parser.Parser().parsestr(metadata)["Version"]) != version:
        yield f"{wheel.name} has the version {stated}, and the release {version}"


def _sdist_problems(sdist: Path, version: str) -> Iterator[str]:
    with tarfile.open(sdist) as files:
        entries = files.getmembers()
    links = [entry.name for entry in entries if not entry.isfile()]
    if links:
        yield f"{sdist.name} contains {links[0]}, which is not a regular file"
    if f"sidetier-{version}/src/sidetier/cli/__main__.py" not in {e.name for e in entries}:
        yield f"{sdist.name} has no src/sidetier/cli: a wheel that is built from it would be empty"


def _chart_problems(package: Path, version: str) -> Iterator[str]:
    with tarfile.open(package) as files:
        about = files.extractfile("sidetier/Chart.yaml")
        chart = yaml.safe_load(about.read()) if about else {}
    for key in ("version", "appVersion"):
        if chart.get(key) != version:
            yield f"{package.name} has the {key} {chart.get(key)}, and the release {version}"


def sbom_problems(directory: Path, version: str) -> Iterator[str]:
    """Yield a sentence for everything that is wrong with the SBOMs."""
    for suffix, lock in SBOM_LOCKS.items():
        file = directory / f"sidetier-{version}{suffix}.cdx.json"
        bom: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if (stated := bom["metadata"]["component"].get("version")) != version:
            yield f"{file.name} has the version {stated}, and the release {version}"
        if not bom["components"]:
            yield f"{file.name} lists no package of requirements/{lock}.txt"
        for component in bom["components"]:
            for reference in component["externalReferences"]:
                # The address of a private index would end up here.
                if not reference["url"].startswith(_PUBLIC_INDEX):
                    yield f"{file.name}: {component['name']} comes from {reference['url']}"
                if not reference.get("hashes"):
                    yield f"{file.name}: {component['name']} has no hash"

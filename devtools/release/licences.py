"""Licences of the packages that Sidetier needs at run time, from their installed metadata."""

import json
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTRAS: Final = ("consumer", "export", "mirror", "hdfs", "spark")
"""Extras of Sidetier; `spark35` has the same packages as `spark`."""

ALLOWED: Final = frozenset({
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "MIT", "MIT-0"),
    *("PSF-2.0", "Zlib"),
    # Names in the metadata of packages that do not use SPDX's.
    *("3-Clause BSD License", "Apache Software License", "BSD License", "MIT License"),
    "Zope Public License",
    # Weak copyleft: it covers changes of these packages, which Sidetier installs unchanged.
    "GNU Lesser General Public License v2 or later (LGPLv2+)",
    "Mozilla Public License 2.0 (MPL 2.0)",
})  # fmt: skip
"""Licences under which Sidetier and its image can be distributed with the package."""

STATED_ELSEWHERE: Final[Mapping[str, str]] = {
    "hdfs-native": "Apache-2.0",  # the file LICENSE in its repository
}
"""Licences of packages whose metadata has none."""

_UNKNOWN: Final = "UNKNOWN"
_OPERATORS: Final = re.compile(r"; | AND | OR ")


@dataclass(frozen=True, slots=True, order=True)
class Licence:
    """A package, and the licence in its metadata: an SPDX expression or a free text."""

    package: str
    version: str
    licence: str

    @property
    def is_allowed(self) -> bool:
        """Whether every part of the expression is in ALLOWED, those after OR too."""
        return set(_OPERATORS.split(self.licence)) <= ALLOWED


def runtime_packages(name: str = "sidetier", extras: Collection[str] = EXTRAS) -> set[str]:
    """Return the packages that this one needs on this platform, directly or not."""
    packages: set[str] = set()
    waiting, seen = [(name, frozenset(extras))], set()
    while waiting:
        needed = waiting.pop()
        if needed in seen:
            continue
        seen.add(needed)
        for requirement in _requirements(*needed):
            package = canonicalize_name(requirement.name)
            packages.add(package)
            waiting.append((package, frozenset(requirement.extras)))
    return packages


def _requirements(name: str, extras: Collection[str]) -> Iterator[Requirement]:
    for text in metadata.requires(name) or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def read_licences(pip_licenses: Path, packages: Collection[str]) -> list[Licence]:
    """Return the licence of each package, sorted by name."""
    words = ["--python", sys.executable, "--from", "mixed", "--format", "json"]
    done = subprocess.run(
        [pip_licenses, *words, "--packages", *sorted(packages)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return sorted(
        _licence(canonicalize_name(row["Name"]), row["Version"], row["License"])
        for row in json.loads(done.stdout)
    )


def _licence(package: str, version: str, licence: str) -> Licence:
    if licence == _UNKNOWN:
        licence = STATED_ELSEWHERE.get(package, _UNKNOWN)
    return Licence(package, version, licence)

"""`sidetier` as it is installed in the image, for the processes that are measured.

A development environment has packages that change the figures: kio imports hypothesis where it is
installed, which takes 200 MB and 2 CPU seconds.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal

from sidetier.brokers.cache import cache_root

_TREE = Path(__file__).resolve().parents[2]
_SOURCES = _TREE / "src/sidetier"
_BUILD = _TREE / "docker/build.sh"
_TIMEOUT = 900.0

Requirements = Literal["runtime", "consumer"]
"""Lock files of the sidecar, and of commands and programs that read the archive."""


@cache
def installed_programs(requirements: Requirements) -> Path:
    """Return the directory of `python` and `sidetier` in an environment with this tree's packages.

    `docker/build.sh` makes it. It is kept in the cache until the lock file changes. The tree is
    installed in it again after each change of the tree.

    Raises:
        RuntimeError: It cannot be made.
    """
    lock_file = _TREE / f"requirements/{requirements}.txt"
    identity = f"{sys.version} {_TREE} ".encode()
    pinned = hashlib.sha256(identity + lock_file.read_bytes()).hexdigest()[:16]
    environment = cache_root() / "installed" / f"{requirements}-{pinned}"
    environment.parent.mkdir(parents=True, exist_ok=True)
    has_dependencies, source = environment / "has-dependencies", environment / "source"
    with environment.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not has_dependencies.exists():
            shutil.rmtree(environment, ignore_errors=True)
            _build("dependencies", environment, requirements=requirements)
            has_dependencies.touch()
        digest = hashlib.sha256(b"".join(_contents())).hexdigest()
        if not source.exists() or source.read_text() != digest:
            source.unlink(missing_ok=True)
            wheels = environment / "wheels"
            shutil.rmtree(wheels, ignore_errors=True)
            _build("package", environment, wheels)
            source.write_text(digest)
    return environment / "bin"


def _contents() -> Iterator[bytes]:
    """Yield name and content of each file of the packages."""
    # `rglob` does not follow the links to the packages.
    for entry in sorted(_SOURCES.iterdir()):
        root = entry.resolve()
        for path in sorted(root.rglob("*.*")) if root.is_dir() else [root]:
            if path.is_file() and "__pycache__" not in path.parts:
                yield str(path.relative_to(_TREE)).encode() + b"\0" + path.read_bytes()
    yield (_TREE / "pyproject.toml").read_bytes()


def _build(step: str, *arguments: Path, requirements: Requirements = "runtime") -> None:
    line = ["sh", str(_BUILD), step, *map(str, arguments)]
    environment = {**os.environ, "PYTHON": sys.executable, "REQUIREMENTS": requirements}
    # Packages of the caller must not hide those that are installed.
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        line, env=environment, capture_output=True, text=True, timeout=_TIMEOUT, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(line)} ended:\n{done.stderr[-3000:]}")

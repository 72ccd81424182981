"""Install pinned npm packages."""

import shutil
import subprocess
from pathlib import Path
from typing import Final

from sidetier.brokers.errors import FetchError, LocalServerError

_TIMEOUT_SECONDS: Final = 900


class NodeMissingError(LocalServerError):
    """Node.js or npm was not found; the message explains how to install them."""


def install(npm: str, packages: Path, folder: Path, name: str) -> None:
    """Copy `package.json` and `package-lock.json` into a folder, and install the packages there.

    The lock file pins every package by its hash, and no install script runs.

    Args:
        npm: Path of the program.
        packages: Folder of both files.
        folder: Where `node_modules` is created.
        name: What is installed, for messages.

    Raises:
        FetchError: npm failed, or took too long.
    """
    shutil.copytree(packages, folder, dirs_exist_ok=True)
    arguments = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"]
    try:
        subprocess.run(
            arguments,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=_TIMEOUT_SECONDS,
        )
    except subprocess.CalledProcessError as error:
        raise FetchError(f"npm ci of {name} failed:\n{error.stderr}") from error
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"npm ci of {name} took over {_TIMEOUT_SECONDS} s") from error

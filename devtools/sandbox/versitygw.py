"""versitygw: an S3 server in one program that stores objects in a directory; built with Go."""

import os
import subprocess
from pathlib import Path

from devtools.sandbox.go import some_go
from sidetier.brokers.cache import fetch_once
from sidetier.brokers.errors import FetchError

VERSION = "1.8.0"
_PACKAGE = f"github.com/versity/versitygw/cmd/versitygw@v{VERSION}"
_BUILD_TIMEOUT_SECONDS = 1200
_PROBE_ATTRIBUTE = "user.sidetier.probe"


def program(*, root: Path | None = None) -> Path:
    """Return the cached program; it is built first if missing (about four minutes of CPU time).

    Raises:
        FetchError: The download or the build failed.
    """
    return fetch_once(f"versitygw-{VERSION}", _build, root=root) / "versitygw"


def command(directory: Path, address: str, certificate: tuple[Path, Path] | None) -> list[str]:
    """Return the server's command line for `directory`; `certificate` is a pair of PEM files."""
    buckets, side = directory / "buckets", directory / "metadata"
    buckets.mkdir(parents=True, exist_ok=True)
    line = [str(program()), "--port", address, "--keep-alive", "--quiet"]
    if certificate is not None:
        line += ["--cert", str(certificate[0]), "--key", str(certificate[1])]
    line.append("posix")
    if not _keeps_attributes(buckets):
        side.mkdir(exist_ok=True)
        line += ["--sidecar", str(side)]
    return [*line, str(buckets)]


def environment(access_key: str, secret_key: str, region: str) -> dict[str, str]:
    """Return the server's environment, with the keys of its only user."""
    return {"ROOT_ACCESS_KEY": access_key, "ROOT_SECRET_KEY": secret_key, "VGW_REGION": region}


def _build(folder: Path) -> None:
    try:
        with some_go(folder) as go:
            subprocess.run(
                [go.program, "install", _PACKAGE],
                env={**go.environment, "GOBIN": str(folder)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=True,
                timeout=_BUILD_TIMEOUT_SECONDS,
            )
    except subprocess.CalledProcessError as error:
        raise FetchError(f"go install {_PACKAGE} failed:\n{error.stderr}") from error
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"go install {_PACKAGE} took over {_BUILD_TIMEOUT_SECONDS} s") from error


def _keeps_attributes(directory: Path) -> bool:
    """Return whether the file system has user attributes, in which the server stores metadata."""
    try:
        os.setxattr(directory, _PROBE_ATTRIBUTE, b"1")
        os.removexattr(directory, _PROBE_ATTRIBUTE)
    except OSError:
        return False
    return True

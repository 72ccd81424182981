"""Azurite, Microsoft's emulator of Azure Blob Storage: installed with npm, run by Node.js."""

import shutil
from pathlib import Path
from typing import Final, Self

from devtools.sandbox import npm
from devtools.sandbox.npm import NodeMissingError
from devtools.sandbox.s3server import TlsCertificate
from sidetier.brokers.cache import fetch_once
from sidetier.brokers.ports import HOST, free_port, is_listening
from sidetier.brokers.processes import STOP_GRACE_SECONDS, Command, ManagedProcess

VERSION: Final = "3.37.0"
ACCOUNT: Final = "devstoreaccount1"
ACCOUNT_KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""Published by Microsoft; Azurite and all Azure clients know this account and key."""

START_TIMEOUT_SECONDS = 120.0
_PACKAGES = Path(__file__).with_name("azurite_npm")
_MAIN = Path("node_modules", "azurite", "dist", "src", "blob", "main.js")


def azurite(*, root: Path | None = None) -> Path:
    """Return the cached folder of Azurite; npm installs it first if it is missing.

    `azurite_npm/package-lock.json` pins every package by its hash, and no install script runs. The
    overrides in `azurite_npm/package.json` replace packages with an empty module where a blob
    service without telemetry and SQL never calls them: 266 of 457 packages, and 300 of 365 MB.
    After a change of the version, regenerate the lock file in that folder: `npm install
    --package-lock-only --ignore-scripts --omit-lockfile-registry-resolved`.

    Raises:
        NodeMissingError: npm or Node.js is not installed.
        FetchError: npm failed.
    """
    return fetch_once(f"azurite-{VERSION}", _install, root=root)


def _install(folder: Path) -> None:
    program = _program("npm")
    _program("node")  # check for Node.js now, not at the first start of a server
    npm.install(program, _PACKAGES, folder, f"azurite {VERSION}")


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise NodeMissingError(
            f"{name} was not found on PATH. Azurite, the Azure of the tests, needs "
            "Node.js 20 or newer with npm. Install the packages nodejs and npm, or take Node.js "
            "from https://nodejs.org"
        )
    return path


class AzuriteServer:
    """Azurite's blob service on its own port, with the account `ACCOUNT`.

    All blobs and containers are in memory: after a stop or kill, the server starts empty. Its log
    is `server.log` in `directory`, with one line per request. Leaving the context stops the server.
    """

    def __init__(self, directory: Path, *, certificate: TlsCertificate | None = None) -> None:
        """Choose a port; with `certificate` the server speaks HTTPS."""
        self.directory = directory.absolute()
        self.port = free_port()
        scheme = "http" if certificate is None else "https"
        self.endpoint_url = f"{scheme}://{HOST}:{self.port}/{ACCOUNT}"
        self.directory.mkdir(parents=True, exist_ok=True)
        # Azurite opens its debug log and its files in the working directory.
        log = self.directory / "server.log"
        environment = {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{ACCOUNT_KEY}"}
        command = Command("Azurite", self._line(certificate), log, environment, self.directory)
        self.process = ManagedProcess(command)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server, and return once it accepts connections; kill it on failure.

        Raises:
            ServerDiedError: It ended at start; the message has the tail of its log.
            ServerTimeoutError: It did not listen in time.
        """
        self.process.start()
        try:
            self.process.wait_until(lambda: is_listening(self.port), START_TIMEOUT_SECONDS)
        except BaseException:
            self.process.kill()
            raise

    def stop(self, grace: float = STOP_GRACE_SECONDS) -> None:
        """Stop the server, which loses its blobs."""
        self.process.stop(grace)

    def kill(self) -> None:
        """Kill the server, which loses its blobs."""
        self.process.kill()

    def pause(self) -> None:
        """Freeze the server: it keeps its connections and answers no request."""
        self.process.pause()

    def resume(self) -> None:
        """Resume the paused server."""
        self.process.resume()

    def _line(self, certificate: TlsCertificate | None) -> list[str]:
        line = [_program("node"), str(azurite() / _MAIN), "--blobHost", HOST]
        line += ["--blobPort", str(self.port), "--inMemoryPersistence", "--disableTelemetry"]
        if certificate is not None:
            line += ["--cert", str(certificate.certificate), "--key", str(certificate.key)]
        return line

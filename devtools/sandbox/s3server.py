"""A real S3 server on this machine, for tests and benchmarks: versitygw, built with Go.

versitygw is one program that stores each object as a file, and honours conditions and checksums.
"""

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from devtools.sandbox.go import GoBuilder, GoTool
from sidetier.brokers.ports import HOST, free_port, is_listening
from sidetier.brokers.processes import STOP_GRACE_SECONDS, Command, ManagedProcess

VERSITYGW: Final = GoTool(
    "versitygw",
    "github.com/versity/versitygw",
    "cmd/versitygw",
    "v1.8.0",
    # The sandbox starts `versitygw posix`. The other commands bring the client of Azure, that of
    # Amazon's IAM, and versitygw's own tests: a third of the build.
    without=(
        "cmd/versitygw/test.go",
        "cmd/internal/gwcli/azure.go",
        "cmd/internal/gwcli/s3.go",
        "cmd/internal/gwcli/scoutfs.go",
    ),
    stubs={
        "cmd/versitygw/stub.go": """package main

import "github.com/urfave/cli/v2"

func testCommand() *cli.Command { return &cli.Command{Name: "test"} }
""",
        "cmd/internal/gwcli/stub.go": """package gwcli

import "github.com/urfave/cli/v2"

func AzureCommand() *cli.Command   { return &cli.Command{Name: "azure"} }
func S3Command() *cli.Command      { return &cli.Command{Name: "s3"} }
func ScoutfsCommand() *cli.Command { return &cli.Command{Name: "scoutfs"} }
""",
    },
)
START_TIMEOUT_SECONDS: Final = 120.0
_PROBE_ATTRIBUTE: Final = "user.sidetier.probe"


def versitygw(*, root: Path | None = None) -> Path:
    """Return the cached program; it is built first if it is missing.

    Raises:
        FetchError: The download or the build failed.
    """
    with GoBuilder(root) as builder:
        return builder.program(VERSITYGW)


@dataclass(frozen=True, slots=True)
class TlsCertificate:
    """A certificate with its chain, and its private key, as PEM files."""

    certificate: Path
    key: Path


class S3Server:
    """A versitygw with its objects below `directory`; they survive a stop and a restart.

    Leaving the context stops the server.
    """

    def __init__(
        self,
        directory: Path,
        *,
        certificate: TlsCertificate | None = None,
        region: str = "us-east-1",
    ) -> None:
        self.directory = directory.absolute()
        self.region = region
        self.access_key = f"sandbox{secrets.token_hex(6)}"
        self.secret_key = secrets.token_hex(20)
        self.port = free_port()
        scheme = "http" if certificate is None else "https"
        self.endpoint_url = f"{scheme}://{HOST}:{self.port}"
        self.directory.mkdir(parents=True, exist_ok=True)
        environment = {
            "ROOT_ACCESS_KEY": self.access_key,
            "ROOT_SECRET_KEY": self.secret_key,
            "VGW_REGION": self.region,
        }
        log = self.directory / "server.log"
        command = Command("versitygw", self._line(certificate), log, environment)
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
        """Stop the server; its objects stay."""
        self.process.stop(grace)

    def kill(self) -> None:
        """Kill the server."""
        self.process.kill()

    def pause(self) -> None:
        """Freeze the server: it keeps its connections and answers no request."""
        self.process.pause()

    def resume(self) -> None:
        """Resume the paused server."""
        self.process.resume()

    def _line(self, certificate: TlsCertificate | None) -> list[str]:
        buckets, metadata = self.directory / "buckets", self.directory / "metadata"
        buckets.mkdir(exist_ok=True)
        line = [str(versitygw()), "--port", f"{HOST}:{self.port}", "--keep-alive", "--quiet"]
        if certificate is not None:
            line += ["--cert", str(certificate.certificate), "--key", str(certificate.key)]
        line.append("posix")
        if not _keeps_attributes(buckets):
            metadata.mkdir(exist_ok=True)
            line += ["--sidecar", str(metadata)]
        return [*line, str(buckets)]


def _keeps_attributes(directory: Path) -> bool:
    """Return whether the file system has user attributes, in which the server stores metadata."""
    try:
        os.setxattr(directory, _PROBE_ATTRIBUTE, b"1")
        os.removexattr(directory, _PROBE_ATTRIBUTE)
    except OSError:
        return False
    return True

"""A real S3 server on this machine, for tests and benchmarks."""

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from devtools.sandbox import versitygw
from sidetier.brokers.ports import HOST, free_port, is_listening
from sidetier.brokers.processes import STOP_GRACE_SECONDS, Command, ManagedProcess

START_TIMEOUT_SECONDS = 120.0


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
        files = None if certificate is None else (certificate.certificate, certificate.key)
        line = versitygw.command(self.directory, f"{HOST}:{self.port}", files)
        environment = versitygw.environment(self.access_key, self.secret_key, self.region)
        log = self.directory / "server.log"
        self.process = ManagedProcess(Command("versitygw", line, log, environment))

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

"""A real S3 server on this machine, for tests and benchmarks."""

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from sidetier.sandbox import s3proxy, versitygw
from sidetier.sandbox.errors import SandboxError
from sidetier.sandbox.jars import S3PROXY, jars_of
from sidetier.sandbox.ports import HOST, free_port, is_listening
from sidetier.sandbox.processes import STOP_GRACE_SECONDS, Command, ManagedProcess

START_TIMEOUT_SECONDS = 120.0
KIND_VARIABLE = "SIDETIER_S3_SERVER"

Kind = Literal["versitygw", "s3proxy"]


def chosen_kind(environ: Mapping[str, str] = os.environ) -> Kind:
    """What `$SIDETIER_S3_SERVER` names, else versitygw.

    Raises:
        SandboxError: the variable names something else.
    """
    named = environ.get(KIND_VARIABLE)
    if named in {None, "", "versitygw"}:
        return "versitygw"
    if named == "s3proxy":
        return "s3proxy"
    raise SandboxError(f"{KIND_VARIABLE}={named}: write versitygw or s3proxy, or leave it out")


def fetch_s3_server() -> Path:
    """Put the chosen server into the cache; where it lies there."""
    return versitygw.program() if chosen_kind() == "versitygw" else jars_of(S3PROXY)


@dataclass(frozen=True, slots=True)
class TlsCertificate:
    """A certificate with its chain, and its private key, both PEM files."""

    certificate: Path
    key: Path


class S3Server:
    """An S3 server whose objects lie below `directory`; it survives a stop and a new start.

    `kind` is `versitygw` or `s3proxy`; by default that of `chosen_kind`. Leaving the context stops
    the server.
    """

    def __init__(
        self,
        directory: Path,
        *,
        certificate: TlsCertificate | None = None,
        kind: Kind | None = None,
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
        self.kind = kind or chosen_kind()
        self.process = self._versitygw(files) if self.kind == "versitygw" else self._s3proxy(files)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server, and return when it accepts connections; on failure nothing is left.

        Raises:
            ServerDiedError: it ended at start; the text has the tail of its log.
            ServerTimeoutError: it did not listen in time.
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
        """Let the server keep its connections and answer nothing."""
        self.process.pause()

    def resume(self) -> None:
        """Let the server go on."""
        self.process.resume()

    @property
    def fences(self) -> bool:
        """Whether of several writers under one If-Match only one can win.

        S3Proxy compares the ETag first and writes then, with nothing to keep others out between.
        """
        return self.kind == "versitygw"

    def _versitygw(self, files: tuple[Path, Path] | None) -> ManagedProcess:
        line = versitygw.command(self.directory, f"{HOST}:{self.port}", files)
        environment = versitygw.environment(self.access_key, self.secret_key, self.region)
        log = self.directory / "server.log"
        return ManagedProcess(Command("versitygw", line, log, environment))

    def _s3proxy(self, files: tuple[Path, Path] | None) -> ManagedProcess:
        keys = (self.access_key, self.secret_key)
        line = s3proxy.command(self.directory, self.endpoint_url, keys, files)
        return ManagedProcess(Command("S3Proxy", line, self.directory / "server.log"))

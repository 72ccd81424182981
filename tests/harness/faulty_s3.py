"""A small S3 server with faults on real sockets, for tests that a mock cannot cover.

It stores objects in memory, checks no signature, and records its requests. Faults are queued, and
each request uses up one.
"""

import hashlib
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from devtools.sandbox.s3server import TlsCertificate
from tests.harness.misbehaving import MisbehavingHandler, MisbehavingServer

_PIECE = 4096


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as it arrived; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Fault = Callable[["_Handler"], bool]
"""Acts on a request. Returns True if the request continues normally."""


class FaultyS3(MisbehavingServer):
    """Runs while its context is entered; `faults` are taken in order, one per request."""

    def __init__(self, certificate: TlsCertificate | None = None) -> None:
        context = None
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.certificate, certificate.key)
        super().__init__(_Handler, context)
        self.objects: dict[str, bytes] = {}
        self.seen: list[Seen] = []
        self.faults: list[Fault] = []


class _Handler(MisbehavingHandler):
    @property
    def owner(self) -> FaultyS3:
        owner: FaultyS3 = self.server.owner  # type: ignore[attr-defined]
        return owner

    def refuse(self, status: int, code: str) -> None:
        text = f"<Error><Code>{code}</Code><Message>as told</Message>".encode()
        text += b"<RequestId>REQUEST-1</RequestId></Error>"
        self.send_response(status)
        self.send_header("x-amz-request-id", "REQUEST-1")
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)
        self.close_connection = True

    def record(self, body: bytes) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.owner.seen.append(Seen(self.command, self.path, headers, body))

    def store(self) -> str:
        body = self.read_body()
        self.record(body)
        self.owner.objects[self.key] = body
        return hashlib.md5(body).hexdigest()  # noqa: S324 - an ETag

    def serve(self) -> None:
        fault = self.owner.faults.pop(0) if self.owner.faults else None
        if fault is not None and not fault(self):
            return
        if self.command == "PUT":
            etag = self.store()
            self._answer(200, b"", etag)
            return
        self.record(self.read_body())
        if self.command == "DELETE":
            self.owner.objects.pop(self.key, None)
            self._answer(204, b"", None)
        elif self.key in self.owner.objects:
            self._answer(200, self.owner.objects[self.key], "etag")
        else:
            self.refuse(404, "NoSuchKey")

    def _answer(self, status: int, body: bytes, etag: str | None) -> None:
        self.send_response(status)
        if etag:
            self.send_header("ETag", f'"{etag}"')
            self.send_header("Last-Modified", "Sat, 01 Aug 2026 00:00:00 GMT")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def answer(status: int, code: str) -> Fault:
    """Return a fault that refuses without asking for the body."""

    def fault(handler: _Handler) -> bool:
        handler.record(b"")
        handler.refuse(status, code)
        return False

    return fault


def hang(handler: _Handler) -> bool:
    """Accept the request and send no answer."""
    handler.record(handler.read_body())
    handler.owner.released.wait()
    handler.close_connection = True
    return False


def cut_at_once(handler: _Handler) -> bool:
    """Close the connection before the body is requested."""
    handler.record(b"")
    handler.cut()
    return False


def cut_in_request(handler: _Handler) -> bool:
    """Close the connection while the body arrives."""
    handler.send_response_only(100)
    handler.end_headers()
    handler.record(handler.rfile.read(_PIECE))
    handler.cut()
    return False


def cut_in_response(handler: _Handler) -> bool:
    """Announce more bytes than are sent, and close the connection."""
    handler.record(handler.read_body())
    data = handler.owner.objects[handler.key]
    handler.send_response(200)
    handler.send_header("ETag", '"etag"')
    handler.send_header("Last-Modified", "Sat, 01 Aug 2026 00:00:00 GMT")
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data[: len(data) // 2])
    handler.wfile.flush()
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True
    return False


def lose_the_answer(handler: _Handler) -> bool:
    """Execute the request, and close the connection instead of answering."""
    handler.store()
    handler.cut()
    return False


def garbage(handler: _Handler) -> bool:
    """Answer with a body that is not XML, like a proxy's error page."""
    handler.record(handler.read_body())
    handler.send_response(200)
    handler.send_header("Content-Length", "9")
    handler.end_headers()
    handler.wfile.write(b"<html>oop")
    return False


def trickle(handler: _Handler) -> bool:
    """Read the body a few bytes at a time, as long as the client sends."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _PIECE)
    handler.send_response_only(100)
    handler.end_headers()
    size = 0
    while not handler.owner.released.wait(0.02):
        piece = handler.rfile.read(_PIECE)
        if not piece:
            break
        size += len(piece)
    handler.record(b"x" * size)
    handler.close_connection = True
    return False

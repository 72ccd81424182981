"""A proxy before an object store's server that misbehaves on command, request by request.

The server sees the client's own headers, so that signatures and conditions hold. It may be an S3
server, Azurite or a `GcsServer`, over plain HTTP; errors are XML in the form that all three share.
A key is what follows the first part of the path: before Azurite, where the first part is the
account, it begins with the container's name.
"""

import http.client
import random
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from sidetier.sandbox.ports import HOST
from tests.harness.misbehaving import MisbehavingHandler, MisbehavingServer

_HOP_BY_HOP = frozenset({"connection", "expect", "transfer-encoding", "keep-alive"})
_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Seen:
    """A request and what became of it: the status of the answer, None where none was given."""

    method: str
    key: str
    size: int
    status: int | None


Fault = Callable[["_Handler"], None]
"""Deals with a request in the server's place."""

Rule = Callable[[str, str], Fault | None]
"""The fault for a method and a key (without the bucket); None lets the request through."""


def well(_method: str, _key: str) -> Fault | None:
    """Everything goes through."""
    return None


def always(fault: Fault) -> Rule:
    """The same fault for every request."""
    return lambda _method, _key: fault


def drawn(dice: random.Random, share: float, faults: Sequence[Fault]) -> Rule:
    """One of the faults for this share of the requests."""

    def rule(_method: str, _key: str) -> Fault | None:
        return dice.choice(faults) if dice.random() < share else None

    return rule


def first_puts(count: int, fault: Fault, suffix: str) -> Rule:
    """The fault for the first so many writes of keys that end like this."""
    left = [fault] * count
    lock = threading.Lock()

    def rule(method: str, key: str) -> Fault | None:
        with lock:
            return left.pop() if left and method == "PUT" and key.endswith(suffix) else None

    return rule


def first(count: int, fault: Fault, *, method: str | None = None, part: str = "") -> Rule:
    """The fault for the first `count` requests of a method, or of any, with `part` in the key."""
    left = [fault] * count
    lock = threading.Lock()

    def rule(its_method: str, key: str) -> Fault | None:
        with lock:
            return left.pop() if left and method in {None, its_method} and part in key else None

    return rule


def by_part(rules: Mapping[str, Rule]) -> Rule:
    """Another rule for each part of a key, such as a topic's name; other keys are let through."""

    def rule(method: str, key: str) -> Fault | None:
        return next((its(method, key) for part, its in rules.items() if part in key), None)

    return rule


class S3Proxy(MisbehavingServer):
    """Runs between `with` and its end; `rule` may be replaced at any time."""

    def __init__(self, port: int) -> None:
        """`port` is that of the server."""
        super().__init__(_Handler)
        self.upstream = port
        self.rule: Rule = well
        self.seen: list[Seen] = []

    def misbehave(self, rule: Rule) -> None:
        """Follow this rule from now on."""
        self.released.clear()
        self.rule = rule

    def heal(self) -> None:
        """Let everything through again, and let go of what hangs."""
        self.rule = well
        self.released.set()

    def found(self, method: str, part: str, status: int | None = 200) -> list[Seen]:
        """The requests of a method with this part in their keys that had this status."""
        return [
            seen
            for seen in list(self.seen)
            if seen.method == method and part in seen.key and seen.status == status
        ]


class _Handler(MisbehavingHandler):
    @property
    def owner(self) -> S3Proxy:
        owner: S3Proxy = self.server.owner  # type: ignore[attr-defined]
        return owner

    def record(self, status: int | None) -> None:
        size = int(self.headers.get("Content-Length", 0))
        self.owner.seen.append(Seen(self.command, self.key, size, status))

    def forward(self, sent: bytes | None = None) -> tuple[http.client.HTTPResponse, bytes]:
        """The server's answer."""
        body = self.read_body() if sent is None else sent
        upstream = http.client.HTTPConnection(HOST, self.owner.upstream, timeout=_TIMEOUT_SECONDS)
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    upstream.putheader(name, value)
            upstream.endheaders(body)
            answer = upstream.getresponse()
            return answer, answer.read()
        finally:
            upstream.close()

    def serve(self) -> None:
        fault = self.owner.rule(self.command, self.key)
        if fault is not None:
            fault(self)
            return
        self.pass_on()

    def pass_on(self, sent: bytes | None = None) -> None:
        """Have the server do it, and pass its answer on; `sent` is the body if it was read."""
        answer, body = self.forward(sent)
        self.record(answer.status)
        self.send_head(answer, body)
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_head(self, answer: http.client.HTTPResponse, body: bytes) -> None:
        """Send the status and the headers of the server's answer."""
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in _HOP_BY_HOP | {"content-length"}:
                self.send_header(name, value)
        # A HEAD tells the length of a body that does not come.
        said = answer.getheader("Content-Length", "0")
        self.send_header("Content-Length", said if self.command == "HEAD" else str(len(body)))
        self.end_headers()


def answer(status: int, code: str) -> Fault:
    """Refuse, without asking for the body."""
    text = f"<Error><Code>{code}</Code><Message>as told</Message></Error>".encode()

    def fault(handler: _Handler) -> None:
        handler.record(status)
        handler.send_response_only(status)
        handler.send_header("Content-Length", str(len(text)))
        handler.send_header("Connection", "close")
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(text)
        handler.close_connection = True

    return fault


def hang(handler: _Handler) -> None:
    """Take the request, and say nothing until the proxy is healed or ends."""
    handler.read_body()
    handler.record(None)
    handler.owner.released.wait()
    handler.close_connection = True


def late(seconds: float) -> Fault:
    """Take the request, and pass it on after so long (or once the proxy is healed), even when its
    sender has given up.
    """

    def fault(handler: _Handler) -> None:
        body = handler.read_body()
        handler.owner.released.wait(seconds)
        handler.pass_on(body)

    return fault


def cut(handler: _Handler) -> None:
    """Close the connection in the middle of the request."""
    with suppress(OSError):
        handler.send_response_only(100)
        handler.end_headers()
        handler.rfile.read(min(1024, int(handler.headers.get("Content-Length", 0))))
    handler.record(None)
    handler.cut()


def lose_the_answer(handler: _Handler) -> None:
    """Have it done, and close the connection instead of saying so."""
    handler.forward()
    handler.record(None)
    handler.cut()


def cut_answer(handler: _Handler) -> None:
    """Have it done, send half of the answer's body, and close the connection."""
    answer, body = handler.forward()
    handler.record(None)
    handler.send_head(answer, body)
    handler.wfile.write(body[: len(body) // 2])
    handler.wfile.flush()
    # An orderly end: after a reset the client might not see the bytes that were sent.
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True

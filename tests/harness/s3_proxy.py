"""A proxy in front of an object store's server that injects faults, request by request.

The server receives the client's own headers, so signatures and conditions stay valid. The server
may be an S3 server, Azurite or a `GcsServer`, over plain HTTP. Errors are XML in the form that all
three share. A key is the path without its first part. Azurite's first part is the account, so a key
there begins with the container's name.
"""

import http.client
import random
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from sidetier.brokers.ports import HOST
from tests.harness.misbehaving import MisbehavingHandler, MisbehavingServer

_HOP_BY_HOP = frozenset({"connection", "expect", "transfer-encoding", "keep-alive"})
_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Seen:
    """A request and the status of its answer; None without an answer."""

    method: str
    key: str
    size: int
    status: int | None


Fault = Callable[["_Handler"], None]
"""Handles the request in the server's place."""

Rule = Callable[[str, str], Fault | None]
"""Returns the fault for a method and a key (without the bucket); None passes the request on."""


def well(_method: str, _key: str) -> Fault | None:
    """Pass every request on."""
    return None


def always(fault: Fault) -> Rule:
    """Return a rule with the same fault for every request."""
    return lambda _method, _key: fault


def drawn(dice: random.Random, share: float, faults: Sequence[Fault]) -> Rule:
    """Return a rule with a random fault for this share of the requests."""

    def rule(_method: str, _key: str) -> Fault | None:
        return dice.choice(faults) if dice.random() < share else None

    return rule


def first_puts(count: int, fault: Fault, suffix: str) -> Rule:
    """Return a rule with the fault for the first `count` writes of keys with this suffix."""
    remaining = [fault] * count
    lock = threading.Lock()

    def rule(method: str, key: str) -> Fault | None:
        with lock:
            return (
                remaining.pop() if remaining and method == "PUT" and key.endswith(suffix) else None
            )

    return rule


def first(count: int, fault: Fault, *, method: str | None = None, part: str = "") -> Rule:
    """Return a rule with the fault for the first `count` requests that match.

    They match by method, or any method without one, and by `part` in their key.
    """
    remaining = [fault] * count
    lock = threading.Lock()

    def rule(its_method: str, key: str) -> Fault | None:
        with lock:
            return (
                remaining.pop()
                if remaining and method in {None, its_method} and part in key
                else None
            )

    return rule


def by_part(rules: Mapping[str, Rule]) -> Rule:
    """Return a rule that selects a rule by part of the key, such as a topic; other keys pass."""

    def rule(method: str, key: str) -> Fault | None:
        return next((its(method, key) for part, its in rules.items() if part in key), None)

    return rule


class S3Proxy(MisbehavingServer):
    """Runs while its context is entered; `rule` may be replaced at any time."""

    def __init__(self, port: int) -> None:
        """Create a proxy for the server on `port`."""
        super().__init__(_Handler)
        self.upstream = port
        self.rule: Rule = well
        self.seen: list[Seen] = []

    def misbehave(self, rule: Rule) -> None:
        """Follow this rule from now on."""
        self.released.clear()
        self.rule = rule

    def heal(self) -> None:
        """Pass every request again, and release hanging ones."""
        self.rule = well
        self.released.set()

    def found(self, method: str, part: str, status: int | None = 200) -> list[Seen]:
        """Return the requests of a method with this part in their keys that had this status."""
        return [
            request
            for request in list(self.seen)
            if request.method == method and part in request.key and request.status == status
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
        """Send the request to the server, and return its answer."""
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
        """Let the server execute the request, and pass its answer on; `sent` is a read body."""
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
        # The answer to HEAD has the length of a body that is not sent.
        content_length = answer.getheader("Content-Length", "0")
        self.send_header(
            "Content-Length", content_length if self.command == "HEAD" else str(len(body))
        )
        self.end_headers()


def answer(status: int, code: str) -> Fault:
    """Return a fault that refuses without asking for the body."""
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


def refuse_replacing(handler: _Handler) -> None:
    """Refuse every If-Match, also one that holds; pass other requests on."""
    if "If-Match" in handler.headers:
        answer(412, "PreconditionFailed")(handler)
    else:
        handler.pass_on()


def weaken_etags(handler: _Handler) -> None:
    """Pass the request on, and mark the etag of the answer as weak, as compressing gateways do."""
    answer, body = handler.forward()
    handler.record(answer.status)
    etag = answer.getheader("ETag")
    if etag is not None:
        answer.headers.replace_header("ETag", f"W/{etag}")
    handler.send_head(answer, body)
    if handler.command != "HEAD":
        handler.wfile.write(body)


def hang(handler: _Handler) -> None:
    """Accept the request, and send no answer until the proxy is healed or ends."""
    handler.read_body()
    handler.record(None)
    handler.owner.released.wait()
    handler.close_connection = True


def late(seconds: float) -> Fault:
    """Return a fault that passes the request on later.

    The delay ends once the proxy is healed. The request is passed on even if its sender has given
    up.
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
    """Let the server execute the request, and close the connection instead of answering."""
    handler.forward()
    handler.record(None)
    handler.cut()


def cut_answer(handler: _Handler) -> None:
    """Let the server execute the request, send half of the body, and close the connection."""
    answer, body = handler.forward()
    handler.record(None)
    handler.send_head(answer, body)
    handler.wfile.write(body[: len(body) // 2])
    handler.wfile.flush()
    # Close gracefully: after a reset the client might not see the bytes that were sent.
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True

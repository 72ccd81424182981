"""Responses to each path of the HTTP port, as a WSGI application without sockets."""

import hmac
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import make_wsgi_app

from sidetier.telemetry.status import (
    PartitionStatus,
    PinnedRange,
    SegmentStatus,
    StatusSnapshot,
    StatusSource,
)

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

_JSON: Final = "application/json; charset=utf-8"
_PARTITIONS: Final = "/api/partitions"


@dataclass(frozen=True, slots=True)
class Page:
    """A response."""

    status: HTTPStatus
    content_type: str
    body: bytes


def health(snapshot: StatusSnapshot) -> Page:
    """Return 200 while every thread that should run is running."""
    status = HTTPStatus.OK if snapshot.alive else HTTPStatus.SERVICE_UNAVAILABLE
    return _json(status, {"alive": snapshot.alive, "reason": snapshot.death})


def readiness(snapshot: StatusSnapshot) -> Page:
    """Return 200 when every condition holds. The body has each condition and its reason."""
    ready = snapshot.alive and snapshot.ready
    status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
    conditions = [asdict(condition) for condition in snapshot.conditions]
    return _json(status, {"ready": ready, "conditions": conditions, "reason": snapshot.death})


def partitions(snapshot: StatusSnapshot, topic: str | None = None) -> Page:
    """Return for each led partition what is on the broker, what is stored, and what is missing.

    Args:
        snapshot: status of the daemon.
        topic: only this topic's partitions; None for all.
    """
    shown = [
        partition_row(status)
        for status in snapshot.partitions
        if topic is None or status.topic == topic
    ]
    apart = (
        "partitions",
        "conditions",
        "alive",
        "death",
        "pins",
        "held_errors",
        "cluster_snapshots",
        "last_drill",
        "local_retention",
    )
    whole = _plain(snapshot, without=apart)
    pins = [_plain(pin) for pin in snapshot.pins if topic is None or pin.topic == topic]
    ready = snapshot.alive and snapshot.ready
    held = [asdict(error) for error in snapshot.held_errors]
    body = {
        **whole,
        "ready": ready,
        "pins": pins,
        "held_errors": held,
        "cluster_snapshots": [
            asdict(cluster_snapshot) for cluster_snapshot in snapshot.cluster_snapshots
        ],
        "local_retention": [asdict(excess) for excess in snapshot.local_retention],
        "last_drill": None if snapshot.last_drill is None else asdict(snapshot.last_drill),
        "partitions": shown,
    }
    return _json(HTTPStatus.OK, body)


def partition_row(status: PartitionStatus) -> dict[str, Any]:
    """Return a partition's status as JSON object."""
    segments = [_plain(segment) for segment in status.segments]
    return {**_plain(status, without=("segments",)), "segments": segments}


def _plain(
    value: PartitionStatus | StatusSnapshot | SegmentStatus | PinnedRange,
    without: Collection[str] = (),
) -> dict[str, Any]:
    """Return the fields by name, one level deep. `asdict` would first copy 10,000 partitions."""
    names = value.__dataclass_fields__
    return {name: getattr(value, name) for name in names if name not in without}


def _json(status: HTTPStatus, body: Mapping[str, Any]) -> Page:
    return Page(status, _JSON, json.dumps(body).encode() + b"\n")


class Application:
    """Answers GET and HEAD on the known paths; 404 or 405 otherwise.

    Args:
        registry: metrics for `/metrics`.
        source: status for the other paths.
        bearer_token: reads the token that requests must carry; None for no token. `/healthz` and
            `/readyz` answer without a token, because probes carry none, but then without reasons.
        with_partitions: whether there is a page `/api/partitions`; a process that is no sidecar
            has none.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        source: StatusSource,
        bearer_token: Callable[[], str] | None = None,
        *,
        with_partitions: bool = True,
    ) -> None:
        self._source = source
        self._token = bearer_token
        self._metrics = make_wsgi_app(registry)
        self._probes: Mapping[str, Callable[[StatusSnapshot], Page]] = {
            "/healthz": health,
            "/readyz": readiness,
        }
        self._pages: dict[str, Callable[[WSGIEnvironment], Page]] = {
            "/": lambda _: _json(HTTPStatus.OK, {"paths": self._paths}),
        }
        self._paths = ["/metrics", *self._probes]
        if with_partitions:
            self._pages[_PARTITIONS] = self._partitions
            self._paths.append(_PARTITIONS)

    def __call__(self, environ: "WSGIEnvironment", respond: "StartResponse") -> Iterable[bytes]:
        """Handle one WSGI request."""
        with_body = environ["REQUEST_METHOD"] != "HEAD"
        path = environ.get("PATH_INFO") or "/"
        if path == "/metrics" and self._is_allowed(environ):
            # prometheus_client would answer HEAD with 405.
            get = environ if with_body else {**environ, "REQUEST_METHOD": "GET"}
            body: Iterable[bytes] = self._metrics(get, respond)
            return body if with_body else []
        page = self._answer(path, environ)
        headers = [("Content-Type", page.content_type), ("Content-Length", str(len(page.body)))]
        if page.status is HTTPStatus.UNAUTHORIZED:
            headers.append(("WWW-Authenticate", "Bearer"))
        respond(f"{page.status.value} {page.status.phrase}", headers)
        return [page.body] if with_body else []

    def _answer(self, path: str, environ: "WSGIEnvironment") -> Page:
        if path not in self._paths and path not in self._pages:
            return _json(HTTPStatus.NOT_FOUND, {"error": "not found", "paths": self._paths})
        if environ["REQUEST_METHOD"] not in {"GET", "HEAD"}:
            return _json(HTTPStatus.METHOD_NOT_ALLOWED, {"error": "use GET"})
        allowed = self._is_allowed(environ)
        if path in self._probes:
            page = self._probes[path](self._source.snapshot(with_partitions=False))
            return page if allowed else _json(page.status, {"ok": page.status is HTTPStatus.OK})
        if not allowed:
            return _json(HTTPStatus.UNAUTHORIZED, {"error": "the bearer token is missing or wrong"})
        return self._pages[path](environ)

    def _is_allowed(self, environ: "WSGIEnvironment") -> bool:
        if self._token is None:
            return True
        scheme, _, token = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        # WSGI decodes header bytes as Latin-1 (PEP 3333).
        given = token.strip().encode("latin-1")
        # Constant time: a plain comparison would tell by its duration how many characters match.
        return scheme.lower() == "bearer" and hmac.compare_digest(given, self._token().encode())

    def _partitions(self, environ: "WSGIEnvironment") -> Page:
        query = parse_qs(environ.get("QUERY_STRING", ""))
        return partitions(self._source.snapshot(), query.get("topic", [None])[0])

"""What each path answers, as a WSGI application; no sockets here."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

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
_INDEX: Final = ("/metrics", "/healthz", "/readyz", "/api/partitions")


@dataclass(frozen=True, slots=True)
class Page:
    """An answer."""

    status: HTTPStatus
    content_type: str
    body: bytes


def health(snapshot: StatusSnapshot) -> Page:
    """200 while every thread that should run does."""
    status = HTTPStatus.OK if snapshot.alive else HTTPStatus.SERVICE_UNAVAILABLE
    return _json(status, {"alive": snapshot.alive, "reason": snapshot.death})


def readiness(snapshot: StatusSnapshot) -> Page:
    """200 when every condition holds; the body tells each, and why one does not."""
    ready = snapshot.alive and snapshot.ready
    status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
    conditions = [asdict(condition) for condition in snapshot.conditions]
    return _json(status, {"ready": ready, "conditions": conditions, "reason": snapshot.death})


def partitions(snapshot: StatusSnapshot, topic: str | None = None) -> Page:
    """What is on the broker, what is stored, and what is missing, for each led partition."""
    shown = [
        partition_row(status)
        for status in snapshot.partitions
        if topic is None or status.topic == topic
    ]
    whole = _plain(snapshot, without=("partitions", "conditions", "alive", "death", "pins"))
    pins = [_plain(pin) for pin in snapshot.pins if topic is None or pin.topic == topic]
    ready = snapshot.alive and snapshot.ready
    body = {**whole, "ready": ready, "pins": pins, "partitions": shown}
    return _json(HTTPStatus.OK, body)


def partition_row(status: PartitionStatus) -> dict[str, Any]:
    """A partition's status as JSON has it."""
    segments = [_plain(segment) for segment in status.segments]
    return {**_plain(status, without=("segments",)), "segments": segments}


def _plain(
    value: PartitionStatus | StatusSnapshot | SegmentStatus | PinnedRange,
    without: Collection[str] = (),
) -> dict[str, Any]:
    """Fields by name, one level deep: `asdict` would copy 10,000 partitions first."""
    names = value.__dataclass_fields__
    return {name: getattr(value, name) for name in names if name not in without}


def _json(status: HTTPStatus, body: Mapping[str, Any]) -> Page:
    return Page(status, _JSON, json.dumps(body).encode() + b"\n")


class Application:
    """GET and HEAD on the known paths; everything else is 404 or 405."""

    def __init__(self, registry: CollectorRegistry, source: StatusSource) -> None:
        self._registry = registry
        self._source = source
        self._routes: Mapping[str, Callable[[WSGIEnvironment], Page]] = {
            "/metrics": self._metrics,
            "/healthz": lambda _: health(source.snapshot()),
            "/readyz": lambda _: readiness(source.snapshot()),
            "/api/partitions": self._partitions,
            "/": lambda _: _json(HTTPStatus.OK, {"paths": _INDEX}),
        }

    def __call__(self, environ: "WSGIEnvironment", respond: "StartResponse") -> Iterable[bytes]:
        """The WSGI entry."""
        page = self._answer(environ)
        headers = [("Content-Type", page.content_type), ("Content-Length", str(len(page.body)))]
        respond(f"{page.status.value} {page.status.phrase}", headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [page.body]

    def _answer(self, environ: "WSGIEnvironment") -> Page:
        route = self._routes.get(environ.get("PATH_INFO") or "/")
        if route is None:
            return _json(HTTPStatus.NOT_FOUND, {"error": "not found", "paths": _INDEX})
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _json(HTTPStatus.METHOD_NOT_ALLOWED, {"error": "use GET"})
        return route(environ)

    def _metrics(self, environ: "WSGIEnvironment") -> Page:
        encode, content_type = choose_encoder(environ.get("HTTP_ACCEPT", ""))
        return Page(HTTPStatus.OK, content_type, encode(self._registry))

    def _partitions(self, environ: "WSGIEnvironment") -> Page:
        query = parse_qs(environ.get("QUERY_STRING", ""))
        return partitions(self._source.snapshot(), query.get("topic", [None])[0])

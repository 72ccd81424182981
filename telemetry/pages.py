"""Responses to each path of the HTTP port, as a WSGI application without sockets."""

import gzip
import hmac
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import make_wsgi_app

from sidetier import __version__
from sidetier.telemetry.allowed_hosts import AllowedHosts, host_of
from sidetier.telemetry.partition_page import (
    PartitionQuery,
    StatusPage,
    page_of,
    parse_query,
)
from sidetier.telemetry.static_files import (
    CONTENT_SECURITY_POLICY,
    PageName,
    StaticFile,
    paths_of,
    static_file,
)
from sidetier.telemetry.status import StatusSnapshot, StatusSource
from sidetier.telemetry.status_json import partition_row, plain, status_json, whole_json

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

_JSON: Final = "application/json; charset=utf-8"
_PARTITIONS: Final = "/api/partitions"
_STATUS: Final = "/api/status"
_GZIP_LEVEL: Final = 4
"""Compresses a page of partitions to a twentieth in 1 ms. Level 9 takes three times as long."""
_SMALLEST_COMPRESSED: Final = 1024
"""Shorter responses fit into one packet anyway."""
_NO_SNIFFING: Final = ("X-Content-Type-Options", "nosniff")

Headers = tuple[tuple[str, str], ...]
PageSource = Callable[[PartitionQuery], Mapping[str, Any]]
"""Returns the JSON object for one page of partitions. Called on any of the worker threads."""
EndpointSource = Callable[[], Mapping[str, Any]]
"""Returns the JSON object of `/api/status`. Called as `PageSource`."""


@dataclass(frozen=True, slots=True)
class Page:
    """A response. `compressed` is the same body, compressed by gzip; None to compress it on use."""

    status: HTTPStatus
    content_type: str
    body: bytes
    compressed: bytes | None = None
    headers: Headers = field(default=(("Cache-Control", "no-store"), _NO_SNIFFING))


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
    return _json(HTTPStatus.OK, status_json(snapshot, topic))


def partition_page(page: StatusPage, runbook_url: str = "") -> dict[str, Any]:
    """Return the JSON object for one page of the partitions.

    Args:
        page: status with one page of the partitions.
        runbook_url: address of the runbook's pages; empty where it is not configured.
    """
    query = page.query
    rows = zip(page.snapshot.partitions, page.states, strict=True)
    return {
        **whole_json(page.snapshot),
        **_header(page.snapshot, runbook_url),
        "totals": plain(page.totals),
        "page": {"offset": query.offset, "limit": query.limit, "matching": page.matching},
        "partitions": [{**partition_row(status), "shown_state": state} for status, state in rows],
    }


def endpoint_status(
    snapshot: StatusSnapshot, status: Mapping[str, Any], runbook_url: str = ""
) -> dict[str, Any]:
    """Return the JSON object of `/api/status`.

    Args:
        snapshot: whether the endpoint is alive and ready.
        status: what it serves, and what it cannot reach.
        runbook_url: as for `partition_page`.
    """
    return {
        "cluster": snapshot.cluster,
        "started_ms": snapshot.started_ms,
        "ready": snapshot.alive and snapshot.ready,
        **_header(snapshot, runbook_url),
        **status,
    }


def _header(snapshot: StatusSnapshot, runbook_url: str) -> dict[str, Any]:
    """Return the fields that the head of each status page needs."""
    return {
        "alive": snapshot.alive,
        "death": snapshot.death,
        "conditions": [asdict(condition) for condition in snapshot.conditions],
        "version": __version__,
        "runbook_url": runbook_url,
    }


def _json(status: HTTPStatus, body: Mapping[str, Any]) -> Page:
    return Page(status, _JSON, json.dumps(body).encode() + b"\n")


class Application:
    """Answers GET and HEAD on the known paths; 404 or 405 otherwise.

    Args:
        registry: metrics for `/metrics`.
        source: status for the other paths.
        bearer_token: reads the token that requests must carry; None for no token. `/healthz` and
            `/readyz` answer without a token, because probes carry none, but then without reasons.
        endpoint: returns the status of a Kafka endpoint. `/` is its page then, and `/api/status`
            takes the place of `/api/partitions`. None for a sidecar and a fleet.
        hosts: names that the header Host may have where no token is required. Other requests get
            no data, because a browser may have been led here (`allowed_hosts`).
        pages: returns one page of the partitions; None to take the pages from `source`, which
            describes all partitions for each of them.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        source: StatusSource,
        bearer_token: Callable[[], str] | None = None,
        *,
        endpoint: EndpointSource | None = None,
        pages: PageSource | None = None,
        hosts: AllowedHosts | None = None,
    ) -> None:
        self._source = source
        self._hosts = hosts or AllowedHosts()
        self._token = bearer_token
        self._metrics = make_wsgi_app(registry)
        self._probes: Mapping[str, Callable[[StatusSnapshot], Page]] = {
            "/healthz": health,
            "/readyz": readiness,
        }
        self._page_of = pages or (lambda query: partition_page(page_of(source.snapshot(), query)))
        self._page: PageName = "partitions" if endpoint is None else "endpoint"
        self._files = paths_of(self._page)
        self._api: tuple[str, Callable[[WSGIEnvironment], Page]] = (_PARTITIONS, self._partitions)
        if endpoint is not None:
            self._api = _STATUS, lambda _: _json(HTTPStatus.OK, endpoint())
        self._paths = ["/metrics", *self._probes, self._api[0]]

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
        content = page.body
        headers = [("Content-Type", page.content_type), *page.headers]
        if len(content) >= _SMALLEST_COMPRESSED:
            headers.append(("Vary", "Accept-Encoding"))
            if "gzip" in environ.get("HTTP_ACCEPT_ENCODING", ""):
                headers.append(("Content-Encoding", "gzip"))
                content = page.compressed or gzip.compress(content, _GZIP_LEVEL, mtime=0)
        if page.status is HTTPStatus.UNAUTHORIZED:
            headers.append(("WWW-Authenticate", "Bearer"))
        if page.status is not HTTPStatus.NOT_MODIFIED:
            headers.append(("Content-Length", str(len(content))))
        respond(f"{page.status.value} {page.status.phrase}", headers)
        return [content] if with_body else []

    def _answer(self, path: str, environ: "WSGIEnvironment") -> Page:
        if path not in self._paths and path not in self._files:
            return _json(HTTPStatus.NOT_FOUND, {"error": "not found", "paths": self._paths})
        if environ["REQUEST_METHOD"] not in {"GET", "HEAD"}:
            return _json(HTTPStatus.METHOD_NOT_ALLOWED, {"error": "use GET"})
        if path in self._files:
            # No token: a browser sends none when it opens a page, and the files hold no data.
            return _file(static_file(path, self._page), environ.get("HTTP_IF_NONE_MATCH", ""))
        allowed = self._is_allowed(environ)
        if path in self._probes:
            page = self._probes[path](self._source.snapshot(with_partitions=False))
            return page if allowed else _json(page.status, {"ok": page.status is HTTPStatus.OK})
        if not allowed:
            return self._refusal(environ)
        return self._api[1](environ)

    def _refusal(self, environ: "WSGIEnvironment") -> Page:
        if self._token is not None:
            return _json(HTTPStatus.UNAUTHORIZED, {"error": "the bearer token is missing or wrong"})
        name = host_of(environ.get("HTTP_HOST", ""))
        return _json(
            HTTPStatus.MISDIRECTED_REQUEST,
            {"error": f"{name} is not a name of this host: add it to http.allowed_hosts"},
        )

    def _is_allowed(self, environ: "WSGIEnvironment") -> bool:
        if self._token is None:
            return environ.get("HTTP_HOST", "") in self._hosts
        scheme, _, token = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        # WSGI decodes header bytes as Latin-1 (PEP 3333).
        given = token.strip().encode("latin-1")
        # Constant time: the duration of a plain comparison shows how many characters match.
        return scheme.lower() == "bearer" and hmac.compare_digest(given, self._token().encode())

    def _partitions(self, environ: "WSGIEnvironment") -> Page:
        query_string = environ.get("QUERY_STRING", "")
        try:
            query = parse_query(query_string)
            if query is not None:
                return _json(HTTPStatus.OK, self._page_of(query))
        except ValueError as error:
            return _json(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        topic = parse_qs(query_string).get("topic", [None])[0]
        return partitions(self._source.snapshot(), topic)


def _file(file: StaticFile, known_etags: str) -> Page:
    """Return the file; 304 if the client has it. `known_etags` is the header If-None-Match."""
    headers: Headers = (
        ("ETag", file.etag),
        ("Cache-Control", "no-cache"),  # ask each time: another version may run by then
        ("Content-Security-Policy", CONTENT_SECURITY_POLICY),
        ("Referrer-Policy", "no-referrer"),
        _NO_SNIFFING,
    )
    if file.etag in known_etags:
        return Page(HTTPStatus.NOT_MODIFIED, file.content_type, b"", headers=headers)
    return Page(HTTPStatus.OK, file.content_type, file.body, file.compressed, headers)

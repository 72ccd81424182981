"""A schema registry with the part of Confluent's REST API that clients use.

Confluent's own client and serializers work with it, and it uses no code of this project. It can
provide the records that Confluent's registry would store in its topic `_schemas`.
"""

import json
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

Answer = tuple[int, object]

_NOT_FOUND = {"subject": 40401, "version": 40402, "schema": 40403}


class FakeRegistry:
    """The registry's subjects, and the received requests."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[tuple[str, str]] = []
        """Method and path with query."""
        self.headers: list[dict[str, str]] = []
        self.fault: Callable[[str], Answer | None] = lambda _path: None
        """Answers that replace the registry's, by request path."""
        self.records: list[tuple[bytes, bytes]] = []
        """Key and value of the records that Confluent's registry would write to `_schemas`."""
        self._schemas: dict[int, dict[str, Any]] = {}
        self._subjects: dict[str, list[int]] = {}
        self._lock = threading.Lock()

    def register(self, subject: str, schema: dict[str, Any]) -> int:
        """Register a schema (`schema`, `schemaType`, `references`), and return its id."""
        with self._lock:
            number = self._id_of(schema)
            if number is None:
                number = len(self._schemas) + 1
                self._schemas[number] = schema
            versions = self._subjects.setdefault(subject, [])
            if number not in versions:
                versions.append(number)
                self.records.append(_record(subject, len(versions), number, schema))
            return number

    def load(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        """Load the state from records of a topic `_schemas`, in order."""
        for key, value in records:
            if json.loads(key)["keytype"] != "SCHEMA":
                continue
            registration = json.loads(value)
            self._schemas[registration["id"]] = _schema(registration)
            versions = self._subjects.setdefault(registration["subject"], [])
            assert registration["version"] == len(versions) + 1, registration
            versions.append(registration["id"])

    def put(self, number: int, schema: object) -> None:
        """Set the schema of an id, also to a value that no registry would return."""
        self._schemas[number] = schema  # type: ignore[assignment]

    def _id_of(self, schema: dict[str, Any]) -> int | None:
        return next((n for n, stored in self._schemas.items() if stored == schema), None)

    def answer(self, method: str, path: str, body: Any) -> Answer:  # noqa: ANN401 -- JSON
        """Return the answer to a request."""
        parts = urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        match method, [unquote(segment) for segment in parts.path.strip("/").split("/")]:
            case "POST", ["subjects", subject, "versions"]:
                return 200, {"id": self.register(subject, _schema(body))}
            case "POST", ["subjects", subject]:
                return self._looked_up(subject, _schema(body))
            case "GET", ["schemas", "ids", number]:
                return self._by_id(int(number), query)
            case "GET", ["schemas", "ids", number, "versions"]:
                return 200, self._versions_of(int(number))
            case "GET", ["subjects", subject, "versions", version]:
                return self._version(subject, version, query)
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _by_id(self, number: int, query: dict[str, str]) -> Answer:
        if number not in self._schemas:
            return _not_found("schema")
        return 200, _formatted(self._schemas[number], query)

    def _versions_of(self, number: int) -> list[dict[str, Any]]:
        return [
            {"subject": subject, "version": ids.index(number) + 1}
            for subject, ids in self._subjects.items()
            if number in ids
        ]

    def _looked_up(self, subject: str, schema: dict[str, Any]) -> Answer:
        number = self._id_of(schema)
        if number is None or number not in self._subjects.get(subject, []):
            return _not_found("schema")
        version = self._subjects[subject].index(number) + 1
        return 200, {"subject": subject, "version": version, "id": number, **schema}

    def _version(self, subject: str, version: str, query: dict[str, str]) -> Answer:
        ids = self._subjects.get(subject)
        if ids is None:
            return _not_found("subject")
        at = len(ids) if version == "latest" else int(version)
        if not 1 <= at <= len(ids):
            return _not_found("version")
        schema = _formatted(self._schemas[ids[at - 1]], query)
        return 200, {"subject": subject, "version": at, "id": ids[at - 1], **schema}


def _record(subject: str, version: int, number: int, schema: dict[str, Any]) -> tuple[bytes, bytes]:
    key = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
    value = {"subject": subject, "version": version, "id": number, **schema, "deleted": False}
    return json.dumps(key).encode(), json.dumps(value).encode()


def _schema(body: dict[str, Any]) -> dict[str, Any]:
    """Normalize a schema as registries do: without schemaType AVRO and empty fields."""
    normalized = {
        name: body[name] for name in ("schema", "schemaType", "references") if body.get(name)
    }
    if normalized.get("schemaType") == "AVRO":
        del normalized["schemaType"]
    return normalized


def _formatted(schema: Any, query: dict[str, str]) -> Any:  # noqa: ANN401 -- may be an invalid schema
    """Return Protobuf files as source, unless the request asks for descriptors."""
    is_protobuf = isinstance(schema, dict) and schema.get("schemaType") == "PROTOBUF"
    if is_protobuf and query.get("format") != "serialized":
        return {**schema, "schema": 'syntax = "proto3";'}
    return schema


def _not_found(what: str) -> Answer:
    return 404, {"error_code": _NOT_FOUND[what], "message": f"{what} not found"}


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[FakeRegistry]:
    """Serve a registry on a local port."""
    registry = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            is_json = "json" in self.headers.get("Content-Type", "")
            self._answer(json.loads(data) if is_json else data.decode())

        def _answer(self, body: object) -> None:
            registry.requests.append((self.command, self.path))
            registry.headers.append(dict(self.headers))
            fault = registry.fault(self.path)
            code, answer = fault or registry.answer(self.command, self.path, body)
            data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    registry.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

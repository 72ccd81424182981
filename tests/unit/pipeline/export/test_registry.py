"""The two requests that are made of a schema registry, against a server of this process."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest

from sidetier.pipeline.export.files.values.registry import CREDENTIALS_VARIABLE, SchemaRegistry
from sidetier.segments.errors import ConfigurationError, StoreUnavailableError

SCHEMA = '{"type": "string"}'


class _Registry(BaseHTTPRequestHandler):
    answers: ClassVar[dict[str, tuple[int, object]]] = {
        "/schemas/ids/7": (200, {"schema": SCHEMA}),
        "/schemas/ids/8": (200, {"schema": "{}", "schemaType": "PROTOBUF"}),
        "/schemas/ids/500": (500, {}),
        "/schemas/ids/403": (403, {}),
        "/subjects/my%2Ftopic-value/versions/latest": (200, {"schema": SCHEMA, "version": 3}),
    }
    seen: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.seen.append(self.headers.get("Authorization"))
        code, body = self.answers.get(self.path, (404, {"error_code": 40403}))
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Registry)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    _Registry.seen.clear()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_schemas_by_id_and_by_subject(url: str) -> None:
    registry = SchemaRegistry(url + "/", {CREDENTIALS_VARIABLE: "me:secret"})
    assert registry.by_id(7) == SCHEMA
    assert registry.by_id(9) is None
    assert registry.latest("my/topic-value") == SCHEMA
    token = base64.b64encode(b"me:secret").decode()
    assert _Registry.seen == [f"Basic {token}"] * 3


def test_what_goes_wrong(url: str) -> None:
    registry = SchemaRegistry(url, {})
    with pytest.raises(ConfigurationError, match="has no subject other"):
        registry.latest("other")
    with pytest.raises(ConfigurationError, match="only Avro schemas"):
        registry.by_id(8)
    with pytest.raises(ConfigurationError, match="answered 403"):
        registry.by_id(403)
    with pytest.raises(StoreUnavailableError, match="answered 500"):
        registry.by_id(500)
    assert _Registry.seen[-1] is None


def test_a_registry_that_is_away() -> None:
    server = HTTPServer(("127.0.0.1", 0), _Registry)
    port = server.server_port
    server.server_close()
    with pytest.raises(StoreUnavailableError, match="does not answer"):
        SchemaRegistry(f"http://127.0.0.1:{port}", {}).by_id(7)


def test_addresses_that_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="must be http"):
        SchemaRegistry("file:///etc/passwd")
    with pytest.raises(ConfigurationError, match=CREDENTIALS_VARIABLE) as raised:
        SchemaRegistry("http://me:hidden@host")
    assert "hidden" not in str(raised.value)

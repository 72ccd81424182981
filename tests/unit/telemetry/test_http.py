import gzip
import http.client
import json
import os
import re
import resource
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sidetier import __version__
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import BrokerId, Offset
from sidetier.telemetry.allowed_hosts import AllowedHosts
from sidetier.telemetry.http import MAX_CONNECTIONS, WORKER_THREADS, HttpServer
from sidetier.telemetry.metrics import Metrics, create_registry
from sidetier.telemetry.pages import Application, endpoint_status
from sidetier.telemetry.partition_page import ShownState
from sidetier.telemetry.static_files import PageName, static_file
from sidetier.telemetry.status import Condition, PartitionState, PartitionStatus, StatusSnapshot
from tests.harness.ci import in_ci
from tests.harness.status_samples import many, snapshot_of
from tests.harness.waiting import wait_until

SNAPSHOT = StatusSnapshot(
    cluster="prod-a",
    broker_id=BrokerId(3),
    conditions=(Condition("bootstrapped", holds=True), Condition("store", holds=True)),
    partitions=(
        PartitionStatus("orders", 0, PartitionState.ARCHIVED, next_offset=Offset(7)),
        PartitionStatus("pay", 1, PartitionState.WAITING, waiting_for="the high watermark"),
    ),
)


NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class ChangingStatus:
    def __init__(self) -> None:
        self.now = SNAPSHOT
        self.error: Exception | None = None
        self.asked_for_partitions: list[bool] = []

    def snapshot(self, *, with_partitions: bool = True) -> StatusSnapshot:
        self.asked_for_partitions.append(with_partitions)
        if self.error is not None:
            raise self.error
        return self.now


@pytest.fixture
def source() -> ChangingStatus:
    return ChangingStatus()


@pytest.fixture
def server(source: ChangingStatus) -> Iterator[HttpServer]:
    registry = create_registry()
    Metrics(registry).observe_status(source)
    server = HttpServer("127.0.0.1", 0, Application(registry, source))
    server.start()
    yield server
    server.stop()


def ask(
    server: HttpServer,
    path: str,
    method: str = "GET",
    host: str = "127.0.0.1",
    headers: Mapping[str, str] = NO_HEADERS,
) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection(host, server.port, timeout=5)
    try:
        connection.request(method, path, headers=dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())
    finally:
        connection.close()


def ask_json(server: HttpServer, path: str) -> tuple[int, Any]:
    status, body, headers = ask(server, path)
    assert headers["Content-Type"].startswith("application/json")
    return status, json.loads(body)


def test_metrics_have_prometheus_format(server: HttpServer) -> None:
    status, body, headers = ask(server, "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=")
    names = {family.name for family in text_string_to_metric_families(body)}
    assert {"sidetier_leader_partitions", "process_resident_memory_bytes"} <= names


def test_healthz_is_ok_while_every_thread_lives(server: HttpServer, source: ChangingStatus) -> None:
    assert ask_json(server, "/healthz") == (200, {"alive": True, "reason": None})
    source.now = StatusSnapshot("prod-a", alive=False, death="watcher: died")
    assert ask_json(server, "/healthz") == (503, {"alive": False, "reason": "watcher: died"})


def test_probes_do_not_collect_partitions(server: HttpServer, source: ChangingStatus) -> None:
    """With 10,000 partitions, probes would use most of the sidecar's CPU time."""
    for path in ("/healthz", "/readyz"):
        assert ask_json(server, path)[0] == 200
    assert source.asked_for_partitions == [False, False]
    ask_json(server, "/api/partitions")
    assert source.asked_for_partitions[-1]


def test_readyz_is_ok_when_every_condition_holds(
    server: HttpServer, source: ChangingStatus
) -> None:
    status, body = ask_json(server, "/readyz")
    assert (status, body["ready"]) == (200, True)
    lost = Condition("store", holds=False, reason="403 for s3://bucket")
    source.now = StatusSnapshot("prod-a", conditions=(SNAPSHOT.conditions[0], lost))
    status, body = ask_json(server, "/readyz")
    assert (status, body["ready"]) == (503, False)
    assert body["conditions"] == [
        {"name": "bootstrapped", "holds": True, "reason": ""},
        {"name": "store", "holds": False, "reason": "403 for s3://bucket"},
    ]


def test_readyz_fails_before_the_first_status(server: HttpServer, source: ChangingStatus) -> None:
    source.now = StatusSnapshot("prod-a")
    assert ask_json(server, "/readyz")[0] == 503


def test_partitions_are_listed_in_full_and_by_topic(server: HttpServer) -> None:
    status, body = ask_json(server, "/api/partitions")
    assert status == 200
    assert (body["cluster"], body["broker_id"], body["ready"]) == ("prod-a", 3, True)
    assert [row["topic"] for row in body["partitions"]] == ["orders", "pay"]
    _, filtered = ask_json(server, "/api/partitions?topic=pay")
    [row] = filtered["partitions"]
    assert (row["state"], row["waiting_for"]) == ("waiting", "the high watermark")
    assert ask_json(server, "/api/partitions?topic=none")[1]["partitions"] == []


def test_partitions_come_in_pages(server: HttpServer) -> None:
    status, body = ask_json(server, "/api/partitions?offset=1&limit=1&sort=name")
    assert status == 200
    assert [row["topic"] for row in body["partitions"]] == ["pay"]
    assert body["partitions"][0]["shown_state"] == "waiting"
    assert body["page"] == {"offset": 1, "limit": 1, "matching": 2}
    assert (body["totals"]["partitions"], body["totals"]["states"]["archived"]) == (2, 1)
    assert (body["ready"], body["version"], body["runbook_url"]) == (True, __version__, "")
    assert [condition["name"] for condition in body["conditions"]] == ["bootstrapped", "store"]
    status, body = ask_json(server, "/api/partitions?limit=many")
    assert (status, body) == (400, {"error": "limit=many: expected a number from 1 to 1000"})


def test_long_answers_are_compressed_on_request(server: HttpServer, source: ChangingStatus) -> None:
    source.now = snapshot_of(*many(100))
    path = "/api/partitions?limit=100"
    plain = ask(server, path)
    assert "Content-Encoding" not in plain[2]
    compressed = raw(server, path, {"Accept-Encoding": "gzip, br"})
    assert compressed.headers["Content-Encoding"] == "gzip"
    assert compressed.headers["Vary"] == "Accept-Encoding"
    body = compressed.body
    assert len(body) == int(compressed.headers["Content-Length"])
    assert len(body) < len(plain[1]) / 10
    assert gzip.decompress(body).decode() == plain[1]


def test_status_page_is_cached_until_it_changes(server: HttpServer) -> None:
    page = raw(server, "/", {"Accept-Encoding": "gzip"})
    assert page.status == 200
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert page.headers["Cache-Control"] == "no-cache"
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    policy = page.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; ")
    assert "unsafe" not in policy
    text = gzip.decompress(page.body).decode()
    for name in ("page.js", "partitions.js", "page.css", "icon.svg"):
        assert f'"{name}"' in text
        assert ask(server, f"/{name}")[0] == 200
    assert " style=" not in text
    assert "<script>" not in text
    etag = page.headers["Etag"]
    unchanged = raw(server, "/", {"If-None-Match": etag})
    assert (unchanged.status, unchanged.body, unchanged.headers["Etag"]) == (304, b"", etag)
    assert raw(server, "/", {"If-None-Match": 'W/"other"'}).status == 200
    assert ask(server, "/page.js", "HEAD")[:2] == (200, "")
    assert ask(server, "/page.js", "POST")[0] == 405
    assert ask(server, "/../pages.py")[0] == 404


@pytest.mark.parametrize(("page", "least"), [("partitions", 9), ("endpoint", 5)])
def test_status_pages_link_to_existing_runbook_pages(page: PageName, least: int) -> None:
    script = static_file(f"/{page}.js", page).body.decode()
    names = set(re.findall(r"\bSidetier[A-Z][A-Za-z]+\b", script))
    pages = {path.stem for path in Path("docs/runbook").glob("Sidetier*.md")}
    assert len(names) >= least
    assert names <= pages


def test_status_page_knows_every_state(server: HttpServer) -> None:
    script = ask(server, "/partitions.js")[1]
    table = script[script.index("const STATES") : script.index("const CONDITION_RUNBOOKS")]
    assert re.findall(r"^  (\w+):", table, re.MULTILINE) == list(ShownState)


def test_an_endpoint_has_a_page_of_its_own_with_the_same_frame(source: ChangingStatus) -> None:
    status = {"connections": 3, "stores": [], "live": None}
    application = Application(
        create_registry(),
        source,
        lambda: "s3cret",
        endpoint=lambda: endpoint_status(source.snapshot(), status, "https://runbook"),
    )
    server = HttpServer("127.0.0.1", 0, application)
    server.start()
    try:
        page, theirs = raw(server, "/"), static_file("/", "partitions").body
        assert page.headers["Content-Type"] == "text/html; charset=utf-8"
        assert page.headers["Content-Security-Policy"].startswith("default-src 'none'; ")
        assert page.body.partition(b"<noscript>")[0] == theirs.partition(b"<noscript>")[0]
        assert b'<script src="endpoint.js" defer>' in page.body
        assert b"<!-- tables" not in page.body
        for path, code in (("/endpoint.js", 200), ("/page.js", 200), ("/partitions.js", 404)):
            assert ask(server, path)[0] == code
        assert ask(server, "/api/status")[0] == 401
        assert ask(server, "/api/partitions")[0] == 404
        code, text, _ = ask(server, "/api/status", headers={"Authorization": "Bearer s3cret"})
        answer = json.loads(text)
        assert (code, answer["connections"], answer["live"]) == (200, 3, None)
        assert (answer["cluster"], answer["ready"], answer["alive"]) == ("prod-a", True, True)
        assert (answer["version"], answer["runbook_url"]) == (__version__, "https://runbook")
        source.now = replace(SNAPSHOT, alive=False, death="the thread x has ended")
        text = ask(server, "/api/status", headers={"Authorization": "Bearer s3cret"})[1]
        assert (json.loads(text)["ready"], json.loads(text)["death"]) == (False, source.now.death)
    finally:
        server.stop()


@dataclass(frozen=True)
class RawAnswer:
    status: int
    headers: Mapping[str, str]
    body: bytes


def raw(server: HttpServer, path: str, headers: Mapping[str, str] = NO_HEADERS) -> RawAnswer:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    with closing(connection):
        connection.request("GET", path, headers=dict(headers))
        answer = connection.getresponse()
        return RawAnswer(answer.status, dict(answer.getheaders()), answer.read())


def test_head_has_no_body_and_unknown_paths_and_methods_are_refused(server: HttpServer) -> None:
    assert ask(server, "/metrics", "HEAD")[:2] == (200, "")
    assert ask(server, "/nothing")[0] == 404
    assert ask(server, "/metrics", "POST")[0] == 405
    assert ask(server, "/")[0] == 200


def test_internal_error_is_answered_and_does_not_stop_the_server(
    server: HttpServer, source: ChangingStatus, caplog: pytest.LogCaptureFixture
) -> None:
    source.error = RuntimeError("broken")
    assert ask(server, "/readyz")[0] == 500
    source.error = None
    assert ask(server, "/readyz")[0] == 200
    assert "broken" in caplog.text


def test_stalled_client_does_not_delay_others(server: HttpServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as stalled:
        stalled.sendall(b"GET /metrics")
        assert ask(server, "/healthz")[0] == 200


def test_many_requests_at_once_are_answered(server: HttpServer) -> None:
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda: answers.append(ask(server, "/api/partitions")[0]))
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 20


def test_server_listens_on_ipv6(source: ChangingStatus) -> None:
    server = HttpServer("::1", 0, Application(create_registry(), source))
    try:
        server.start()
    except ConfigurationError as error:
        if in_ci():
            raise
        pytest.skip(f"this machine has no IPv6: {error}")
    try:
        assert server.url == f"http://[::1]:{server.port}"
        assert ask(server, "/healthz", host="::1")[0] == 200
    finally:
        server.stop()


def test_port_in_use_is_a_clear_error(server: HttpServer, source: ChangingStatus) -> None:
    second = HttpServer("127.0.0.1", server.port, Application(create_registry(), source))
    with pytest.raises(ConfigurationError, match=f"port {server.port}: Address already in use"):
        second.start()
    second.stop()


def test_host_of_another_machine_is_a_clear_error(source: ChangingStatus) -> None:
    server = HttpServer("203.0.113.1", 0, Application(create_registry(), source))
    with pytest.raises(ConfigurationError, match=r"http\.host, http\.port: cannot listen"):
        server.start()


def test_server_can_stop_twice_stop_unstarted_and_start_again(source: ChangingStatus) -> None:
    server = HttpServer("127.0.0.1", 0, Application(create_registry(), source))
    server.stop()
    for _ in range(2):
        server.start()
        assert server.alive()
        assert ask(server, "/healthz")[0] == 200
        port = server.port
        server.stop()
        server.stop()
        assert not server.alive()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)


def test_url_is_usable_by_a_client(source: ChangingStatus) -> None:
    everywhere = "0.0.0.0"  # noqa: S104 -- never bound here
    assert (
        HttpServer(everywhere, 9108, Application(create_registry(), source)).url
        == "http://127.0.0.1:9108"
    )
    assert (
        HttpServer("[::]", 9108, Application(create_registry(), source)).url == "http://[::1]:9108"
    )


@contextmanager
def serving(source: ChangingStatus, connection_seconds: float) -> Iterator[HttpServer]:
    application = Application(create_registry(), source)
    server = HttpServer("127.0.0.1", 0, application, connection_seconds)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def connect(server: HttpServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=5)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def many_partitions(number: int) -> StatusSnapshot:
    row = PartitionStatus("orders", 0, PartitionState.ARCHIVED, waiting_for="x" * 1000)
    return StatusSnapshot(cluster="prod-a", partitions=(row,) * number)


def test_half_open_connections_use_few_threads_and_files(server: HttpServer) -> None:
    threads, files = threading.active_count(), open_files()
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(server)) for _ in range(600)]
        for client in clients:
            client.sendall(b"G")
        assert ask(server, "/healthz")[0] == 200
        assert threading.active_count() <= threads + WORKER_THREADS
        wait_until(lambda: open_files() - files - len(clients) <= MAX_CONNECTIONS, 10, "few files")


def test_slow_request_ends_at_the_deadline(source: ChangingStatus) -> None:
    with serving(source, connection_seconds=0.3) as server, connect(server) as client:
        sent = []

        def is_closed() -> bool:
            try:
                client.sendall(b"G")
            except OSError:
                return True
            sent.append(1)
            return False

        wait_until(is_closed, 10, "the connection to be closed")
        assert len(sent) > 1
        assert ask(server, "/healthz")[0] == 200


def begun_answer(server: HttpServer, client: socket.socket) -> socket.socket:
    """Return a connection with an answer of which the first byte was read."""
    for _ in range(20):
        try:
            client.sendall(b"GET /api/partitions HTTP/1.1\r\nHost: x\r\n\r\n")
            if client.recv(1):
                return client
        except ConnectionError:
            # On a busy machine this client was slower than the deadline.
            pass
        client.close()
        client = connect(server)
    raise AssertionError("no answer has begun")


def test_client_that_does_not_read_its_answer_is_closed(source: ChangingStatus) -> None:
    source.now = many_partitions(10_000)  # more than the buffers of two sockets hold
    with serving(source, connection_seconds=0.5) as server, ExitStack() as stack:
        files = open_files()
        clients = [connect(server) for _ in range(WORKER_THREADS + 1)]
        for client in clients:
            stack.enter_context(begun_answer(server, client))
        wait_until(
            lambda: open_files() - files == len(clients), 10, "the server's side to be closed"
        )
        source.now = SNAPSHOT
        assert ask(server, "/healthz")[0] == 200


def test_pipelined_requests_are_not_answered_one_by_one(server: HttpServer) -> None:
    with connect(server) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 200)
        client.shutdown(socket.SHUT_WR)
        answers = b"".join(iter(lambda: client.recv(65536), b""))
        assert 1 <= answers.count(b"HTTP/1.1 200") < 100  # one a read, or two


def test_headers_and_bodies_are_bounded(server: HttpServer) -> None:
    assert ask(server, "/healthz", headers={"X-Long": "x" * 20_000})[0] == 431
    assert ask(server, "/healthz", "POST", headers={"Content-Length": "100000"})[0] == 413


def test_server_works_with_more_than_1024_open_files(source: ChangingStatus) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        with serving(source, connection_seconds=5) as server:
            assert ask(server, "/healthz")[0] == 200


def test_metrics_are_compressed_on_request(server: HttpServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    assert answer.getheader("Content-Encoding") == "gzip"
    assert b"sidetier_leader_partitions" in gzip.decompress(answer.read())
    connection.close()


def test_bearer_token_protects_everything_except_probes(source: ChangingStatus) -> None:
    tokens = ["first"]
    application = Application(create_registry(), source, lambda: tokens[-1])
    server = HttpServer("127.0.0.1", 0, application)
    server.start()
    try:
        for path in ("/metrics", "/api/partitions", "/api/partitions?limit=1"):
            for wrong in (
                NO_HEADERS,
                {"Authorization": "Bearer second"},
                {"Authorization": "Basic first"},
            ):
                status, body, headers = ask(server, path, headers=wrong)
                assert (status, headers["Www-Authenticate"]) == (401, "Bearer")
                assert "first" not in body
            assert ask(server, path, headers={"Authorization": "Bearer first"})[0] == 200
        lost = Condition("store", holds=False, reason="403 for s3://bucket")
        source.now = StatusSnapshot("prod-a", conditions=(lost,))
        assert ask_json(server, "/healthz") == (200, {"ok": True})
        assert ask_json(server, "/readyz") == (503, {"ok": False})
        tokens.append("rotated")
        # The page holds no data, and a browser sends no token for it.
        assert ask(server, "/")[0] == 200
        with_token = {"Authorization": "Bearer rotated"}
        assert "403 for" in ask(server, "/readyz", headers=with_token)[1]
    finally:
        server.stop()


KNOWN_HOSTS = (
    "127.0.0.1:9108",
    "10.0.0.7:9108",
    "[fd00::7]:9108",
    "[::1]",
    "localhost:9108",
    "LOCALHOST.:9108",
    "kafka-1:9108",
    "sidetier-0.sidetier.kafka.svc.cluster.local",
    "sidetier.kafka.svc:9108",
    "ip-10-0-0-7.ec2.internal:9108",
    "sidetier.example.com",
    "Kafka-1.Brokers.example.com.:80",
    "broker.example.net:9108",
    "",
)
HOSTILE_HOSTS = (
    "evil.com",
    "evil.com:9108",
    "sidetier.example.com.evil.com",
    "example.com",
    "svc.com",
)


@pytest.mark.parametrize("host", KNOWN_HOSTS)
def test_host_of_this_network_is_allowed(host: str) -> None:
    hosts = AllowedHosts(
        ("sidetier.example.com", "*.brokers.example.com"), lambda: {"broker.example.net"}
    )
    assert host in hosts


@pytest.mark.parametrize("host", HOSTILE_HOSTS)
def test_host_of_a_foreign_site_gets_no_data(source: ChangingStatus, host: str) -> None:
    """A page of that site could have made a browser resolve its name to this address."""
    lost = Condition("store", holds=False, reason="403 for s3://bucket")
    source.now = StatusSnapshot("prod-a", conditions=(lost,))
    hosts = AllowedHosts(("sidetier.example.com",), set)
    server = HttpServer("127.0.0.1", 0, Application(create_registry(), source, hosts=hosts))
    server.start()
    try:
        for path in ("/metrics", "/api/partitions", "/api/partitions?limit=1"):
            status, body, _ = ask(server, path, headers={"Host": host})
            assert status == 421
            assert "add it to http.allowed_hosts" in body
            assert "prod-a" not in body
            assert ask(server, path)[0] == 200
        status, body, _ = ask(server, "/readyz", headers={"Host": host})
        assert (status, json.loads(body)) == (503, {"ok": False})
    finally:
        server.stop()


def test_host_does_not_matter_with_a_token(source: ChangingStatus) -> None:
    server = HttpServer("127.0.0.1", 0, Application(create_registry(), source, lambda: "token"))
    server.start()
    try:
        headers = {"Host": "evil.com", "Authorization": "Bearer token"}
        assert ask(server, "/api/partitions", headers=headers)[0] == 200
    finally:
        server.stop()

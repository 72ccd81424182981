import gzip
import json
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import trustme
import yaml

from sidetier.cli.commands.fleet import FleetResult, FleetSource, fleet_server
from sidetier.cli.inspect.sidecar import NoSidecarError, ask_page, ask_sidecar
from sidetier.cli.main import run
from sidetier.config.model import HttpConfig
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import BrokerId
from sidetier.telemetry.fleet import Fleet, UnknownFleetError
from sidetier.telemetry.http import HttpServer
from sidetier.telemetry.metrics import create_registry
from sidetier.telemetry.pages import Application, partition_page
from sidetier.telemetry.partition_page import PartitionQuery, ShownState, page_of, parse_query
from sidetier.telemetry.status import Condition, StatusSnapshot
from tests.harness.status_samples import ARCHIVED, GAP, HALTED, HELD, UPLOADING, many, snapshot_of
from tests.harness.waiting import wait_until


@pytest.fixture(autouse=True)
def no_settings_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIDETIER_CONFIG", raising=False)
    monkeypatch.delenv("SIDETIER_OUTPUT", raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # must not be requested


class Status:
    def __init__(self, now: StatusSnapshot) -> None:
        self.now = now

    def snapshot(self, *, with_partitions: bool = True) -> StatusSnapshot:  # noqa: ARG002 -- the port's
        return self.now


class Sidecars:
    """Running HTTP servers of sidecars."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def start(self, snapshot: StatusSnapshot, token: str | None = None) -> str:
        bearer = None if token is None else lambda: token
        server = HttpServer(
            "127.0.0.1", 0, Application(create_registry(), Status(snapshot), bearer)
        )
        server.start()
        self._stack.callback(server.stop)
        return server.url.removeprefix("http://")


@pytest.fixture
def sidecars() -> Iterator[Sidecars]:
    with ExitStack() as stack:
        yield Sidecars(stack)


FINE = replace(snapshot_of(ARCHIVED), broker_id=BrokerId(1))
TROUBLED = replace(snapshot_of(UPLOADING, HELD, HALTED), broker_id=BrokerId(2))
UNREADY = replace(
    snapshot_of(GAP),
    broker_id=BrokerId(3),
    conditions=(Condition("store reachable", holds=False, reason="403"),),
)


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def refused() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def test_status_shows_the_sidecars_that_need_an_operator_first(
    sidecars: Sidecars, silent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fine, troubled, unready = map(sidecars.start, (FINE, TROUBLED, UNREADY))
    closed = refused()
    named = [f"--sidecar={address}" for address in (fine, troubled, unready, closed, silent)]
    code = run(["fleet", "status", "--timeout", "2", "-o", "json", *named])
    shown = json.loads(capsys.readouterr().out)["sidecars"]
    assert code == 3
    assert {row["address"] for row in shown[:2]} == {closed, silent}
    assert [row["address"] for row in shown[2:]] == [unready, troubled, fine]
    reasons = {row["address"]: row["reason"] for row in shown}
    assert "Connection refused" in reasons[closed]
    assert "timed out" in reasons[silent] or "within 2 s" in reasons[silent]
    assert reasons[unready] == "store reachable: 403"
    row = shown[3]
    assert (row["broker_id"], row["ready"], row["problems"]) == (2, True, 2)
    assert (row["cluster"], row["version"], row["totals"]["partitions"]) == ("prod-a", "0.1.0", 3)
    assert row["worst"].startswith("invoices-0 halted: the topic was deleted and created again")
    assert code == run(["fleet", "status", "--timeout", "2", *named])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["SIDECAR", "CLUSTER", "BROKER"]
    assert lines[-2] == "5 sidecars: 2 ready, 2 unreachable"
    assert lines[-1].startswith("prod-a: 5 partitions, 3 with problems; ")


def test_exit_code_tells_the_state(sidecars: Sidecars, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fleet", "status", "--sidecar", sidecars.start(FINE)]) == 0
    assert run(["fleet", "status", "--sidecar", sidecars.start(TROUBLED)]) == 3
    assert run(["fleet", "status", "--sidecar", refused()]) == 1
    capsys.readouterr()
    assert run(["fleet", "status"]) == 2
    assert "set fleet.sidecars or fleet.dns" in capsys.readouterr().err
    assert run(["fleet", "status", "--sidecar", "kafka-1"]) == 2
    assert run(["fleet", "status", "--dns", "kafka.invalid:9108"]) == 1
    assert "kafka.invalid cannot be resolved" in capsys.readouterr().err


def test_sidecars_and_token_come_from_the_configuration(
    sidecars: Sidecars, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = sidecars.start(FINE, "s3cret")
    config = tmp_path / "sidetier.yaml"
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    fields: dict[str, Any] = {
        "cluster": {"name": "prod-a"},
        "storage": {"url": f"file://{tmp_path}"},
        "fleet": {"sidecars": [address], "timeout": "20s"},
        "http": {"bearer_token": {"file": str(token)}},
    }
    config.write_text(yaml.safe_dump(fields))
    assert run(["fleet", "status", "--config", str(config)]) == 0
    with_file = ["--sidecar", address, "--bearer-token-file", str(token)]
    assert run(["fleet", "status", *with_file]) == 0
    capsys.readouterr()
    assert run(["fleet", "status", "--sidecar", address]) == 1
    assert "asks for a bearer token" in capsys.readouterr().out
    config.write_text(yaml.safe_dump({**fields, "fleet": {"dns": "https://kafka:9108"}}))
    assert run(["fleet", "status", "--config", str(config)]) == 2
    assert "fleet.dns" in capsys.readouterr().err


def test_every_address_of_the_dns_name_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(name: str, port: int, **_: object) -> list[tuple[Any, ...]]:
        assert (name, port) == ("sidetier.kafka.svc", 9108)
        four = [(socket.AF_INET, 1, 6, "", (host, port)) for host in ("10.0.0.2", "10.0.0.1")]
        return [*four, four[0], (socket.AF_INET6, 1, 6, "", ("fd00::7", port, 0, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    fleet = Fleet(["10.0.0.1:9108"], "sidetier.kafka.svc:9108", timeout=1, ask=ask_page)
    assert fleet.addresses() == ["10.0.0.1:9108", "10.0.0.2:9108", "[fd00::7]:9108"]
    fleet.close()


class FakeFleet:
    """Answers as sidecars with these snapshots, and counts requested rows."""

    def __init__(self, snapshots: Mapping[str, StatusSnapshot]) -> None:
        self.snapshots = snapshots
        self.limits: list[int] = []

    def ask(self, url: str, query: str, _timeout: float, _token: str | None) -> dict[str, Any]:
        address = url.removeprefix("http://")
        if address not in self.snapshots:
            raise NoSidecarError(f"no sidecar answers at {url}: down")
        parsed = parse_query(query)
        assert parsed is not None
        self.limits.append(int(parse_qs(query)["limit"][0]))
        page: dict[str, Any] = json.loads(
            json.dumps(partition_page(page_of(self.snapshots[address], parsed)))
        )
        return page

    def open(self, *more: str) -> Fleet:
        return Fleet([*self.snapshots, *more], None, timeout=30, ask=self.ask)


@pytest.mark.parametrize("sort", ["severity", "name", "age", "deletion", "bytes"])
def test_fleet_page_is_that_of_one_sidecar_with_all_partitions(sort: str) -> None:
    partitions = (UPLOADING, HELD, HALTED, GAP, *many(400))
    # The first sidecar has nearly everything that belongs on the page.
    parts = (partitions[:200], partitions[200:203], partitions[203:])
    fake = FakeFleet({f"b{i}:1": snapshot_of(*part) for i, part in enumerate(parts)})
    fleet = fake.open()
    for query in (
        PartitionQuery(0, 100, sort),
        PartitionQuery(100, 60, sort, "events-*"),
        PartitionQuery(0, 100, sort, states=frozenset({ShownState.HELD, ShownState.GAP})),
        PartitionQuery(400, 100, sort),
    ):
        page = fleet.page(query)
        expected = page_of(snapshot_of(*partitions), query)
        assert [(row["topic"], row["partition"]) for row in page["partitions"]] == [
            (status.topic, status.partition) for status in expected.snapshot.partitions
        ]
        assert page["page"]["matching"] == expected.matching
        assert page["totals"]["states"] == expected.totals.states
        assert page["totals"]["unarchived_bytes"] == expected.totals.unarchived_bytes
        assert page["totals"]["oldest_age_seconds"] == expected.totals.oldest_age_seconds
    fleet.close()


def test_nothing_is_added_up_over_two_clusters() -> None:
    other = replace(snapshot_of(HELD), cluster="prod-b")
    fake = FakeFleet({"a:1": snapshot_of(GAP, UPLOADING), "b:1": other})
    fleet = fake.open()
    page = fleet.page(PartitionQuery())
    assert (page["cluster"], page["totals"], page["queued_bytes"]) == ("prod-a, prod-b", None, None)
    clusters = page["fleet"]["clusters"]
    assert [(one["cluster"], one["totals"]["partitions"]) for one in clusters] == [
        ("prod-a", 2),
        ("prod-b", 1),
    ]
    shown = {(row["cluster"], row["topic"]) for row in page["partitions"]}
    assert shown == {("prod-a", GAP.topic), ("prod-a", UPLOADING.topic), ("prod-b", HELD.topic)}
    [table] = FleetResult(fleet.sidecars(PartitionQuery())).as_tables()
    [*_, first, second] = (table.footer or "").splitlines()
    assert first.startswith("prod-a: 2 partitions")
    assert second.startswith("prod-b: 1 partitions")
    fleet.close()


def test_few_rows_are_requested_from_each_of_many_sidecars() -> None:
    """500 sidecars with 100 rows each would be a quarter of a gigabyte in memory."""
    partitions = many(2_000)
    fake = FakeFleet({f"b{i}:1": snapshot_of(*partitions[i::100]) for i in range(100)})
    fleet = fake.open()
    assert len(fleet.page(PartitionQuery(0, 100))["partitions"]) == 100
    assert sum(fake.limits) < 2_000
    fleet.close()


def test_page_names_the_sidecars_that_do_not_answer() -> None:
    fleet = FakeFleet({"b1:1": FINE, "b2:1": UNREADY}).open("b3:1")
    page = fleet.page(PartitionQuery(), "https://runbook")
    assert page["ready"] is False
    assert [(s["address"], s["reachable"], s["reason"]) for s in page["fleet"]["sidecars"]] == [
        ("b3:1", False, "no sidecar answers at http://b3:1: down"),
        ("b2:1", True, "store reachable: 403"),
        ("b1:1", True, ""),
    ]
    assert [(row["sidecar"], row["broker_id"]) for row in page["partitions"]] == [
        ("b2:1", 3),
        ("b1:1", 1),
    ]
    assert (page["cluster"], page["runbook_url"]) == ("prod-a", "https://runbook")
    with pytest.raises(ValueError, match="at most 1000 over a fleet"):
        fleet.page(PartitionQuery(950, 100))
    fleet.close()


def test_sidecar_that_did_not_answer_rests() -> None:
    """Otherwise each refresh of the page would wait for it."""
    now = [0.0]
    asked: list[str] = []

    def ask(url: str, *_: object) -> dict[str, Any]:
        asked.append(url)
        raise NoSidecarError("down")

    fleet = Fleet(["b1:1"], None, timeout=30, ask=ask, now=lambda: now[0])
    for now[0] in (0.0, 14.0, 16.0):
        [sidecar] = fleet.sidecars(PartitionQuery())
        assert sidecar.reason == "down"
    assert len(asked) == 2
    fleet.close()


def test_slow_sidecar_delays_the_others_no_longer_than_the_timeout() -> None:
    release = threading.Event()

    def ask(url: str, query: str, timeout: float, token: str | None) -> dict[str, Any]:
        if url == "http://slow:1":
            release.wait(60)
        return FakeFleet({"b1:1": FINE, "slow:1": FINE}).ask(url, query, timeout, token)

    fleet = Fleet(["slow:1", "b1:1"], None, timeout=0.3, ask=ask)
    slow, fine = fleet.sidecars(PartitionQuery())
    assert (slow.address, slow.reason) == ("slow:1", "no answer within 0.3 s")
    assert fine.ready
    release.set()
    fleet.close()


def test_unknown_name_is_shown_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    fleet = Fleet([], "sidetier.kafka.svc:9108", timeout=1, ask=ask_page)
    problem = "fleet.dns: sidetier.kafka.svc cannot be resolved: Name or service not known"
    page = fleet.page(PartitionQuery())
    assert (page["ready"], page["fleet"]["problems"]) == (False, [problem])
    with pytest.raises(UnknownFleetError, match="cannot be resolved"):
        fleet.sidecars(PartitionQuery())
    fleet.close()


def test_fleet_page_is_served_to_browsers(sidecars: Sidecars) -> None:
    fleet = Fleet([sidecars.start(FINE), sidecars.start(TROUBLED)], None, timeout=30, ask=ask_page)
    source = FleetSource(fleet, lambda: None, HttpConfig())
    with closing(fleet), fleet_server(source, ("127.0.0.1", 0)) as server:
        url = server.url
        page = ask_page(url, "limit=2")
        assert [row["broker_id"] for row in page["partitions"]] == [2, 2]
        assert len(page["fleet"]["sidecars"]) == 2
        assert page["runbook_url"] == ""
        # Without parameters, too, the fleet answers with a page.
        assert len(ask_sidecar(url).status.partitions) == 4
        with pytest.raises(NoSidecarError, match="400"):
            ask_page(url, "offset=1000")


def test_fleet_page_requires_the_token_of_the_sidecars(sidecars: Sidecars) -> None:
    fleet = Fleet(
        [sidecars.start(FINE, "s3cret")],
        None,
        timeout=30,
        bearer_token=lambda: "s3cret",
        ask=ask_page,
    )
    source = FleetSource(fleet, lambda: "s3cret", HttpConfig())
    with closing(fleet), fleet_server(source, ("127.0.0.1", 0)) as server:
        url = server.url
        assert len(ask_page(url, "limit=1", bearer_token="s3cret")["partitions"]) == 1
        with pytest.raises(NoSidecarError, match="asks for a bearer token"):
            ask_page(url, "limit=1", bearer_token="wrong")


def test_fleet_page_without_a_token_is_for_this_host_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["fleet", "serve", "--sidecar", "kafka-1:9108", "--listen", "0.0.0.0:0"]
    assert run(arguments) == 2
    assert "without a login" in capsys.readouterr().err
    assert run(["fleet", "serve"]) == 2
    assert "no sidecars are configured" in capsys.readouterr().err


def test_fleet_needs_an_address() -> None:
    with pytest.raises(ConfigurationError, match="no sidecars are configured"):
        Fleet([], None, timeout=1, ask=ask_page).addresses()


class Server:
    """Answers every request with the same status, headers and body."""

    def __init__(self, body: bytes, status: str = "200 OK", **headers: str) -> None:
        self.headers = [(name.replace("_", "-"), value) for name, value in headers.items()]
        self.status = status
        self.body = body
        self.seen: list[dict[str, Any]] = []

    def __call__(self, environ: dict[str, Any], respond: Any) -> list[bytes]:  # noqa: ANN401 -- WSGI's
        self.seen.append(environ)
        respond(self.status, self.headers)
        return [self.body]


@contextmanager
def answering(application: Any) -> Iterator[str]:  # noqa: ANN401 -- WSGI's
    server = HttpServer("127.0.0.1", 0, application)
    server.start()
    try:
        yield server.url
    finally:
        server.stop()


@pytest.mark.parametrize("is_compressed", [False, True])
def test_answers_have_a_largest_size(
    monkeypatch: pytest.MonkeyPatch, *, is_compressed: bool
) -> None:
    """A hostile server could fill the memory, with few bytes if they are compressed."""
    monkeypatch.setattr("sidetier.cli.inspect.sidecar._MAX_PAGE_BYTES", 1 << 20)
    page = partition_page(page_of(FINE, PartitionQuery()))
    fits = json.dumps(page).encode().ljust(1 << 20)
    for body, is_accepted in ((fits, True), (fits + b" ", False)):
        server = Server(body)
        if is_compressed:
            server = Server(gzip.compress(body), Content_Encoding="gzip")
        with answering(server) as url:
            if is_accepted:
                assert ask_page(url, "limit=1")["partitions"]
            else:
                with pytest.raises(NoSidecarError, match="more than 1 MiB"):
                    ask_page(url, "limit=1")


def test_compressed_answer_that_breaks_off_is_no_answer() -> None:
    body = gzip.compress(json.dumps(partition_page(page_of(FINE, PartitionQuery()))).encode())
    with (
        answering(Server(body[:-20], Content_Encoding="gzip")) as url,
        pytest.raises(NoSidecarError, match="breaks off"),
    ):
        ask_page(url, "limit=1")


@pytest.mark.parametrize("status", ["200 OK", "503 Service Unavailable"])
def test_answer_that_breaks_off_is_no_answer(status: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as connection:
                connection.recv(4096)
                head = f"HTTP/1.1 {status}\r\nContent-Length: 9\r\nConnection: close\r\n\r\n"
                connection.sendall(f"{head}{{}}".encode())

        server = threading.Thread(target=answer)
        server.start()
        with pytest.raises(NoSidecarError, match="breaks off, 7 bytes early"):
            ask_page(f"http://127.0.0.1:{listener.getsockname()[1]}", "limit=1")
        server.join()


HEAD = b"HTTP/1.1 200 OK\r\n"
TRICKLES = {
    "headers": (b"", b"X: y\r\n"),
    "body": (HEAD + b"Content-Length: 99999\r\n\r\n", b" "),
    "body without a length": (HEAD + b"Connection: close\r\n\r\n", b" "),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
}


@pytest.mark.parametrize(("begin", "piece"), TRICKLES.values(), ids=TRICKLES)
def test_whole_answer_has_a_time_limit(begin: bytes, piece: bytes) -> None:
    """Also where a byte arrives now and then: each restarts the timeout of the socket."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def trickle() -> None:
            with listener.accept()[0] as connection, suppress(OSError):
                connection.recv(4096)
                connection.sendall(begin or HEAD)
                while not ended.wait(0.02):
                    connection.sendall(piece)

        server = threading.Thread(target=trickle)
        server.start()
        with pytest.raises(NoSidecarError, match=r"its answer was not complete within 0\.3 s"):
            ask_page(f"http://127.0.0.1:{listener.getsockname()[1]}", "limit=1", timeout=0.3)
        # The connection was cut, so the server's next byte fails: no thread waits for more.
        server.join(10)
        assert not server.is_alive()
        ended.set()


@contextmanager
def _tls_server(certificate: trustme.LeafCert) -> Iterator[int]:
    """Answer as a sidecar behind a proxy with this certificate; yields the port."""
    body = json.dumps({**partition_page(page_of(FINE, PartitionQuery())), "partitions": []})
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.headers["Authorization"] == "Bearer s3cret"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("name", "code"), [("sidetier.test", 0), ("other.test", 1)])
def test_certificates_of_addresses_have_the_name_of_the_service(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    code: int,
) -> None:
    authority = trustme.CA()
    bundle, token = tmp_path / "ca.pem", tmp_path / "token"
    authority.cert_pem.write_to_path(bundle)
    token.write_text("s3cret")
    real = socket.getaddrinfo

    def resolved(host: str, *rest: Any, **more: Any) -> Any:  # noqa: ANN401
        return real("127.0.0.1" if host == "sidetier.test" else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    with _tls_server(authority.issue_cert(name)) as port:
        arguments = ["--tls", f"--ca-bundle={bundle}", f"--bearer-token-file={token}"]
        line = ["fleet", "status", f"--dns=sidetier.test:{port}", *arguments]
        assert run(line) == code
    assert ("Hostname mismatch" in capsys.readouterr().out) == bool(code)


def test_impossible_host_name_is_no_answer() -> None:
    with pytest.raises(NoSidecarError, match="no sidecar answers at http://kafka"):
        ask_page("http://kafka..example:9108", "limit=1")


def test_deeply_nested_answer_is_no_answer() -> None:
    with (
        answering(Server(b"[" * 100_000)) as url,
        pytest.raises(NoSidecarError, match="not a JSON object"),
    ):
        ask_page(url, "limit=1")


def test_redirect_is_not_followed() -> None:
    """A hostile server could choose any address that the fleet's server reaches."""
    target = Server(json.dumps(partition_page(page_of(FINE, PartitionQuery()))).encode())
    with (
        answering(target) as other,
        answering(Server(b"", "302 Found", Location=f"{other}/api/partitions")) as url,
    ):
        with pytest.raises(NoSidecarError, match="302"):
            ask_page(url, "limit=1", bearer_token="s3cret")
        assert target.seen == []


@pytest.mark.parametrize(
    "broken",
    [
        {"conditions": None},
        {"totals": {}},
        {"page": {"matching": "many"}},
        {"partitions": [{"topic": "t"}]},
        {"partitions": ["t"]},
        {"held_errors": [7]},
        {"queued_bytes": "1"},
        {"last_drill": {"finished_ms": "yesterday"}},
        {"row": {"shown_state": "a later version's"}},
        {"row": {"unarchived_age_seconds": "1"}},
        {"row": {"topic": 5}},
        {"row": {"partition": None}},
    ],
    ids=str,
)
def test_sidecar_with_an_unreadable_page_does_not_hide_the_others(broken: dict[str, Any]) -> None:
    fake = FakeFleet({"b1:1": TROUBLED, "b2:1": TROUBLED})

    def ask(url: str, query: str, timeout: float, token: str | None) -> dict[str, Any]:
        page = fake.ask(url, query, timeout, token)
        if url == "http://b2:1":
            page |= {name: value for name, value in broken.items() if name != "row"}
            page["partitions"] = [
                {**row, **broken["row"]} if "row" in broken else row for row in page["partitions"]
            ]
        return page

    fleet = Fleet(["b1:1", "b2:1"], None, timeout=30, ask=ask)
    page = fleet.page(PartitionQuery())
    unreadable, fine = page["fleet"]["sidecars"]
    assert (unreadable["address"], unreadable["reachable"]) == ("b2:1", False)
    assert "the answer of b2:1 is not a page of a sidecar" in unreadable["reason"]
    assert fine["reachable"]
    assert {row["sidecar"] for row in page["partitions"]} == {"b1:1"}
    fleet.close()


def test_sidecar_that_hangs_occupies_one_thread() -> None:
    """It can send a byte now and then: each of them starts the socket's time limit anew."""
    release, now, asked = threading.Event(), [0.0], list[str]()

    def ask(url: str, *_: object) -> dict[str, Any]:
        asked.append(url)
        release.wait(60)
        raise NoSidecarError("down")

    fleet = Fleet(["b1:1"], None, timeout=0.05, ask=ask, now=lambda: now[0])
    for now[0] in (0.0, 20.0, 40.0):
        [sidecar] = fleet.sidecars(PartitionQuery())
        assert sidecar.reason == "no answer within 0.05 s"
    assert len(asked) == 1
    release.set()
    wait_until(lambda: fleet.sidecars(PartitionQuery())[0].reason == "down", 10, "the next request")
    fleet.close()


def test_fleet_page_requires_a_token_that_is_not_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = tmp_path / "token"
    token.write_text("\n")
    arguments = ["--sidecar", "kafka-1:9108", "--bearer-token-file", str(token)]
    assert run(["fleet", "serve", *arguments, "--listen", "127.0.0.1:0"]) == 2
    assert "is empty" in capsys.readouterr().err


def test_older_sidecar_is_named() -> None:
    class Old:
        def __call__(self, _environ: object, respond: Any) -> list[bytes]:  # noqa: ANN401 -- WSGI's
            respond("200 OK", [("Content-Type", "application/json")])
            return [b'{"partitions": [], "ready": true}']

    server = HttpServer("127.0.0.1", 0, Old())
    server.start()
    try:
        with pytest.raises(NoSidecarError, match="has no pages of partitions: upgrade it"):
            ask_page(server.url, "limit=1")
    finally:
        server.stop()


def test_sidecar_that_does_not_know_its_name_says_what_to_do(
    sidecars: Sidecars, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = sidecars.start(FINE)
    real = socket.getaddrinfo

    def resolved(host: str, *rest: Any, **more: Any) -> Any:  # noqa: ANN401
        return real("127.0.0.1" if host == "kafka-1.example.com" else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    named = f"http://kafka-1.example.com:{address.rpartition(':')[2]}"
    with pytest.raises(NoSidecarError, match=r"add the name to its http\.allowed_hosts"):
        ask_sidecar(named)

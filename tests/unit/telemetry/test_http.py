import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import BrokerId, Offset
from sidetier.telemetry.http import HttpServer
from sidetier.telemetry.metrics import Metrics, create_registry
from sidetier.telemetry.status import Condition, PartitionState, PartitionStatus, StatusSnapshot
from tests.harness.ci import in_ci

SNAPSHOT = StatusSnapshot(
    cluster="prod-a",
    broker_id=BrokerId(3),
    conditions=(Condition("bootstrapped", holds=True), Condition("store", holds=True)),
    partitions=(
        PartitionStatus("orders", 0, PartitionState.IDLE, next_offset=Offset(7)),
        PartitionStatus("pay", 1, PartitionState.WAITING, waiting_for="the high watermark"),
    ),
)


class ChangingStatus:
    def __init__(self) -> None:
        self.now = SNAPSHOT
        self.error: Exception | None = None

    def snapshot(self) -> StatusSnapshot:
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
    server = HttpServer("127.0.0.1", 0, registry, source)
    server.start()
    yield server
    server.stop()


def ask(
    server: HttpServer, path: str, method: str = "GET", host: str = "127.0.0.1"
) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection(host, server.port, timeout=5)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())
    finally:
        connection.close()


def ask_json(server: HttpServer, path: str) -> tuple[int, Any]:
    status, body, headers = ask(server, path)
    assert headers["Content-Type"].startswith("application/json")
    return status, json.loads(body)


def test_metrics_are_in_the_format_of_prometheus(server: HttpServer) -> None:
    status, body, headers = ask(server, "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=")
    names = {family.name for family in text_string_to_metric_families(body)}
    assert {"sidetier_leader_partitions", "process_resident_memory_bytes"} <= names


def test_healthy_while_every_thread_lives(server: HttpServer, source: ChangingStatus) -> None:
    assert ask_json(server, "/healthz") == (200, {"alive": True, "reason": None})
    source.now = StatusSnapshot("prod-a", alive=False, death="watcher: died")
    assert ask_json(server, "/healthz") == (503, {"alive": False, "reason": "watcher: died"})


def test_ready_when_every_condition_holds(server: HttpServer, source: ChangingStatus) -> None:
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


def test_not_ready_before_anything_is_known(server: HttpServer, source: ChangingStatus) -> None:
    source.now = StatusSnapshot("prod-a")
    assert ask_json(server, "/readyz")[0] == 503


def test_partitions_in_full_and_by_topic(server: HttpServer) -> None:
    status, body = ask_json(server, "/api/partitions")
    assert status == 200
    assert (body["cluster"], body["broker_id"], body["ready"]) == ("prod-a", 3, True)
    assert [row["topic"] for row in body["partitions"]] == ["orders", "pay"]
    _, filtered = ask_json(server, "/api/partitions?topic=pay")
    [row] = filtered["partitions"]
    assert (row["state"], row["waiting_for"]) == ("waiting", "the high watermark")
    assert ask_json(server, "/api/partitions?topic=none")[1]["partitions"] == []


def test_head_has_no_body_and_unknown_paths_and_methods_are_refused(server: HttpServer) -> None:
    assert ask(server, "/metrics", "HEAD")[:2] == (200, "")
    assert ask(server, "/nothing")[0] == 404
    assert ask(server, "/metrics", "POST")[0] == 405
    assert ask(server, "/")[0] == 200


def test_an_error_inside_is_an_answer_and_not_the_end(
    server: HttpServer, source: ChangingStatus, capsys: pytest.CaptureFixture[str]
) -> None:
    source.error = RuntimeError("broken")
    assert ask(server, "/readyz")[0] == 500
    source.error = None
    assert ask(server, "/readyz")[0] == 200
    assert "broken" in capsys.readouterr().err


def test_a_client_that_stalls_holds_up_nobody(server: HttpServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as stalled:
        stalled.sendall(b"GET /metrics")
        assert ask(server, "/healthz")[0] == 200


def test_many_at_once(server: HttpServer) -> None:
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


def test_ipv6(source: ChangingStatus) -> None:
    server = HttpServer("::1", 0, create_registry(), source)
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


def test_a_taken_port_is_a_clear_error(server: HttpServer, source: ChangingStatus) -> None:
    second = HttpServer("127.0.0.1", server.port, create_registry(), source)
    with pytest.raises(ConfigurationError, match=f"port {server.port}: Address already in use"):
        second.start()
    second.stop()


def test_a_host_of_another_machine_is_a_clear_error(source: ChangingStatus) -> None:
    server = HttpServer("203.0.113.1", 0, create_registry(), source)
    with pytest.raises(ConfigurationError, match=r"http\.host, http\.port: cannot listen"):
        server.start()


def test_it_stops_twice_and_before_it_started_and_starts_again(source: ChangingStatus) -> None:
    server = HttpServer("127.0.0.1", 0, create_registry(), source)
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


def test_the_url_is_one_that_a_client_can_use(source: ChangingStatus) -> None:
    everywhere = "0.0.0.0"  # noqa: S104 -- never bound here
    assert HttpServer(everywhere, 9108, create_registry(), source).url == "http://127.0.0.1:9108"
    assert HttpServer("[::]", 9108, create_registry(), source).url == "http://[::1]:9108"

"""Clients that wait at the end of their partitions: one thread repeats their empty answers."""

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry

from sidetier.endpoint.fetch import Fetcher
from sidetier.endpoint.idle_polls import IdleAnswers, IdlePolls
from sidetier.endpoint.reloading import Reloaded
from sidetier.endpoint.service import EndpointSettings, RunningEndpoint, serving
from sidetier.endpoint.users import EVERYTHING, Access
from sidetier.storage.fake import FakeStorage
from sidetier.wire.protocol import ApiKey, build_request, decode_response, encode, encode_header
from tests.harness.endpoint import EAGER, RawClient, fetch_of, write_users
from tests.harness.made_archive import MadeArchive, access_to, batches, encoded
from tests.harness.waiting import wait_until


@pytest.fixture
def archive() -> MadeArchive:
    """orders-0 and orders-1 with the offsets 0 to 19."""
    made = MadeArchive(FakeStorage())
    made.segments(0, 20)
    MadeArchive(made.store, tp=made.tp._replace(partition=1)).segments(0, 20)
    return made


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def endpoint(archive: MadeArchive, registry: CollectorRegistry) -> Iterator[RunningEndpoint]:
    settings = EndpointSettings(("127.0.0.1", 0), catalog=EAGER)
    with serving(access_to(archive.store), settings, registry) as running:
        yield running


@pytest.fixture
def client(endpoint: RunningEndpoint) -> Iterator[RawClient]:
    with RawClient(endpoint.address) as made:
        yield made


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of partitions in each Fetch that a connection's thread reads."""
    seen: list[int] = []
    read = Fetcher._read

    def counted(self: Fetcher, request: Any, *more: Any) -> Any:  # noqa: ANN401 - kio's
        seen.append(sum(len(topic.partitions) for topic in request.topics))
        return read(self, request, *more)

    monkeypatch.setattr(Fetcher, "_read", counted)
    return seen


def frame(version: int = 12, **values: Any) -> bytes:  # noqa: ANN401 - kio's
    body = encode_header(ApiKey.FETCH, version, 77, "raw")
    body += encode(build_request(ApiKey.FETCH, version, **values))
    return struct.pack(">i", len(body)) + body


def both(offset: int, *numbers: int, max_wait: int = 30) -> dict[str, Any]:
    values = fetch_of("orders", offset, max_wait=max_wait)
    (asked,) = values["topics"][0]["partitions"]
    values["topics"][0]["partitions"] = [{**asked, "partition": number} for number in numbers]
    return values


def is_idle(endpoint: RunningEndpoint, count: int = 1) -> bool:
    return len(endpoint.idle_polls._polls) == count


@pytest.mark.parametrize("version", [4, 11, 12])
def test_equal_requests_are_read_once(
    client: RawClient, reads: list[int], registry: CollectorRegistry, version: int
) -> None:
    wanted = fetch_of("orders", 20, max_wait=20)
    answers: list[Any] = [client.request(ApiKey.FETCH, version, **wanted) for _ in range(5)]
    assert reads == [1]
    assert all(answer == answers[0] for answer in answers)
    (data,) = answers[0].responses[0].partitions
    assert (int(data.error_code), data.high_watermark, data.records or b"") == (0, 20, b"")
    labels = {"api": "Fetch", "error": "none"}
    value = registry.get_sample_value
    wait_until(lambda: value("sidetier_endpoint_requests_total", labels) == 5, 5, "the count")


def test_each_order_of_the_partitions_has_its_own_answer(
    client: RawClient, reads: list[int]
) -> None:
    """Librdkafka begins each Fetch with another partition."""
    for _ in range(3):
        for numbers in ((0, 1), (1, 0)):
            answer: Any = client.request(ApiKey.FETCH, 12, **both(20, *numbers))
            assert [data.partition_index for data in answer.responses[0].partitions] == [*numbers]
    assert reads == [2, 2]


def test_records_that_arrive_end_the_wait(
    client: RawClient, endpoint: RunningEndpoint, archive: MadeArchive
) -> None:
    client.request(ApiKey.FETCH, 12, **fetch_of("orders", 20, max_wait=20))
    client.socket.sendall(frame(**fetch_of("orders", 20, max_wait=60_000)))
    wait_until(lambda: is_idle(endpoint), 10, "the wait")
    archive.segment(20, batches(20, 40))
    archive.mark(20, 40)
    assert encoded(batches(20, 40)) in client.receive()


def test_records_that_arrive_between_two_requests_are_in_the_next_answer(
    client: RawClient, endpoint: RunningEndpoint, archive: MadeArchive
) -> None:
    wanted = fetch_of("orders", 20, max_wait=20)
    client.request(ApiKey.FETCH, 12, **wanted)
    archive.segment(20, batches(20, 40))
    archive.mark(20, 40)
    wait_until(lambda: is_idle(endpoint, 0), 10, "the change")
    answer: Any = client.request(ApiKey.FETCH, 12, **wanted)
    assert bytes(answer.responses[0].partitions[0].records) == encoded(batches(20, 40))


def test_a_change_that_brings_no_records_does_not_end_or_extend_the_wait(
    client: RawClient, endpoint: RunningEndpoint, archive: MadeArchive, reads: list[int]
) -> None:
    """As for read_committed, while a transaction is open and the archive grows."""
    client.socket.sendall(frame(**both(20, 0, 1, max_wait=60_000)))
    wait_until(lambda: is_idle(endpoint), 10, "the wait")
    (poll,) = endpoint.idle_polls._polls.values()
    deadline = poll.deadline
    other = MadeArchive(archive.store, tp=archive.tp._replace(partition=1))
    other.mark(0, 20, leader_epoch=4)  # another state, the same end
    wait_until(lambda: len(reads) == 2 and is_idle(endpoint), 10, "the second wait")
    (again,) = endpoint.idle_polls._polls.values()
    assert again is not poll
    assert again.deadline == deadline


def test_requests_at_once_are_answered_in_their_order(client: RawClient) -> None:
    empty = frame(**fetch_of("orders", 20, max_wait=50))
    full = frame(**fetch_of("orders", 0, max_wait=50))
    client.socket.sendall(empty)
    client.socket.sendall(full + empty)
    client.socket.sendall(empty[:5])
    client.socket.sendall(empty[5:])
    sizes = [len(client.receive()) for _ in range(4)]
    assert sizes[0] == sizes[2] == sizes[3] < 100 < sizes[1]
    client.request(ApiKey.API_VERSIONS, 0)


@pytest.mark.parametrize("topics", [["clicks"], None])
def test_a_client_that_lost_its_permission_meanwhile_gets_no_records(
    archive: MadeArchive,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    topics: list[str] | None,
) -> None:
    """The user may not read the topic any more, or was removed."""
    monkeypatch.setattr(Reloaded.__init__, "__defaults__", (lambda: None, monotonic, 0.0))
    users = tmp_path / "users.yaml"
    write_users(users, {"alice": {"password": "secret", "topics": ["orders"]}})
    settings = EndpointSettings(("127.0.0.1", 0), catalog=EAGER, users=users)
    with (
        serving(access_to(archive.store), settings) as endpoint,
        RawClient(endpoint.address) as client,
    ):
        client.log_in("SCRAM-SHA-256", "alice", "secret")
        client.request(ApiKey.FETCH, 12, **fetch_of("orders", 20, max_wait=20))
        client.socket.sendall(frame(**fetch_of("orders", 20, max_wait=60_000)))
        wait_until(lambda: is_idle(endpoint), 10, "the wait")
        name = "alice" if topics else "bob"
        write_users(users, {name: {"password": "secret", "topics": topics or ["orders"]}})
        archive.segment(20, batches(20, 40))
        archive.mark(20, 40)
        if topics is None:
            assert client.is_closed()
            return
        body = memoryview(client.receive())[5:]  # behind the correlation id and tagged fields
        answer: Any = decode_response(ApiKey.FETCH, 12, body, "endpoint")
        (data,) = answer.responses[0].partitions
        assert data.error_code is ErrorCode.topic_authorization_failed
        assert not data.records


@pytest.mark.parametrize("how", ["closes", "resets"])
def test_a_client_that_leaves_is_noticed(endpoint: RunningEndpoint, how: str) -> None:
    with RawClient(endpoint.address) as client:
        client.request(ApiKey.FETCH, 12, **fetch_of("orders", 20, max_wait=20))
        client.socket.sendall(frame(**fetch_of("orders", 20, max_wait=20)))
        if how == "resets":
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: endpoint.server.open_connections == 0, 10, "the end")
    assert is_idle(endpoint, 0)


def test_a_connection_that_is_lost_while_it_waits_is_closed_at_once(
    endpoint: RunningEndpoint, reads: list[int]
) -> None:
    with RawClient(endpoint.address) as client:
        client.socket.sendall(frame(**fetch_of("orders", 20, max_wait=60_000)))
        wait_until(lambda: is_idle(endpoint), 10, "the wait")
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: endpoint.server.open_connections == 0, 10, "the end")
    assert reads == [1]


def test_a_client_that_asks_often_takes_no_more_memory(
    client: RawClient, endpoint: RunningEndpoint, reads: list[int]
) -> None:
    for _ in range(50):
        client.request(ApiKey.FETCH, 12, **fetch_of("orders", 20, max_wait=10))
    assert len(endpoint.idle_polls._deadlines) <= 2 * len(reads) < 50


def test_a_stop_answers_all_that_wait(endpoint: RunningEndpoint) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(endpoint.address)) for _ in range(3)]
        for client in clients:
            client.socket.sendall(frame(**fetch_of("orders", 20, max_wait=60_000)))
        wait_until(lambda: is_idle(endpoint, 3), 10, "the wait")
        endpoint.stop()
        assert all(len(client.receive()) > 50 for client in clients)
        assert all(client.is_closed() for client in clients)


def test_clients_are_served_without_the_thread(
    endpoint: RunningEndpoint, client: RawClient, monkeypatch: pytest.MonkeyPatch, reads: list[int]
) -> None:
    """A failure of it is reported, and costs no connection."""

    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    client.request(ApiKey.FETCH, 12, **fetch_of("orders", 20, max_wait=20))
    with monkeypatch.context() as patched:
        patched.setattr("sidetier.endpoint.idle_polls.threading.excepthook", lambda _: None)
        patched.setattr(IdlePolls, "_receive", fail)
        for _ in range(2):
            client.request(ApiKey.FETCH, 12, **fetch_of("orders", 20, max_wait=20))
        wait_until(lambda: not endpoint.idle_polls.is_alive, 10, "the end of the thread")
    assert len(reads) > 1
    assert endpoint.snapshot().death == "the thread endpoint-idle has ended"


def test_answers_are_repeated_while_nothing_changes() -> None:
    answers = IdleAnswers({}, EVERYTHING, until=10.0)
    assert answers.are_valid({}, EVERYTHING, now=9.9)
    # The login and the topic are checked again.
    assert not answers.are_valid({}, EVERYTHING, now=10.0)
    assert not answers.are_valid({}, Access(), now=9.9)


def test_the_memory_for_answers_is_bounded() -> None:
    answers = IdleAnswers({}, EVERYTHING, until=10.0)
    for number in range(1000):
        answers.add(b"12345678" + struct.pack(">i", 0) + b"%d" % number + bytes(900), bytes(100), 1)
    assert len(answers._known) < 40
    newest = b"12345678" + struct.pack(">i", 5) + b"999" + bytes(900)
    assert answers.answer_to(newest) is not None

"""Requests of groups that are passed on to a live cluster of fake brokers."""

import ssl
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import UUID

import pytest
import trustme
from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from sidetier.archive.objects.layout import write_or_check_note
from sidetier.config.properties_file import read_properties
from sidetier.endpoint.groups.relay import (
    OFFERED_RELAY,
    ArchivedTopics,
    RelayGroups,
)
from sidetier.endpoint.groups.requests import groups_of, without_repeats
from sidetier.endpoint.live.client import LiveClient, LiveCluster
from sidetier.endpoint.metrics import GroupMetrics
from sidetier.endpoint.reloading import Reloaded
from sidetier.endpoint.service import ArchivedCluster
from sidetier.endpoint.session import Session
from sidetier.segments.errors import StoreUnavailableError, UnsupportedVersionError
from sidetier.storage.fake import FakeStorage
from sidetier.wire.protocol import ApiKey, decode_request, decode_response
from sidetier.wire.settings import Address, ClientSettings, SaslSettings, TlsSettings
from tests.harness.endpoint import request_of
from tests.harness.fake_broker import HANG_UP, FakeBroker, Received, fake_broker
from tests.harness.made_archive import LAYOUT, access_to
from tests.harness.waiting import wait_until

NONE = ErrorCode.none
ADVERTISED = ("archive.example", 9092)
KNOWN_ID, OTHER_ID = UUID(int=7), UUID(int=8)
NO_IDS = ArchivedTopics(lambda: None, lambda _: None, KNOWN_ID.__eq__)
VERSIONS = {ApiKey.API_VERSIONS: (0, 4), ApiKey.METADATA: (0, 13), **OFFERED_RELAY}
JOIN: dict[str, Any] = {
    "group_id": "g",
    "session_timeout": 10_000,
    "rebalance_timeout": 60_000,
    "member_id": "",
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b"topics"}],
}
BEAT: dict[str, Any] = {"group_id": "g", "generation_id": 1, "member_id": "m"}
Answer = Callable[[Received], bytes | None]


def coordinated(*brokers: FakeBroker, groups: Mapping[str, int] | None = None) -> None:
    """Make all brokers answer FindCoordinator and Metadata; `groups` says which broker has which
    group, the first one by default. The mapping can be changed later.
    """
    places = {} if groups is None else groups

    def find(request: Received) -> bytes:
        number = places.get(request.entity.key, 0)
        host, port = brokers[number].address
        return request.response(
            throttle_time=0, error_code=NONE, error_message=None,
            node_id=number, host=host, port=port,
        )  # fmt: skip

    def metadata(request: Received) -> bytes:
        rows = [
            {"node_id": number, "host": broker.address.host, "port": broker.address.port}
            for number, broker in enumerate(brokers)
        ]
        values: dict[str, Any] = {"throttle_time": 0, "cluster_id": "live", "controller_id": 0}
        return request.response(brokers=rows, topics=(), error_code=NONE, **values)

    for broker in brokers:
        broker.answers[ApiKey.FIND_COORDINATOR] = find
        broker.answers[ApiKey.METADATA] = metadata


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with fake_broker(VERSIONS) as made:
        coordinated(made)
        yield made


@contextmanager
def relay_to(
    *addresses: Address,
    registry: CollectorRegistry | None = None,
    archived: ArchivedTopics = NO_IDS,
    **settings: Any,  # noqa: ANN401
) -> Iterator[RelayGroups]:
    metrics = GroupMetrics(registry or CollectorRegistry())
    client = LiveClient.of(ClientSettings(addresses, **settings))
    relay = RelayGroups(lambda: client, ADVERTISED, archived, metrics)
    relay.start()
    try:
        yield relay
    finally:
        relay.close()
        for session in list(relay._upstreams):
            session.closing.close()


class Client:
    """One client's connection."""

    def __init__(self, relay: RelayGroups) -> None:
        self.relay = relay
        self.session = Session("10.0.0.1:5000")

    def ask(self, api: ApiKey, version: int, **values: Any) -> Any:  # noqa: ANN401 - kio's
        answer = self.relay.answer(request_of(api, version, **values), self.session)
        assert answer.body is not None
        return decode_response(api, version, memoryview(answer.body), "endpoint")

    def find(self, *groups: str) -> list[ErrorCode]:
        response = self.ask(ApiKey.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=groups)
        for row in response.coordinators:
            assert (row.host, row.port) == (ADVERTISED if row.error_code is NONE else ("", -1))
        return [row.error_code for row in response.coordinators]


@pytest.fixture
def client(broker: FakeBroker) -> Iterator[Client]:
    with relay_to(broker.address) as relay:
        yield Client(relay)


def failures(registry: CollectorRegistry, reason: str) -> float:
    labels = {"reason": reason}
    count = registry.get_sample_value("sidetier_endpoint_relay_failures_total", labels)
    assert count is not None
    return count


def beats(broker: FakeBroker, *errors: ErrorCode) -> None:
    """Answer heartbeats with these errors one after the other, then with none."""
    left = list(errors)
    broker.answers[ApiKey.HEARTBEAT] = lambda request: request.response(
        throttle_time=0, error_code=left.pop(0) if left else NONE
    )


# The coordinator


@pytest.mark.parametrize("version", range(7))
def test_the_endpoint_names_itself_after_it_has_asked(
    broker: FakeBroker, client: Client, version: int
) -> None:
    values: dict[str, Any] = {"coordinator_keys": ("g",)} if version >= 4 else {"key": "g"}
    response = client.ask(ApiKey.FIND_COORDINATOR, version, **values)
    row = response.coordinators[0] if version >= 4 else response
    assert (row.error_code, row.node_id, row.host, row.port) == (NONE, 0, *ADVERTISED)
    assert [(each.api, each.entity.key) for each in broker.received[-1:]] == [
        (ApiKey.FIND_COORDINATOR, "g")
    ]


def test_transactional_ids_are_refused_without_asking(broker: FakeBroker, client: Client) -> None:
    response = client.ask(ApiKey.FIND_COORDINATOR, 6, key_type=1, coordinator_keys=("tx",))
    assert response.coordinators[0].error_code is ErrorCode.transactional_id_authorization_failed
    assert broker.apis() == []


def test_errors_of_the_live_cluster_reach_the_client(broker: FakeBroker, client: Client) -> None:
    broker.answers[ApiKey.FIND_COORDINATOR] = lambda request: request.response(
        throttle_time=0, error_code=ErrorCode.group_authorization_failed, error_message=None,
        node_id=-1, host="", port=-1,
    )  # fmt: skip
    with capture_logs() as logs:
        assert client.find("g") == [ErrorCode.group_authorization_failed]
    response = client.ask(ApiKey.FIND_COORDINATOR, 6, coordinator_keys=("g",))
    message = response.coordinators[0].error_message
    assert message.endswith("GROUP_AUTHORIZATION_FAILED")
    assert str(broker.address.port) not in message, "clients learn no address of the live cluster"
    (refused,) = [each for each in logs if each["event"] == "endpoint.relay_refused"]
    assert str(broker.address.port) in refused["error"]


def test_versions_that_both_sides_know() -> None:
    versions = dict(VERSIONS) | {ApiKey.JOIN_GROUP: (2, 7), ApiKey.OFFSET_COMMIT: (0, 10)}
    del versions[ApiKey.CONSUMER_GROUP_HEARTBEAT]
    with fake_broker(versions) as broker, relay_to(broker.address) as relay:
        assert relay.offered[ApiKey.JOIN_GROUP] == (2, 7)
        assert relay.offered[ApiKey.OFFSET_COMMIT] == (2, 9)
        assert relay.offered[ApiKey.FIND_COORDINATOR] == (0, 6)
        assert ApiKey.CONSUMER_GROUP_HEARTBEAT not in relay.offered


def test_a_version_that_the_broker_does_not_know_ends_the_connection() -> None:
    with fake_broker(VERSIONS | {ApiKey.HEARTBEAT: (0, 3)}) as broker:
        coordinated(broker)
        with relay_to(broker.address) as relay, pytest.raises(ConnectionResetError, match="v4"):
            Client(relay).ask(ApiKey.HEARTBEAT, 4, **BEAT)


def test_a_cluster_that_refuses_the_login_is_an_error_at_the_start() -> None:
    sasl = SaslSettings("PLAIN", "user", "password")
    with (
        fake_broker(VERSIONS) as broker,
        pytest.raises(UnsupportedVersionError, match="SaslHandshake"),
        relay_to(broker.address, sasl=sasl),
    ):
        pass


def logins(broker: FakeBroker, passwords: set[bytes]) -> None:
    """Accept SASL PLAIN logins with one of these passwords, which can be changed later."""
    broker.answers[ApiKey.SASL_HANDSHAKE] = lambda request: request.response(
        error_code=NONE, mechanisms=("PLAIN",)
    )

    def authenticate(request: Received) -> bytes:
        is_right = request.entity.auth_bytes.rpartition(b"\0")[2] in passwords
        return request.response(
            error_code=NONE if is_right else ErrorCode.sasl_authentication_failed,
            error_message=None if is_right else "Authentication failed", auth_bytes=b"",
            **({"session_lifetime": 0} if request.version >= 1 else {}),
        )  # fmt: skip

    broker.answers[ApiKey.SASL_AUTHENTICATE] = authenticate


SASL = {ApiKey.SASL_HANDSHAKE: (0, 1), ApiKey.SASL_AUTHENTICATE: (0, 2)}


@pytest.fixture
def login_broker() -> Iterator[FakeBroker]:
    with fake_broker(VERSIONS | SASL) as made:
        coordinated(made)
        beats(made)
        yield made


def test_a_login_that_is_refused_later_is_not_a_cluster_that_is_away(
    login_broker: FakeBroker,
) -> None:
    passwords = {b"secret"}
    logins(login_broker, passwords)
    registry = CollectorRegistry()
    sasl = SaslSettings("PLAIN", "endpoint", "secret")
    with relay_to(login_broker.address, registry=registry, sasl=sasl) as relay:
        assert Client(relay).find("g") == [NONE]
        passwords.clear()
        with capture_logs() as logs:
            for _ in range(3):
                client = Client(relay)
                assert client.find("g") == [ErrorCode.coordinator_not_available]
                beat = client.ask(ApiKey.HEARTBEAT, 4, **BEAT)
                assert beat.error_code is ErrorCode.not_coordinator
    (logged,) = logs
    assert (logged["event"], logged["log_level"]) == ("endpoint.relay_login_failed", "error")
    assert "refuses the login" in logged["error"]
    assert "secret" not in repr(logged)
    assert (failures(registry, "login"), failures(registry, "unavailable")) == (6, 0)


def test_a_changed_password_is_used_without_a_restart(
    login_broker: FakeBroker, tmp_path: Path
) -> None:
    passwords = {b"old"}
    logins(login_broker, passwords)
    file = tmp_path / "live.properties"
    file.write_text("old")

    def load() -> ClientSettings:
        sasl = SaslSettings("PLAIN", "endpoint", file.read_text())
        return ClientSettings((login_broker.address,), sasl=sasl)

    live = LiveCluster(load, file)
    client_of = Reloaded(live.files, live.client, interval=0).current
    metrics = GroupMetrics(CollectorRegistry())
    relay = RelayGroups(client_of, ADVERTISED, NO_IDS, metrics)
    relay.start()
    connected = Client(relay)
    assert connected.find("g") == [NONE]
    file.write_text("newer")
    open_before = login_broker.connections
    assert connected.ask(ApiKey.HEARTBEAT, 4, **BEAT).error_code is NONE
    assert login_broker.connections == open_before, "a connection that works is kept"
    passwords.add(b"newer")
    passwords.remove(b"old")
    assert Client(relay).find("g") == [NONE]
    login_broker.answers[ApiKey.HEARTBEAT] = lambda _: HANG_UP
    lost = connected.ask(ApiKey.HEARTBEAT, 4, **BEAT)
    assert lost.error_code is ErrorCode.not_coordinator
    beats(login_broker)
    assert connected.find("g") == [NONE]
    assert connected.ask(ApiKey.HEARTBEAT, 4, **BEAT).error_code is NONE
    relay.close()
    for session in list(relay._upstreams):
        session.closing.close()


def test_certificates_that_changed_properties_name_are_read_again_too(tmp_path: Path) -> None:
    file, first, second = (tmp_path / name for name in ("live.properties", "1.crt", "2.crt"))

    def name_ca(path: Path) -> None:
        file.write_text(f"security.protocol=ssl\nssl.ca.location={path}\n")

    def load() -> ClientSettings:
        properties = read_properties(file, "--groups-properties")
        return ClientSettings.from_properties({**properties, "bootstrap.servers": "live:9092"})

    trustme.CA().cert_pem.write_to_path(str(first))
    name_ca(first)
    failures: list[None] = []
    live = LiveCluster(load, file)
    reloaded = Reloaded(live.files, live.client, lambda: failures.append(None), interval=0)
    name_ca(second)
    before = reloaded.current()
    assert (len(failures), before.settings.tls) == (1, TlsSettings(first))  # there is no 2.crt yet
    trustme.CA().cert_pem.write_to_path(str(second))
    moved = reloaded.current()
    assert moved.settings.tls == TlsSettings(second)
    assert reloaded.current() is moved
    rotated = trustme.CA().cert_pem.bytes()
    second.write_bytes(rotated)
    context = reloaded.current().context
    assert context is not None
    assert context.get_ca_certs(binary_form=True) == [ssl.PEM_cert_to_DER_cert(rotated.decode())]
    first.write_bytes(rotated)
    assert reloaded.current().context is context, "a file that is not named any more"


# Whole frames


@pytest.mark.parametrize("version", range(10))
def test_bodies_are_passed_on_as_they_are(broker: FakeBroker, client: Client, version: int) -> None:
    answer: dict[str, Any] = {
        "error_code": NONE, "generation_id": 7, "protocol_name": "range", "leader": "m",
        "member_id": "m", "members": [{"member_id": "m", "metadata": b"topics"}],
    }  # fmt: skip
    if version >= 2:
        answer["throttle_time"] = 0
    broker.answers[ApiKey.JOIN_GROUP] = lambda request: request.response(**answer)
    asked = {name: value for name, value in JOIN.items() if version or name[:2] != "re"}
    response = client.ask(ApiKey.JOIN_GROUP, version, **asked)
    assert (response.generation_id, response.members[0].metadata) == (7, b"topics")
    (received,) = [each for each in broker.received if each.api is ApiKey.JOIN_GROUP]
    assert (received.version, received.client_id) == (version, "test")
    assert received.entity.protocols[0].metadata == b"topics"


def test_each_client_has_its_own_connection_which_ends_with_it(broker: FakeBroker) -> None:
    beats(broker)
    with relay_to(broker.address) as relay:
        clients = [Client(relay), Client(relay)]
        before = broker.connections
        for client in clients * 3:
            assert client.ask(ApiKey.HEARTBEAT, 4, **BEAT).error_code is NONE
        assert broker.connections - before == 2
        clients[0].session.closing.close()
        assert clients[1].ask(ApiKey.HEARTBEAT, 4, **BEAT).error_code is NONE


def test_a_stop_ends_a_join_that_waits(broker: FakeBroker, client: Client) -> None:
    broker.answers[ApiKey.JOIN_GROUP] = lambda _: None
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(client.ask, ApiKey.JOIN_GROUP, 9, **JOIN)
        wait_until(lambda: ApiKey.JOIN_GROUP in broker.apis(), 5, "the request")
        client.relay.close()
        assert waiting.result(5).error_code is ErrorCode.not_coordinator


# A coordinator that moves, or a cluster that is away


def test_a_coordinator_that_moves() -> None:
    places = {"g": 0}
    with fake_broker(VERSIONS) as first, fake_broker(VERSIONS) as second:
        coordinated(first, second, groups=places)
        beats(first, NONE, ErrorCode.not_coordinator)
        beats(second)
        with relay_to(first.address) as relay:
            client = Client(relay)
            assert client.find("g") == [NONE]
            assert client.ask(ApiKey.HEARTBEAT, 4, **BEAT).error_code is NONE
            places["g"] = 1
            moved = client.ask(ApiKey.HEARTBEAT, 4, **BEAT)
            assert moved.error_code is ErrorCode.not_coordinator
            assert ApiKey.HEARTBEAT not in second.apis()
            assert client.ask(ApiKey.HEARTBEAT, 4, **BEAT).error_code is NONE
            assert ApiKey.HEARTBEAT in second.apis()


def test_a_connection_that_is_lost(broker: FakeBroker, client: Client) -> None:
    broker.answers[ApiKey.HEARTBEAT] = lambda _: HANG_UP
    lost = client.ask(ApiKey.HEARTBEAT, 4, **BEAT)
    assert lost.error_code is ErrorCode.not_coordinator
    beats(broker)
    assert client.find("g") == [NONE]
    assert client.ask(ApiKey.HEARTBEAT, 4, **BEAT).error_code is NONE


def asked_of(api: ApiKey, version: int) -> dict[str, Any]:
    """Return a request of any group API and version."""
    topics = [{"name": "orders", "partition_indexes": (0,)}]
    commit = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    several: dict[str, Any] = {"members": [{"member_id": "m", "group_instance_id": None}]}
    values: dict[ApiKey, dict[str, Any]] = {
        ApiKey.JOIN_GROUP: {k: v for k, v in JOIN.items() if version or k[:2] != "re"},
        ApiKey.SYNC_GROUP: BEAT | {"assignments": ()},
        ApiKey.HEARTBEAT: BEAT,
        ApiKey.LEAVE_GROUP: {"group_id": "g"} | (several if version >= 3 else {"member_id": "m"}),
        ApiKey.OFFSET_COMMIT: {
            "group_id": "g", "member_id": "", "topics": [{"name": "orders", "partitions": [commit]}]
        },
        ApiKey.OFFSET_FETCH: {"groups": [{"group_id": "g", "topics": topics}]}
        if version >= 8 else {"group_id": "g", "topics": topics},
        ApiKey.DESCRIBE_GROUPS: {"groups": ("g",)}
        | ({"include_authorized_operations": False} if version >= 3 else {}),
        ApiKey.LIST_GROUPS: {},
        ApiKey.CONSUMER_GROUP_HEARTBEAT: {
            "group_id": "g", "member_id": "m", "member_epoch": 0, "topic_partitions": None
        },
        ApiKey.CONSUMER_GROUP_DESCRIBE: {
            "group_ids": ("g",), "include_authorized_operations": False
        },
    }  # fmt: skip
    return values[api]


CASES = [
    (api, version)
    for api, (lowest, highest) in OFFERED_RELAY.items()
    for version in range(lowest, highest + 1)
    if api is not ApiKey.FIND_COORDINATOR
]


def test_each_request_gets_a_retriable_error_while_the_cluster_is_away() -> None:
    with fake_broker(VERSIONS) as gone:
        address = gone.address
    registry = CollectorRegistry()
    with capture_logs() as logs, relay_to(address, registry=registry) as relay:
        assert dict(relay.offered) == dict(OFFERED_RELAY)
        client = Client(relay)
        assert client.find("g") == [ErrorCode.coordinator_not_available]
        for api, version in CASES:
            request = request_of(api, version, **asked_of(api, version))
            assert groups_of(api, request.decode()) == (() if api is ApiKey.LIST_GROUPS else ("g",))
            answer = relay.answer(request, client.session)
            assert answer.error is ErrorCode.not_coordinator, (api, version)
            assert answer.body is not None
            response = decode_response(api, version, memoryview(answer.body), "endpoint")
            assert "not_coordinator" in repr(response), (api, version)
            relay.close()  # no second attempt: each of the others fails at once
    away = [entry for entry in logs if entry["event"] == "endpoint.relay_unavailable"]
    assert len(away) == 1
    assert failures(registry, "unavailable") >= len(CASES)
    assert failures(registry, "login") == failures(registry, "refused") == 0


def test_many_keys_wait_once_for_a_cluster_that_is_away() -> None:
    with fake_broker(VERSIONS) as gone:
        address = gone.address
    names = [f"g{number}" for number in range(100)]
    began = monotonic()
    with relay_to(address) as relay:
        client = Client(relay)
        assert set(client.find(*names)) == {ErrorCode.coordinator_not_available}
        assert set(offsets_of(client, *names).values()) == {ErrorCode.not_coordinator}
    assert monotonic() - began < 30


def test_a_group_that_is_named_often_is_relayed_once() -> None:
    asked = {"group_ids": ["g", "h", "g"], "include_authorized_operations": False}
    request = request_of(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, **asked)
    once = without_repeats(request)
    # Also in the bytes, which are passed on.
    decoded: Any = decode_request(once.api, once.version, once.frame, once.position)
    assert decoded.group_ids == ("g", "h")
    assert without_repeats(once) is once  # passed on as it was received


def test_a_cluster_that_comes_back(broker: FakeBroker) -> None:
    with fake_broker(VERSIONS) as gone:
        address = gone.address
    beats(broker)
    with capture_logs() as logs, relay_to(address) as relay:
        there = LiveClient.of(ClientSettings((broker.address,)))
        relay._client = lambda: there
        client = Client(relay)
        assert client.find("g") == [NONE]
        assert client.ask(ApiKey.HEARTBEAT, 4, **BEAT).error_code is NONE
    events = [entry["event"] for entry in logs]
    assert events == ["endpoint.relay_unavailable", "endpoint.relay_available"]


def test_a_broker_that_is_away_fills_no_log() -> None:
    """Requests to it fail, and those to the other one succeed, in turn."""
    with ExitStack() as stack:
        first = stack.enter_context(fake_broker(VERSIONS))
        with fake_broker(VERSIONS) as second:
            coordinated(first, second, groups={"a": 1})
        client = Client(stack.enter_context(relay_to(first.address)))
        with capture_logs() as logs:
            for _ in range(2):
                assert client.find("a") == [ErrorCode.coordinator_not_available]
                assert client.find("b") == [NONE]
    events = [entry["event"] for entry in logs]
    assert events == ["endpoint.relay_unavailable", "endpoint.relay_available"]


# Several groups in one request


@contextmanager
def two_brokers(groups: Mapping[str, int]) -> Iterator[tuple[FakeBroker, FakeBroker, Client]]:
    with ExitStack() as stack:
        first, second = (stack.enter_context(fake_broker(VERSIONS)) for _ in range(2))
        coordinated(first, second, groups=groups)
        yield first, second, Client(stack.enter_context(relay_to(first.address)))


def with_offsets(broker: FakeBroker, offset: int) -> None:
    def answer(request: Received) -> bytes:
        row = {
            "partition_index": 0, "committed_offset": offset, "metadata": "", "error_code": NONE
        }  # fmt: skip
        topics = [{"name": "orders", "partitions": [row]}]
        rows = [
            {"group_id": group.group_id, "topics": topics, "error_code": NONE}
            for group in request.entity.groups
        ]
        return request.response(throttle_time=0, groups=rows)

    broker.answers[ApiKey.OFFSET_FETCH] = answer


def offsets_of(client: Client, *groups: str) -> dict[str, int | ErrorCode]:
    rows = [{"group_id": group, "topics": None} for group in groups]
    response = client.ask(ApiKey.OFFSET_FETCH, 9, groups=rows)
    return {
        row.group_id: row.error_code or row.topics[0].partitions[0].committed_offset
        for row in response.groups
    }


def test_groups_of_one_coordinator_stay_in_one_request() -> None:
    with two_brokers({"a": 1, "b": 1}) as (first, second, client):
        with_offsets(second, 5)
        assert offsets_of(client, "a", "b") == {"a": 5, "b": 5}
        assert ApiKey.OFFSET_FETCH not in first.apis()
        assert second.apis().count(ApiKey.OFFSET_FETCH) == 1


def test_a_request_for_groups_of_several_coordinators_is_split() -> None:
    with two_brokers({"a": 0, "b": 1, "c": 0}) as (first, second, client):
        with_offsets(first, 5)
        with_offsets(second, 7)
        assert offsets_of(client, "a", "b", "c") == {"a": 5, "b": 7, "c": 5}
        (asked,) = [each for each in first.received if each.api is ApiKey.OFFSET_FETCH]
        assert [group.group_id for group in asked.entity.groups] == ["a", "c"]
        second.answers[ApiKey.OFFSET_FETCH] = lambda _: HANG_UP
        gone = ErrorCode.not_coordinator
        assert offsets_of(client, "a", "b", "c") == {"a": 5, "b": gone, "c": 5}
        assert offsets_of(client) == {}


def test_the_parts_of_a_request_wait_at_the_same_time() -> None:
    """One coordinator that hangs takes one timeout, two of them take no more."""
    with ExitStack() as stack:
        brokers = [stack.enter_context(fake_broker(VERSIONS)) for _ in range(3)]
        coordinated(*brokers, groups={"a": 0, "b": 1, "c": 2})
        with_offsets(brokers[1], 7)
        brokers[0].answers[ApiKey.OFFSET_FETCH] = lambda _: None
        brokers[2].answers[ApiKey.OFFSET_FETCH] = lambda _: None
        timeout = 1.5
        relay = stack.enter_context(relay_to(brokers[0].address, request_timeout=timeout))
        client = Client(relay)
        client.find("a", "b", "c")
        began = monotonic()
        gone = ErrorCode.not_coordinator
        assert offsets_of(client, "a", "b", "c") == {"a": gone, "b": 7, "c": gone}
        assert timeout <= monotonic() - began < 2 * timeout


def test_a_coordinator_that_is_away_takes_no_time_of_the_other_groups() -> None:
    groups = {"a": 1, "b": 0, "c": 0}
    with ExitStack() as stack:
        first = stack.enter_context(fake_broker(VERSIONS))
        with fake_broker(VERSIONS) as second:
            coordinated(first, second, groups=groups)
        with_offsets(first, 5)
        client = Client(stack.enter_context(relay_to(first.address)))
        gone = ErrorCode.not_coordinator
        assert offsets_of(client, "a", "b", "c") == {"a": gone, "b": 5, "c": 5}


def lists(broker: FakeBroker, group: str, error: ErrorCode = NONE) -> None:
    row = {
        "group_id": group, "protocol_type": "consumer", "group_state": "Empty",
        "group_type": "classic",
    }  # fmt: skip
    broker.answers[ApiKey.LIST_GROUPS] = lambda request: request.response(
        throttle_time=0, error_code=error, groups=[row]
    )


def test_groups_are_listed_by_the_brokers_that_are_there() -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(fake_broker(VERSIONS)) for _ in range(2))
        with fake_broker(VERSIONS) as third:
            coordinated(first, second, third)
        lists(first, "a")
        lists(second, "b")
        client = Client(stack.enter_context(relay_to(first.address)))
        listed = client.ask(ApiKey.LIST_GROUPS, 5)
        assert sorted(row.group_id for row in listed.groups) == ["a", "b"]
        second.answers[ApiKey.LIST_GROUPS] = lambda _: HANG_UP
        listed = client.ask(ApiKey.LIST_GROUPS, 5)
        assert (listed.error_code, [row.group_id for row in listed.groups]) == (NONE, ["a"])
        first.answers[ApiKey.LIST_GROUPS] = lambda _: HANG_UP
        assert client.ask(ApiKey.LIST_GROUPS, 5).error_code is ErrorCode.not_coordinator


def test_groups_are_listed_by_all_brokers() -> None:
    with two_brokers({}) as (first, second, client):
        lists(first, "a")
        lists(second, "b")
        response = client.ask(ApiKey.LIST_GROUPS, 5)
        assert sorted(row.group_id for row in response.groups) == ["a", "b"]
        lists(second, "b", ErrorCode.coordinator_load_in_progress)
        failed = client.ask(ApiKey.LIST_GROUPS, 5)
        assert failed.error_code is ErrorCode.coordinator_load_in_progress


# Topics that differ from the live cluster's


def test_a_topic_that_the_live_cluster_does_not_have(broker: FakeBroker, client: Client) -> None:
    row = {"partition_index": 0, "error_code": ErrorCode.unknown_topic_or_partition}
    broker.answers[ApiKey.OFFSET_COMMIT] = lambda request: request.response(
        throttle_time=0, topics=[{"name": "orders", "partitions": [row]}]
    )
    with capture_logs() as logs:
        for _ in range(3):
            response = client.ask(ApiKey.OFFSET_COMMIT, 9, **asked_of(ApiKey.OFFSET_COMMIT, 9))
            code = response.topics[0].partitions[0].error_code
            assert code is ErrorCode.unknown_topic_or_partition
    warned = [(entry["event"], entry["topic"], entry["group"]) for entry in logs]
    assert warned == [("endpoint.relay_topic_missing", "orders", "g")]


def test_topic_ids_that_differ(broker: FakeBroker, client: Client) -> None:
    ids = [{"topic_id": topic_id, "partitions": (0,)} for topic_id in (KNOWN_ID, OTHER_ID)]
    broker.answers[ApiKey.CONSUMER_GROUP_HEARTBEAT] = lambda request: request.response(
        throttle_time=0, error_code=NONE, error_message=None, member_id="m", member_epoch=1,
        heartbeat_interval=3000, assignment={"topic_partitions": ids},
    )  # fmt: skip
    with capture_logs() as logs:
        for _ in range(3):
            values = asked_of(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1)
            client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **values)
    warned = [(entry["event"], entry["topic_id"]) for entry in logs]
    assert warned == [("endpoint.relay_topic_id_differs", str(OTHER_ID))]


@pytest.mark.parametrize("version", [5, 8])
@pytest.mark.parametrize(
    ("cluster_id", "live_id", "is_other"),
    [("live", OTHER_ID, True), ("live", KNOWN_ID, False), ("elsewhere", OTHER_ID, False)],
)
def test_offsets_of_a_topic_that_was_created_again(
    broker: FakeBroker, version: int, cluster_id: str, live_id: UUID, *, is_other: bool
) -> None:
    """Its archive is still that of the deleted topic. Ids of another cluster mean nothing."""
    row = {"partition_index": 0, "committed_offset": 7, "metadata": "", "error_code": NONE}
    topics = [{"name": "orders", "partitions": [row | {"committed_leader_epoch": 1}]}]
    of_group = {"topics": topics, "error_code": NONE}
    broker.answers[ApiKey.OFFSET_FETCH] = lambda request: request.response(
        throttle_time=0,
        **({"groups": [of_group | {"group_id": "g"}]} if version >= 8 else of_group),
    )
    committed: list[str] = []

    def commit(request: Received) -> bytes:
        committed.extend(topic.name for topic in request.entity.topics)
        rows = [
            {"name": topic.name, "partitions": [{"partition_index": 0, "error_code": NONE}]}
            for topic in request.entity.topics
        ]
        return request.response(throttle_time=0, topics=rows)

    broker.answers[ApiKey.OFFSET_COMMIT] = commit
    broker.answers[ApiKey.METADATA] = lambda request: request.response(
        brokers=[{"node_id": 0, "host": broker.address.host, "port": broker.address.port}],
        topics=[
            {"name": name, "topic_id": live_id, "error_code": NONE, "is_internal": False,
             "partitions": ()}
            for name in (topic.name for topic in request.entity.topics)
        ],
        throttle_time=0, cluster_id="live", controller_id=0, error_code=NONE,
    )  # fmt: skip
    archived = ArchivedTopics(lambda: cluster_id, {"orders": KNOWN_ID}.get, KNOWN_ID.__eq__)
    asked: dict[str, Any] = {
        "group_id": "g", "topics": [{"name": "orders", "partition_indexes": (0,)}]
    }  # fmt: skip
    with relay_to(broker.address, archived=archived) as relay, capture_logs() as logs:
        client = Client(relay)
        values = {"groups": [asked], "require_stable": False} if version >= 8 else asked
        response = client.ask(ApiKey.OFFSET_FETCH, version, **values)
        (topic,) = response.groups[0].topics if version >= 8 else response.topics
        assert topic.partitions[0].committed_offset == (-1 if is_other else 7)
        assert topic.partitions[0].error_code is NONE
        response = client.ask(ApiKey.OFFSET_COMMIT, 9, **asked_of(ApiKey.OFFSET_COMMIT, 9))
        error = ErrorCode.unknown_topic_or_partition if is_other else NONE
        assert [row.partitions[0].error_code for row in response.topics] == [error]
    assert committed == ([] if is_other else ["orders"])
    events = [entry["event"] for entry in logs]
    assert events.count("endpoint.relay_topic_recreated") == is_other


def test_commit_is_repeated_if_the_archived_cluster_is_not_known_for_now(
    broker: FakeBroker,
) -> None:
    """Relayed unchecked, it could be a position in the deleted topic."""

    def cluster_id() -> str:
        raise StoreUnavailableError("layout.json: no answer")

    archived = ArchivedTopics(cluster_id, {"orders": KNOWN_ID}.get, KNOWN_ID.__eq__)
    with relay_to(broker.address, archived=archived) as relay:
        client = Client(relay)
        response = client.ask(ApiKey.OFFSET_COMMIT, 9, **asked_of(ApiKey.OFFSET_COMMIT, 9))
        errors = [row.error_code for topic in response.topics for row in topic.partitions]
    assert errors == [ErrorCode.not_coordinator]


def test_id_of_the_archived_cluster_is_read_until_it_is_known() -> None:
    """The first sidecar may start after the endpoint."""
    store = FakeStorage()
    cluster = ArchivedCluster(access_to(store))
    assert cluster.id() is None
    write_or_check_note(store, LAYOUT, "live")
    assert cluster.id() == "live"
    store.delete_object(LAYOUT.layout_key())
    assert cluster.id() == "live"

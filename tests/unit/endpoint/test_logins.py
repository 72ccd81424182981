"""Logins with raw sockets: each mechanism, what is answered before a login, and malformed ones."""

import random
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import trustme
from cryptography.x509 import load_pem_x509_certificate
from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from sidetier.endpoint import connection
from sidetier.endpoint.connection import ServerSettings
from sidetier.endpoint.reloading import Reloaded
from sidetier.endpoint.service import EndpointSettings, RunningEndpoint, serving
from sidetier.endpoint.tls import TlsFiles
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.fake import FakeStorage
from sidetier.wire.protocol import ApiKey, build_request, encode, encode_header
from tests.harness.endpoint import EAGER, RawClient, fetch_of, write_users
from tests.harness.made_archive import MadeArchive, access_to
from tests.harness.waiting import wait_until

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
DROPPED = "sidetier_endpoint_dropped_connections_total"
LOGINS = "sidetier_endpoint_logins_total"
USERS: dict[str, dict[str, Any]] = {
    "alice": {"password": "secret", "topics": ["*"]},
    "bob": {"password": "other", "topics": ["clicks"]},
    "CN=reader": {"topics": ["orders"]},
}
_SAFE = {"login": 20.0, "failed_login_delay": 0.01}


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users.yaml"
    write_users(path, USERS)
    return path


@pytest.fixture
def tls(authority: trustme.CA, tmp_path: Path) -> TlsFiles:
    path = tmp_path / "tls.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(path))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return TlsFiles(path)


@contextmanager
def running(
    users: Path,
    tls: TlsFiles | None = None,
    registry: CollectorRegistry | None = None,
    **bounds: Any,  # noqa: ANN401 - of ServerSettings
) -> Iterator[RunningEndpoint]:
    store = FakeStorage()
    for topic in ("orders", "clicks"):
        MadeArchive(store, tp=TopicPartition(topic, 0)).segments(0, 20, 40)
    settings = EndpointSettings(
        ("127.0.0.1", 0),
        tls=tls,
        users=users,
        server=ServerSettings(**{**_SAFE, **bounds}),
        catalog=EAGER,
    )
    with serving(access_to(store), settings, registry) as endpoint:
        yield endpoint


def client_tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    return context


def frame(api: ApiKey, version: int, **values: Any) -> bytes:  # noqa: ANN401 - kio's
    body = encode_header(api, version, 1, "raw") + encode(build_request(api, version, **values))
    return struct.pack(">i", len(body)) + body


def topics_of(client: RawClient) -> list[str]:
    metadata: Any = client.request(ApiKey.METADATA, 1, topics=None)
    return [topic.name for topic in metadata.topics]


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_logins_over_tls(
    users: Path, tls: TlsFiles, authority: trustme.CA, mechanism: str, version: int
) -> None:
    registry = CollectorRegistry()
    with (
        running(users, tls, registry) as endpoint,
        RawClient(endpoint.address, tls=client_tls(authority)) as client,
    ):
        versions: Any = client.request(ApiKey.API_VERSIONS, 0)
        offered = {row.api_key: (row.min_version, row.max_version) for row in versions.api_keys}
        assert (offered[17], offered[36]) == ((1, 1), (0, 2))
        answer = client.log_in(mechanism, "alice", "secret", version)
        assert answer.error_code is ErrorCode.none
        if version:
            assert answer.session_lifetime.total_seconds() == 0
        assert topics_of(client) == ["clicks", "orders"]
        labels = {"mechanism": mechanism, "result": "success"}
        assert registry.get_sample_value(LOGINS, labels) == 1


@pytest.mark.parametrize(
    ("user", "password"),
    [("alice", "wrong"), ("alice", ""), ("nobody", "secret"), ("CN=reader", "")],
)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_wrong_passwords_and_unknown_users_get_the_same_answer(
    users: Path, tls: TlsFiles, authority: trustme.CA, mechanism: str, user: str, password: str
) -> None:
    registry = CollectorRegistry()
    with (
        capture_logs() as logs,
        running(users, tls, registry) as endpoint,
        RawClient(endpoint.address, tls=client_tls(authority)) as client,
    ):
        answer = client.log_in(mechanism, user, password)
        assert answer.error_code is ErrorCode.sasl_authentication_failed
        assert answer.error_message == (
            "Authentication failed: Invalid username or password"
            if mechanism == "PLAIN"
            else "Authentication failed during authentication due to invalid credentials with SASL "
            f"mechanism {mechanism}"
        )
        assert client.is_closed()
        wait_until(lambda: registry.get_sample_value(DROPPED, {"reason": "login"}) == 1, 5, "count")
        labels = {"mechanism": mechanism, "result": "failure"}
        assert registry.get_sample_value(LOGINS, labels) == 1
    (row,) = [row for row in logs if row["event"] == "endpoint.login_failed"]
    assert (row["user"], row["mechanism"]) == (user, mechanism)
    assert row["client"].startswith("127.0.0.1:")
    assert "secret" not in str(logs)


def test_plain_is_not_offered_without_tls(users: Path) -> None:
    with running(users) as endpoint:
        with RawClient(endpoint.address) as client:
            refused = client.log_in("PLAIN", "alice", "secret")
            assert refused.error_code is ErrorCode.unsupported_sasl_mechanism
            assert refused.mechanisms == ("SCRAM-SHA-256", "SCRAM-SHA-512")
            assert client.is_closed()
        with RawClient(endpoint.address) as client:
            assert client.log_in("SCRAM-SHA-256", "alice", "secret").error_code is ErrorCode.none


@pytest.mark.parametrize(
    ("api", "version", "values"),
    [
        (ApiKey.METADATA, 1, {"topics": None}),
        (ApiKey.FETCH, 11, fetch_of("orders", 0)),
        (ApiKey.FIND_COORDINATOR, 1, {"key": "group", "key_type": 0}),
    ],
)
def test_nothing_else_is_answered_before_a_login(
    users: Path, api: ApiKey, version: int, values: dict[str, Any]
) -> None:
    registry = CollectorRegistry()
    with running(users, registry=registry) as endpoint, RawClient(endpoint.address) as client:
        client.request(ApiKey.API_VERSIONS, 3, client_software_name="x", client_software_version="")
        client.request(ApiKey.SASL_HANDSHAKE, 1, mechanism="SCRAM-SHA-256")
        client.socket.sendall(frame(api, version, **values))
        assert client.receive() == b""
        wait_until(lambda: registry.get_sample_value(DROPPED, {"reason": "login"}) == 1, 5, "count")


def test_frames_before_a_login_are_small_and_in_time(users: Path) -> None:
    registry = CollectorRegistry()
    with running(users, registry=registry, login=0.3) as endpoint:
        with RawClient(endpoint.address) as large:
            large.socket.sendall(struct.pack(">i", (64 << 10) + 1))
            assert large.is_closed()
        with RawClient(endpoint.address) as silent, RawClient(endpoint.address) as slow:
            slow.request(ApiKey.API_VERSIONS, 0)
            slow.socket.sendall(b"\0\0\0\x20abc")
            assert silent.is_closed()
            assert slow.is_closed()
        wait_until(lambda: registry.get_sample_value(DROPPED, {"reason": "login"}) == 2, 5, "count")
        assert registry.get_sample_value(DROPPED, {"reason": "malformed"}) == 1


@pytest.mark.parametrize("most", [20, 10**9])
def test_requests_before_a_login_do_not_extend_its_time(
    users: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Their number and their time are bounded, also if they arrive together."""
    monkeypatch.setattr(connection, "_MAX_BEFORE_LOGIN", most)
    registry = CollectorRegistry()
    answers = 0
    with (
        running(users, registry=registry, login=0.5 if most > 20 else 20.0) as endpoint,
        RawClient(endpoint.address) as client,
        suppress(ConnectionError),
    ):
        began = monotonic()
        while monotonic() - began < 15:
            client.socket.sendall(frame(ApiKey.API_VERSIONS, 0) * 10)
            for _ in range(10):
                if not client.receive():
                    raise ConnectionResetError
                answers += 1
    assert monotonic() - began < 10
    assert answers == 20 or most > 20
    wait_until(lambda: registry.get_sample_value(DROPPED, {"reason": "login"}) == 1, 5, "the count")


def test_the_deadline_ends_with_the_login(users: Path) -> None:
    with running(users, login=1.0) as endpoint, RawClient(endpoint.address) as client:
        assert client.log_in("SCRAM-SHA-512", "alice", "secret").error_code is ErrorCode.none
        client.socket.settimeout(1.2)
        with pytest.raises(TimeoutError):
            client.socket.recv(1)
        client.socket.settimeout(20)
        assert topics_of(client) == ["clicks", "orders"]


def test_authenticate_without_handshake_is_refused(users: Path) -> None:
    with running(users) as endpoint, RawClient(endpoint.address) as client:
        assert client.authenticate(b"n,,n=alice,r=abc").error_code is ErrorCode.illegal_sasl_state
        assert client.is_closed()


@pytest.mark.parametrize(
    ("mechanism", "token"),
    [
        ("PLAIN", b""),
        ("PLAIN", b"alice\0secret"),
        ("PLAIN", b"\0alice\0secret\0more"),
        ("PLAIN", b"\xff\0\xff\0\xff"),
        ("PLAIN", b"root\0alice\0secret"),
        ("SCRAM-SHA-256", b""),
        ("SCRAM-SHA-256", b"n,,"),
        ("SCRAM-SHA-256", b"n,a=root,n=alice,r=abc"),
        ("SCRAM-SHA-256", b"p=tls-unique,,n=alice,r=abc"),
        ("SCRAM-SHA-256", b"n,,n=al=ice,r=abc"),
        ("SCRAM-SHA-256", b"n,,n=,r=abc"),
        ("SCRAM-SHA-512", b"\xff\xfe"),
        ("SCRAM-SHA-512", b"n,,n=" + b"a" * 5000 + b",r=abc"),
    ],
)
def test_malformed_tokens_are_failed_logins(
    users: Path, tls: TlsFiles, authority: trustme.CA, mechanism: str, token: bytes
) -> None:
    with (
        running(users, tls) as endpoint,
        RawClient(endpoint.address, tls=client_tls(authority)) as client,
    ):
        client.request(ApiKey.SASL_HANDSHAKE, 1, mechanism=mechanism)
        answer = client.authenticate(token)
        assert answer.error_code is ErrorCode.sasl_authentication_failed
        assert client.is_closed()


def test_a_second_login_must_not_change_the_user(users: Path) -> None:
    with running(users) as endpoint, RawClient(endpoint.address) as client:
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            assert client.log_in(mechanism, "alice", "secret").error_code is ErrorCode.none
            assert topics_of(client) == ["clicks", "orders"]
        answer = client.log_in("SCRAM-SHA-256", "bob", "other")
        assert answer.error_code is ErrorCode.sasl_authentication_failed
        assert "Cannot change principals" in answer.error_message
        assert client.is_closed()


def test_a_failed_login_is_answered_after_a_delay_that_a_stop_ends(users: Path) -> None:
    with running(users, failed_login_delay=60.0) as endpoint, ExitStack() as clients:
        client = clients.enter_context(RawClient(endpoint.address, timeout=0.5))
        with pytest.raises(TimeoutError):
            client.log_in("SCRAM-SHA-256", "alice", "wrong")
        endpoint.stop()
        client.socket.settimeout(10)
        assert client.is_closed()


def test_a_client_certificate_is_a_login_for_users_without_a_credential(
    users: Path, tls: TlsFiles, authority: trustme.CA
) -> None:
    files = TlsFiles(tls.certificate, client_ca=tls.certificate.with_name("ca.pem"))
    issued = authority.issue_cert("client.example", common_name="reader")
    parsed = load_pem_x509_certificate(issued.cert_chain_pems[0].bytes())
    name = parsed.subject.rfc4514_string()
    assert name.startswith("CN=reader,")
    context = client_tls(authority)
    issued.configure_cert(context)
    write_users(users, {**USERS, name: {"topics": ["orders"]}})
    with running(users, files) as endpoint:
        with RawClient(endpoint.address, tls=context) as client:
            assert topics_of(client) == ["orders"]
            # It may also log in by SASL, and is then that user.
            assert client.log_in("PLAIN", "bob", "other").error_code is ErrorCode.none
            assert topics_of(client) == ["clicks"]
            refused = client.log_in("PLAIN", "alice", "secret")
            assert refused.error_code is ErrorCode.sasl_authentication_failed
        stranger = authority.issue_cert("client.example", common_name="stranger")
        context = client_tls(authority)
        stranger.configure_cert(context)
        with RawClient(endpoint.address, tls=context) as client:
            client.socket.sendall(frame(ApiKey.METADATA, 1, topics=None))
            assert client.is_closed()


def test_a_certificate_cannot_take_the_name_of_a_user_with_a_credential(
    users: Path, tls: TlsFiles, authority: trustme.CA
) -> None:
    files = TlsFiles(tls.certificate, client_ca=tls.certificate.with_name("ca.pem"))
    issued = authority.issue_cert("client.example", common_name="alice")
    name = load_pem_x509_certificate(issued.cert_chain_pems[0].bytes()).subject.rfc4514_string()
    write_users(users, {name: {"password": "secret", "topics": ["*"]}})
    context = client_tls(authority)
    issued.configure_cert(context)
    with running(users, files) as endpoint, RawClient(endpoint.address, tls=context) as client:
        client.socket.sendall(frame(ApiKey.METADATA, 1, topics=None))
        assert client.is_closed()


def test_a_changed_users_file_applies_to_open_connections(
    users: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reloaded.__init__, "__defaults__", (lambda: None, monotonic, 0.0))
    registry = CollectorRegistry()
    failures = "sidetier_endpoint_reload_failures_total"
    with running(users, registry=registry) as endpoint:
        with (
            RawClient(endpoint.address) as alice,
            RawClient(endpoint.address) as bob,
            capture_logs() as logs,
        ):
            alice.log_in("SCRAM-SHA-256", "alice", "secret")
            bob.log_in("SCRAM-SHA-256", "bob", "other")
            assert topics_of(alice) == ["clicks", "orders"]
            users.write_text("users: {alice: {topic: []}}")
            assert topics_of(alice) == ["clicks", "orders"]
            assert (registry.get_sample_value(failures, {"file": "users"}) or 0) > 0
            write_users(users, {"alice": {"password": "new", "topics": ["orders"]}})
            assert topics_of(alice) == ["orders"]
            bob.socket.sendall(frame(ApiKey.METADATA, 1, topics=None))
            assert bob.is_closed()
        for password, error in (
            ("secret", ErrorCode.sasl_authentication_failed),
            ("new", ErrorCode.none),
        ):
            with RawClient(endpoint.address) as client:
                answer = client.log_in("SCRAM-SHA-256", "alice", password)
                assert answer.error_code is error
    assert [row["event"] for row in logs if row["event"] == "endpoint.reload_failed"]


def test_a_broken_users_file_prevents_the_start(users: Path) -> None:
    users.write_text("users: {}")
    with pytest.raises(ConfigurationError, match="has no users"), running(users):
        pass


def test_a_thousand_silent_connects_do_not_keep_others_out(
    users: Path, tls: TlsFiles, authority: trustme.CA
) -> None:
    """They are bounded by number and by time, with and without TLS."""
    with (
        running(
            users, tls, max_connections=200, max_connections_per_host=150, login=3.0
        ) as endpoint,
        ExitStack() as clients,
        socket.create_connection(endpoint.address, 20, ("127.0.0.2", 0)) as plain,
        client_tls(authority).wrap_socket(plain, server_hostname="localhost") as early,
    ):
        for number in range(1000):
            silent = clients.enter_context(RawClient(endpoint.address))
            silent.socket.sendall(b"\x16\x03\x01"[: number % 4])
        assert endpoint.server.open_connections <= 151
        # Another host gets its answers meanwhile, and this one after the deadline.
        early.sendall(frame(ApiKey.API_VERSIONS, 0))
        assert early.recv(4)
        wait_until(lambda: endpoint.server.open_connections <= 1, 20, "the deadline")
        with RawClient(endpoint.address, tls=client_tls(authority)) as client:
            assert client.log_in("PLAIN", "alice", "secret").error_code is ErrorCode.none


def test_random_frames_before_a_login_harm_nobody(users: Path) -> None:
    """Truncated, changed and random frames; none of them logs in, and none ends the endpoint."""
    source = random.Random(36)
    first = b"n,,n=alice,r=fyko+d2lbbFgONRv9qkxdawL"
    sound = [
        frame(ApiKey.API_VERSIONS, 3, client_software_name="x", client_software_version="1"),
        frame(ApiKey.SASL_HANDSHAKE, 1, mechanism="SCRAM-SHA-256"),
        frame(ApiKey.SASL_HANDSHAKE, 1, mechanism="SCRAM-SHA-512"),
        frame(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=first),
        frame(ApiKey.SASL_AUTHENTICATE, 0, auth_bytes=b"c=biws,r=abc,p=AAAA"),
    ]
    registry = CollectorRegistry()
    with running(users, registry=registry, login=5.0) as endpoint, capture_logs() as logs:
        for turn in range(250):
            with RawClient(endpoint.address, timeout=10) as client:
                # Half of them begin with a sound handshake, so that tokens are read as well.
                sent = sound[source.choice((1, 2))] if turn % 2 else b""
                body = bytearray(source.choice(sound)[4:])
                kind = turn // 2 % 3
                if kind == 0:
                    header = struct.pack(
                        ">hhi", source.choice((17, 18, 36)), source.randrange(4), 1
                    )
                    body = bytearray(header + source.randbytes(source.randrange(60)))
                elif kind == 1:
                    for _ in range(source.randrange(1, 6)):
                        body[source.randrange(len(body))] = source.randrange(256)
                else:
                    del body[source.randrange(1, len(body)) :]
                sent += struct.pack(">i", len(body)) + body
                sent += sound[3] + sound[4]
                with suppress(OSError):  # the endpoint may have closed already
                    client.socket.sendall(sent)
                    client.socket.shutdown(socket.SHUT_WR)
                client.is_closed()
        wait_until(lambda: endpoint.server.open_connections == 0, 10, "all threads to end")
        with RawClient(endpoint.address) as client:
            assert client.log_in("SCRAM-SHA-256", "alice", "secret").error_code is ErrorCode.none
    assert not [row for row in logs if row["event"] == "endpoint.request_failed"]
    value = registry.get_sample_value
    assert value(LOGINS, {"mechanism": "SCRAM-SHA-256", "result": "success"}) == 1
    assert not value(LOGINS, {"mechanism": "SCRAM-SHA-512", "result": "success"})

"""A connection to a broker that answers wrongly, late, in pieces or not at all."""

import ssl
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import trustme
from kio.schema.errors import ErrorCode
from scramp import ScramMechanism  # type: ignore[import-untyped]  # ships no types

from sidetier.segments.errors import (
    BrokerLoginError,
    BrokerUnavailableError,
    MalformedResponseError,
    UnsupportedVersionError,
)
from sidetier.wire.connection import Connection
from sidetier.wire.protocol import ApiKey, build_request
from sidetier.wire.settings import ClientSettings, SaslSettings, TlsSettings
from tests.harness.fake_broker import HANG_UP, HOST, FakeBroker, Received, fake_broker

SETTINGS = ClientSettings((), connect_timeout=20, request_timeout=20)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with fake_broker() as broker:
        broker.answers[ApiKey.FIND_COORDINATOR] = coordinator
        yield broker


def coordinator(request: Received) -> bytes:
    """Answer with the number in the key as the coordinator."""
    return request.response(
        throttle_time=0,
        error_code=ErrorCode.none,
        error_message=None,
        node_id=int(request.entity.key),
        host="host",
        port=1,
    )


def connect(broker: FakeBroker, **changes: Any) -> Connection:  # noqa: ANN401 - of settings
    return Connection(broker.address, replace(SETTINGS, **changes))


def find(connection: Connection, key: int) -> Any:  # noqa: ANN401 - kio's
    return connection.build(ApiKey.FIND_COORDINATOR, key=str(key), key_type=0)


def test_request_gets_its_response(broker: FakeBroker) -> None:
    with connect(broker, client_id="me") as connection:
        response: Any = connection.request(find(connection, 5))
    assert response.node_id == 5
    names, asked = broker.received
    assert names.entity.client_software_name == "sidetier"
    assert (asked.version, asked.client_id) == (3, "me")


def test_responses_arrive_in_the_order_of_requests_in_flight(broker: FakeBroker) -> None:
    with connect(broker, max_in_flight=3) as connection:
        for key in (1, 2, 3):
            connection.send(find(connection, key))
        with pytest.raises(RuntimeError, match="3 requests are in flight"):
            connection.send(find(connection, 4))
        with pytest.raises(RuntimeError, match="take their responses first"):
            connection.request(find(connection, 4))
        received: list[Any] = [connection.receive() for _ in range(3)]
        assert [response.node_id for response in received] == [1, 2, 3]
        with pytest.raises(RuntimeError, match="no request is in flight"):
            connection.receive()


def test_response_can_arrive_in_pieces(broker: FakeBroker) -> None:
    broker.piece_bytes = 3
    with connect(broker) as connection:
        connection.send(find(connection, 1))
        version, body = connection.receive_body()
    assert version == 3
    assert b"host" in bytes(body)
    assert not body.readonly


def _other_id(frame: bytes) -> bytes:
    return frame[:4] + struct.pack(">i", 99) + frame[8:]


@pytest.mark.parametrize(
    ("rewrite", "error", "text"),
    [
        (lambda frame: frame[:2], BrokerUnavailableError, "FindCoordinator: the broker closed"),
        (lambda frame: frame[:-1], BrokerUnavailableError, "FindCoordinator: the broker closed"),
        (_other_id, MalformedResponseError, "answers request 99, but the response to request 1"),
        (
            lambda frame: struct.pack(">i", 100_001) + frame[4:],
            MalformedResponseError,
            "a response of 100001 bytes; at most 100000 are taken",
        ),
        (lambda frame: struct.pack(">i", -1) + frame[4:], MalformedResponseError, "of -1 bytes"),
        (lambda frame: struct.pack(">i", 3) + frame[4:], MalformedResponseError, "of 3 bytes"),
        (
            lambda frame: struct.pack(">i", len(frame) - 3) + frame[4:] + b"\0",
            MalformedResponseError,
            "FindCoordinator v3 ends 1 bytes early",
        ),
        (
            lambda frame: struct.pack(">i", len(frame) - 8) + frame[4:],
            MalformedResponseError,
            "FindCoordinator v3 cannot be decoded",
        ),
        (
            lambda frame: frame[:13] + struct.pack(">h", 9999) + frame[15:],
            MalformedResponseError,
            "cannot be decoded: 9999 is not a valid ErrorCode",
        ),
        (
            lambda frame: struct.pack(">i", 4 + 6) + frame[4:8] + b"\xff" * 6,
            MalformedResponseError,
            "no varint ends",
        ),
    ],
)
def test_connection_is_closed_after_a_response_that_breaks_the_protocol(
    broker: FakeBroker, rewrite: Callable[[bytes], bytes], error: type[Exception], text: str
) -> None:
    with connect(broker, max_response_bytes=100_000) as connection:
        broker.rewrite = lambda _, frame: rewrite(frame)
        with pytest.raises(error, match=text):
            connection.request(find(connection, 1))
        assert connection.is_closed
        with pytest.raises(BrokerUnavailableError, match="is closed: "):
            connection.send(find(connection, 1))


def test_silent_broker_is_waited_for_until_each_requests_deadline(
    broker: FakeBroker,
) -> None:
    broker.answers[ApiKey.FIND_COORDINATOR] = lambda _: None
    with connect(broker) as connection:
        with pytest.raises(BrokerUnavailableError, match="FindCoordinator: timed out") as raised:
            connection.request(find(connection, 1), timeout=0.05)
        assert raised.value.retry
        assert connection.is_closed


def test_broker_that_reads_nothing_does_not_block_a_large_request(broker: FakeBroker) -> None:
    reads_on = Event()

    def late(request: Received) -> bytes:
        reads_on.wait()
        return coordinator(request)

    broker.answers[ApiKey.FIND_COORDINATOR] = late
    with connect(broker) as connection:
        connection.send(find(connection, 1))
        large = [memoryview(bytes(64 << 20))]
        with pytest.raises(BrokerUnavailableError, match="Produce: timed out"):
            connection.send_buffers(ApiKey.PRODUCE, 3, large, timeout=0.1)
        assert connection.is_closed
    reads_on.set()


def echo(request: Received) -> bytes:
    return request.response(
        error_code=ErrorCode.none, error_message=None, auth_bytes=request.entity.auth_bytes
    )


def send_echo(connection: Connection, *parts: bytes) -> None:
    size = struct.pack(">i", sum(map(len, parts)))
    connection.send_buffers(ApiKey.SASL_AUTHENTICATE, 0, [size, *parts])


def test_request_and_response_larger_than_the_socket_buffers_are_complete(
    broker: FakeBroker,
) -> None:
    broker.answers[ApiKey.SASL_AUTHENTICATE] = echo
    parts = [bytes([number % 251]) * 30_011 for number in range(1100)]  # more than one call accepts
    with connect(broker, send_buffer_bytes=50_000) as connection:
        send_echo(connection, *parts)
        response: Any = connection.receive()
    assert response.auth_bytes == b"".join(parts)


def test_buffer_of_a_large_response_is_reused_once_unreferenced(
    broker: FakeBroker,
) -> None:
    broker.answers[ApiKey.SASL_AUTHENTICATE] = echo
    with connect(broker) as connection:

        def body(content: bytes) -> memoryview:
            send_echo(connection, content)
            return connection.receive_body()[1]

        first = body(b"1" * 1_900_000)
        memory = first.obj
        second = body(b"2" * 1_800_000)[1000:]
        assert second.obj is not memory
        assert b"2" not in bytes(first)
        del first
        third = body(b"3" * 1_700_000)
        assert third.obj is memory
        assert bytes(third).count(b"3") == 1_700_000
        assert bytes(second) == b"2" * len(second)
        del third
        body(b"small")
        assert body(b"4" * 1_700_000).obj is not memory


def test_refused_connection_is_a_retryable_error() -> None:
    with fake_broker() as broker:
        pass
    with pytest.raises(BrokerUnavailableError, match=f"{HOST}.* cannot be reached") as raised:
        connect(broker)
    assert raised.value.retry


def test_error_for_an_immediate_disconnect_suggests_the_security_protocol(
    broker: FakeBroker,
) -> None:
    broker.answers[ApiKey.API_VERSIONS] = lambda _: HANG_UP
    with pytest.raises(BrokerUnavailableError, match=r"does security\.protocol fit this listener"):
        connect(broker)


def test_listener_with_tls_is_recognised(broker: FakeBroker) -> None:
    broker.rewrite = lambda _, frame: b"\x15\x03\x03\x00\x02\x02\x46" + frame
    with pytest.raises(MalformedResponseError, match=r"set security\.protocol to SSL or SASL_SSL"):
        connect(broker)


def test_api_versions_is_repeated_for_an_older_broker(broker: FakeBroker) -> None:
    """KIP-511: the refusal has version 0 for any requested version."""
    broker.versions[ApiKey.API_VERSIONS] = (0, 2)

    def answer(request: Received) -> bytes:
        if request.version > 2:
            return broker.offer(0, ErrorCode.unsupported_version)
        return broker.offer(request.version)

    broker.answers[ApiKey.API_VERSIONS] = answer
    with connect(broker) as connection:
        assert connection.version(ApiKey.METADATA) == 13
    assert [each.version for each in broker.received] == [4, 2]


def test_highest_common_version_is_used() -> None:
    versions = {ApiKey.API_VERSIONS: (0, 4), ApiKey.METADATA: (0, 7), ApiKey.FETCH: (0, 3)}
    with fake_broker(versions) as broker, connect(broker) as connection:
        assert connection.version(ApiKey.METADATA) == 7
        with pytest.raises(UnsupportedVersionError, match=r"0 to 3 of Fetch, but .* needs 4 to 17"):
            connection.version(ApiKey.FETCH)
        with pytest.raises(UnsupportedVersionError, match=r"0 to 7 of Metadata, but .* 9 to 13"):
            connection.version(ApiKey.METADATA, at_least=9)
        text = f"broker {broker.address} does not support EndTxn requests"
        with pytest.raises(UnsupportedVersionError, match=text):
            connection.version(ApiKey.END_TXN)
        newer = build_request(ApiKey.LIST_GROUPS, 4, states_filter=())
        with pytest.raises(
            UnsupportedVersionError, match=r"not support ListGroups v4, no such request"
        ):
            connection.send(newer)


def test_value_that_an_old_version_cannot_encode_is_refused() -> None:
    versions = {ApiKey.API_VERSIONS: (0, 4), ApiKey.OFFSET_FETCH: (0, 6)}
    with fake_broker(versions) as broker, connect(broker) as connection:
        connection.build(ApiKey.OFFSET_FETCH, group_id="g", topics=None, require_stable=False)
        with pytest.raises(UnsupportedVersionError, match="OffsetFetchRequest v6 has no require_"):
            connection.build(ApiKey.OFFSET_FETCH, group_id="g", topics=None, require_stable=True)


# Logins


class Login:
    """A broker's side of SASL: PLAIN, SCRAM by scramp's server, OAUTHBEARER."""

    def __init__(self, broker: FakeBroker, password: str = "secret") -> None:
        self.password = password
        self.lifetime = 0
        self.logins = 0
        self._mechanism = ""
        self._server: Any = None
        broker.answers[ApiKey.SASL_HANDSHAKE] = self.handshake
        broker.answers[ApiKey.SASL_AUTHENTICATE] = self.authenticate

    def handshake(self, request: Received) -> bytes:
        self._mechanism, self._server = request.entity.mechanism, None
        known = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
        code = ErrorCode.none if self._mechanism in known else ErrorCode.unsupported_sasl_mechanism
        return request.response(error_code=code, mechanisms=known)

    def authenticate(self, request: Received) -> bytes:
        message, refused, answer = request.entity.auth_bytes, None, b""
        if self._mechanism == "PLAIN":
            refused = None if message == f"\0alice\0{self.password}".encode() else "Invalid"
        elif self._mechanism == "OAUTHBEARER":
            answer, refused = self._bearer(message)
        elif self._server is None:
            mechanism = ScramMechanism(self._mechanism)
            info = mechanism.make_auth_info(self.password, iteration_count=4096)
            self._server = mechanism.make_server(lambda _: info)
            self._server.set_client_first(message.decode())
            answer = self._server.get_server_first().encode()
        else:
            answer, refused = self._scram_final(message.decode())
        self.logins += 1
        code = ErrorCode.sasl_authentication_failed if refused else ErrorCode.none
        return request.response(
            error_code=code,
            error_message=refused,
            auth_bytes=answer,
            session_lifetime=self.lifetime,
        )

    def _bearer(self, message: bytes) -> tuple[bytes, str | None]:
        if message == b"\x01":
            return b"", "Invalid token"
        good = message == f"n,,\x01auth=Bearer {self.password}\x01\x01".encode()
        return (b"" if good else b'{"status":"invalid_token"}'), None

    def _scram_final(self, message: str) -> tuple[bytes, str | None]:
        try:
            self._server.set_client_final(message)
        except Exception:  # noqa: BLE001 - scramp's refusal
            return b"", "Authentication failed"
        return self._server.get_server_final().encode(), None


def sasl(mechanism: str, password: str = "secret") -> SaslSettings:
    return SaslSettings(mechanism, "alice", password, token=lambda: password)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_login_with_the_right_password_succeeds(broker: FakeBroker, mechanism: str) -> None:
    Login(broker)
    with connect(broker, sasl=sasl(mechanism)) as connection:
        response: Any = connection.request(find(connection, 1))
    assert response.node_id == 1


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_login_with_a_wrong_password_is_refused(broker: FakeBroker, mechanism: str) -> None:
    Login(broker)
    with pytest.raises(BrokerLoginError, match=r"broker .*: (Invalid|Authentication)") as raised:
        connect(broker, sasl=sasl(mechanism, "wrong"))
    assert not raised.value.retry
    assert "wrong" not in str(raised.value)


def test_broker_that_does_not_know_the_password_is_refused(broker: FakeBroker) -> None:
    """SCRAM is mutual: an impostor cannot sign its last message."""
    login = Login(broker)

    def impostor(request: Received) -> bytes:
        if login.logins == 1:
            signature = b"v=" + b"A" * 43 + b"="
            return request.response(
                error_code=ErrorCode.none,
                error_message=None,
                auth_bytes=signature,
                session_lifetime=0,
            )
        return login.authenticate(request)

    broker.answers[ApiKey.SASL_AUTHENTICATE] = impostor
    with pytest.raises(BrokerLoginError, match="SCRAM-SHA-256"):
        connect(broker, sasl=sasl("SCRAM-SHA-256"))


def test_error_for_an_unsupported_mechanism_names_it(broker: FakeBroker) -> None:
    Login(broker)
    broker.answers[ApiKey.SASL_HANDSHAKE] = lambda request: request.response(
        error_code=ErrorCode.unsupported_sasl_mechanism, mechanisms=("GSSAPI",)
    )
    with pytest.raises(BrokerLoginError, match="not support SASL mechanism PLAIN, only GSSAPI"):
        connect(broker, sasl=sasl("PLAIN"))


def test_failure_to_get_a_token_ends_the_login(broker: FakeBroker) -> None:
    Login(broker)

    def token() -> str:
        raise OSError("the identity provider is away")

    with pytest.raises(BrokerLoginError, match="no token: the identity provider is away"):
        connect(broker, sasl=SaslSettings("OAUTHBEARER", token=token))


def test_connection_logs_in_again_before_its_session_ends(broker: FakeBroker) -> None:
    """KIP-368; responses in flight are received before that, and none is lost."""
    login = Login(broker)
    login.lifetime = 1000
    now = [0.0]
    settings = replace(SETTINGS, sasl=sasl("PLAIN"))
    with Connection(broker.address, settings, clock=lambda: now[0]) as connection:
        connection.send(find(connection, 1))
        connection.send(find(connection, 2))
        now[0] = 0.9
        connection.send(find(connection, 3))
        assert connection.in_flight == 3
        received: list[Any] = [connection.receive() for _ in range(3)]
    assert [response.node_id for response in received] == [1, 2, 3]
    assert login.logins == 2
    find_keys = [ApiKey.FIND_COORDINATOR]
    login_keys = [ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE]
    assert broker.apis() == login_keys + find_keys * 2 + login_keys + find_keys


# TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_context(authority: trustme.CA, name: str = HOST) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


@pytest.fixture
def trusted(authority: trustme.CA, tmp_path: Path) -> TlsSettings:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return TlsSettings(ca=path)


def test_tls_carries_small_and_large_buffers(authority: trustme.CA, trusted: TlsSettings) -> None:
    with fake_broker(context=server_context(authority)) as broker:
        broker.answers[ApiKey.SASL_AUTHENTICATE] = echo
        large = bytes(range(256)) * 100_000
        with connect(broker, tls=trusted) as connection:
            send_echo(connection, large[:200_000], large[200_000:200_100], large[200_100:])
            response: Any = connection.receive()
        assert response.auth_bytes == large


def test_client_certificate_is_sent(
    authority: trustme.CA, trusted: TlsSettings, tmp_path: Path
) -> None:
    context = server_context(authority)
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    client = authority.issue_cert("client")
    certificate, key = tmp_path / "client.pem", tmp_path / "client.key"
    client.cert_chain_pems[0].write_to_path(str(certificate))
    client.private_key_pem.write_to_path(str(key))
    with fake_broker(context=context) as broker:
        broker.answers[ApiKey.FIND_COORDINATOR] = coordinator
        tls = replace(trusted, certificate=certificate, key=key)
        with connect(broker, tls=tls) as connection:
            response: Any = connection.request(find(connection, 1))
    assert response.node_id == 1


@pytest.mark.parametrize(
    ("issuer", "name", "text"),
    [("other", HOST, "self-signed|unable to get"), ("same", "localhost", "IP address mismatch")],
)
def test_certificate_of_another_authority_or_host_is_refused(
    authority: trustme.CA, trusted: TlsSettings, issuer: str, name: str, text: str
) -> None:
    issued_by = authority if issuer == "same" else trustme.CA()
    with fake_broker(context=server_context(issued_by, name)) as broker:
        with pytest.raises(BrokerLoginError, match=f"the TLS handshake failed: .*({text})"):
            connect(broker, tls=trusted)
        with connect(broker, tls=replace(trusted, verify=False)):
            pass


def test_host_name_check_can_be_disabled(authority: trustme.CA, trusted: TlsSettings) -> None:
    with (
        fake_broker(context=server_context(authority, "localhost")) as broker,
        connect(broker, tls=replace(trusted, check_hostname=False)),
    ):
        pass

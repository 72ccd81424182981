"""TLS of the listener: handshakes, client certificates, renewed files, and a stop."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from sidetier.endpoint.connection import ServerSettings, shut_down
from sidetier.endpoint.reloading import Reloaded
from sidetier.endpoint.service import EndpointSettings, RunningEndpoint, serving
from sidetier.endpoint.tls import TlsFiles, distinguished_name
from sidetier.segments.errors import ConfigurationError
from sidetier.storage.fake import FakeStorage
from sidetier.wire.protocol import ApiKey
from tests.harness.endpoint import EAGER, RawClient, fetch_of
from tests.harness.made_archive import MadeArchive, access_to, batches, encoded
from tests.harness.waiting import wait_until

DROPPED = "sidetier_endpoint_dropped_connections_total"


@dataclass(frozen=True, slots=True)
class Authority:
    """An authority, and files with a certificate and key of `localhost`."""

    ca: trustme.CA
    files: TlsFiles

    def client(self, name: str | None = None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.ca.configure_trust(context)
        if name is not None:
            self.ca.issue_cert("client.example", common_name=name).configure_cert(context)
        return context

    def renew(self, *, with_key: bool = True) -> bytes:
        """Write another certificate; return it in DER form."""
        assert self.files.key is not None
        issued = self.ca.issue_cert("localhost")
        if with_key:
            self.files.key.write_bytes(issued.private_key_pem.bytes())
        pem = issued.cert_chain_pems[0].bytes()
        self.files.certificate.write_bytes(pem)
        return ssl.PEM_cert_to_DER_cert(pem.decode())


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(trustme.CA(), TlsFiles(tmp_path / "tls.crt", tmp_path / "tls.key"))
    made.renew()
    made.ca.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    return made


@contextmanager
def running(
    tls: TlsFiles | None,
    registry: CollectorRegistry | None = None,
    **bounds: Any,  # noqa: ANN401 - of ServerSettings
) -> Iterator[RunningEndpoint]:
    store = FakeStorage()
    MadeArchive(store).segments(0, 20, 40)
    settings = EndpointSettings(
        ("127.0.0.1", 0), tls=tls, server=ServerSettings(**bounds), catalog=EAGER
    )
    with serving(access_to(store), settings, registry) as endpoint:
        yield endpoint


def test_requests_are_answered_over_tls(authority: Authority) -> None:
    with (
        running(authority.files) as endpoint,
        RawClient(endpoint.address, tls=authority.client()) as client,
    ):
        fetched: Any = client.request(ApiKey.FETCH, 12, **fetch_of("orders", 20))
        assert bytes(fetched.responses[0].partitions[0].records) == encoded(batches(20, 40))


@pytest.mark.parametrize(
    ("sent", "detail"),
    [
        (b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff", "security.protocol=SSL"),
        (b"\x16\x03\x01\0\x05hello", "the handshake failed"),
        (b"\x16", "in time"),
        (b"", "sent nothing in time"),
    ],
    ids=["plain", "malformed", "partial", "silent"],
)
def test_clients_without_a_handshake_are_dropped_and_logged(
    authority: Authority, sent: bytes, detail: str
) -> None:
    registry = CollectorRegistry()
    with capture_logs() as logs, running(authority.files, registry, login=0.3) as endpoint:
        with RawClient(endpoint.address) as client:
            client.socket.sendall(sent)
            assert client.is_closed()
        wait_until(lambda: registry.get_sample_value(DROPPED, {"reason": "tls"}) == 1, 5, "count")
        with RawClient(endpoint.address, tls=authority.client()) as other:
            other.request(ApiKey.API_VERSIONS, 0)
    (row,) = [row for row in logs if row["event"] == "endpoint.connection_dropped"]
    assert row["reason"] == "tls"
    assert detail in row["detail"]


def test_a_health_check_that_connects_and_closes_is_not_logged(authority: Authority) -> None:
    with capture_logs() as logs, running(authority.files) as endpoint:
        RawClient(endpoint.address).socket.close()
        wait_until(lambda: endpoint.server.open_connections == 0, 5, "the end")
    assert not [row for row in logs if row["event"] == "endpoint.connection_dropped"]


def test_a_tls_client_at_a_plain_listener_is_logged(authority: Authority) -> None:
    registry = CollectorRegistry()
    with capture_logs() as logs, running(None, registry) as endpoint:
        with (
            pytest.raises((ssl.SSLError, ConnectionError)),
            RawClient(endpoint.address, tls=authority.client()),
        ):
            pass
        wait_until(lambda: registry.get_sample_value(DROPPED, {"reason": "tls"}) == 1, 5, "count")
    assert "no TLS certificate" in str([row.get("detail") for row in logs])


def test_slow_handshakes_do_not_delay_others(authority: Authority) -> None:
    with ExitStack() as clients, running(authority.files, login=30.0) as endpoint:
        for number in range(30):
            slow = clients.enter_context(RawClient(endpoint.address))
            slow.socket.sendall(b"\x16\x03\x01"[: number % 4])
        with RawClient(endpoint.address, tls=authority.client()) as client:
            client.request(ApiKey.API_VERSIONS, 0)


def test_client_certificates_are_required_and_name_the_principal(authority: Authority) -> None:
    files = TlsFiles(
        authority.files.certificate,
        authority.files.key,
        authority.files.certificate.with_name("ca.crt"),
    )
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.ca.configure_trust(stranger)
    trustme.CA().issue_cert("stranger").configure_cert(stranger)
    registry = CollectorRegistry()
    with running(files, registry) as endpoint:
        for refused in (authority.client(), stranger):
            with RawClient(endpoint.address, tls=refused) as client:
                assert client.is_closed()
        wait_until(lambda: registry.get_sample_value(DROPPED, {"reason": "tls"}) == 2, 5, "count")
        known = authority.client("reader")
        with RawClient(endpoint.address, tls=known) as client:
            client.request(ApiKey.METADATA, 1, topics=None)


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        (
            [[("countryName", "DE")], [("organizationName", "A, B")], [("commonName", "reader")]],
            "CN=reader,O=A\\, B,C=DE",
        ),
        ([[("commonName", "#1")]], "CN=\\#1"),
        ([[("commonName", "B=c#d ")]], "CN=B\\=c#d\\ "),
        ([[("commonName", "a"), ("userId", "7")]], "CN=a+UID=7"),
        ([], ""),
    ],
)
def test_names_are_those_of_java(subject: list[list[tuple[str, str]]], name: str) -> None:
    assert distinguished_name(subject) == name


def test_a_renewed_certificate_is_used_for_new_connections(authority: Authority) -> None:
    now = [0.0]
    failures: list[None] = []
    reloaded = Reloaded(
        lambda: authority.files.paths,
        authority.files.context,
        lambda: failures.append(None),
        lambda: now[0],
        5.0,
    )
    first = reloaded.current()
    authority.renew(with_key=False)  # cert-manager has written one of two files
    assert reloaded.current() is first  # not looked at yet
    now[0] = 6.0
    with capture_logs() as logs:
        assert reloaded.current() is first
        now[0] = 12.0
        assert reloaded.current() is first
        assert len(failures) == 2
        authority.renew()
        now[0] = 18.0
        assert reloaded.current() is not first
    assert [row["event"] for row in logs] == ["endpoint.reload_failed", "endpoint.reloaded"]
    second = reloaded.current()
    now[0] = 24.0
    assert reloaded.current() is second


def test_an_endpoint_presents_the_renewed_certificate(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reloaded.__init__, "__defaults__", (lambda: None, lambda: 0.0, 0.0))
    with running(authority.files) as endpoint:
        renewed = authority.renew()
        with RawClient(endpoint.address, tls=authority.client()) as client:
            assert isinstance(client.socket, ssl.SSLSocket)
            assert client.socket.getpeercert(binary_form=True) == renewed


@pytest.mark.parametrize("broken", ["missing", "text", "other_key", "encrypted", "client_ca"])
def test_wrong_files_are_named(authority: Authority, tmp_path: Path, broken: str) -> None:
    files = authority.files
    assert files.key is not None
    if broken == "missing":
        files.key.unlink()
    elif broken == "text":
        files.certificate.write_text("no certificate")
    elif broken == "other_key":
        files.key.write_bytes(authority.ca.issue_cert("other").private_key_pem.bytes())
    elif broken == "encrypted":
        files.key.write_text(ENCRYPTED_KEY)
    else:
        files = TlsFiles(files.certificate, files.key, tmp_path / "none.crt")
    with pytest.raises(ConfigurationError, match=str(tmp_path)):
        files.context()


ENCRYPTED_KEY = """-----BEGIN EC PRIVATE KEY-----
Proc-Type: 4,ENCRYPTED
DEK-Info: AES-128-CBC,0123456789ABCDEF0123456789ABCDEF

AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA
-----END EC PRIVATE KEY-----
"""


def test_a_certificate_file_may_have_the_key(authority: Authority, tmp_path: Path) -> None:
    issued = authority.ca.issue_cert("localhost")
    both = tmp_path / "both.pem"
    issued.private_key_and_cert_chain_pem.write_to_path(str(both))
    assert TlsFiles(both).context().minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_shut_down_socket_never_sends_plain_text(authority: Authority) -> None:
    """`SSLSocket.shutdown` drops the encryption, and later sends would go out unencrypted."""
    ours, theirs = socket.socketpair()
    received: list[bytes] = []

    def read() -> None:
        with authority.client().wrap_socket(theirs, server_hostname="localhost") as client:
            while part := client.recv(100):
                received.append(part)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    with authority.files.context().wrap_socket(ours, server_side=True) as secure:
        shut_down(secure, socket.SHUT_RD)
        secure.sendall(b"secret")  # what a thread does that was sending at the stop
    reader.join(10)
    assert received == [b"secret"]


def test_a_stop_ends_encrypted_connections(authority: Authority) -> None:
    with running(authority.files) as endpoint, ExitStack() as clients:
        client = clients.enter_context(RawClient(endpoint.address, tls=authority.client()))
        client.request(ApiKey.API_VERSIONS, 0)
        clients.enter_context(RawClient(endpoint.address))  # in the middle of its handshake
        wait_until(lambda: endpoint.server.open_connections == 2, 5, "two connections")
        endpoint.stop()
        assert client.is_closed()
        wait_until(lambda: endpoint.server.open_connections == 0, 5, "the end of the threads")

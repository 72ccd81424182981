"""`sidetier serve` with TLS and logins, read by librdkafka and by Kafka's Java consumer."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import trustme
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from cryptography.x509 import load_pem_x509_certificate

from sidetier.segments import offsets
from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.local import LocalStorage
from tests.harness.endpoint import write_users
from tests.harness.java_clients import read_partition_with_java
from tests.harness.made_archive import MadeArchive
from tests.harness.served_archive import serving
from tests.harness.waiting import wait_for, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

LAYOUT = ArchiveLayout("test", 5)
PASSWORD = "alice-secret"
RECORDS = [(offset, f"value-{offset}".encode()) for offset in range(40)]


@dataclass(frozen=True, slots=True)
class Secured:
    """A running `sidetier serve` over the topics `orders` and `clicks`."""

    bootstrap: str
    root: Path

    def properties(self, protocol: str, **changes: str) -> dict[str, Any]:
        """Return settings of clients, with `_` instead of each point in `changes`."""
        properties: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": protocol,
        }
        if protocol.endswith("SSL"):
            properties["ssl.ca.location"] = f"{self.root}/ca.pem"
        if protocol.startswith("SASL"):
            properties |= {"sasl.username": "alice", "sasl.password": PASSWORD}
        return properties | {name.replace("_", "."): value for name, value in changes.items()}

    def log(self) -> str:
        return (self.root / "log").read_text()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive, certificates and users."""
    root = tmp_path_factory.mktemp("secure")
    store = LocalStorage(root / "store")
    for topic in ("orders", "clicks"):
        MadeArchive(store, LAYOUT, offsets.TopicPartition(topic, 0)).segments(0, 20, 40)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(root / "ca.pem"))
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(str(root / "tls.key"))
    issued.cert_chain_pems[0].write_to_path(str(root / "tls.crt"))
    client = authority.issue_cert("client.example", common_name="reader")
    client.private_key_pem.write_to_path(str(root / "client.key"))
    client.cert_chain_pems[0].write_to_path(str(root / "client.pem"))
    subject = load_pem_x509_certificate((root / "client.pem").read_bytes()).subject
    write_users(
        root / "users.yaml",
        {
            "alice": {"password": PASSWORD, "topics": ["orders"]},
            subject.rfc4514_string(): {"topics": ["clicks"]},
        },
    )
    return root


@contextmanager
def secured_by(root: Path, *options: str) -> Iterator[Secured]:
    """Run `sidetier serve` with these options; the log must not contain the password."""
    with serving(root, *options) as served:
        yield Secured(served.bootstrap, root)
    assert PASSWORD not in served.log()


@pytest.fixture(scope="module")
def sasl_ssl(root: Path) -> Iterator[Secured]:
    with secured_by(root, *_tls(root), "--users", str(root / "users.yaml")) as secured:
        yield secured


def _tls(root: Path) -> list[str]:
    return ["--tls-certificate", str(root / "tls.crt"), "--tls-key", str(root / "tls.key")]


def read(properties: dict[str, Any], topic: str) -> list[tuple[Any, Any]]:
    """Return offset and value of all records, by librdkafka."""
    settings: dict[str, Any] = {
        **properties, "group.id": "none", "enable.partition.eof": True, "check.crcs": True,
        "auto.offset.reset": "error", "enable.auto.commit": False,
    }  # fmt: skip
    records: list[tuple[Any, Any]] = []
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        is_at_end = False
        while not is_at_end:
            message = wait_for(lambda: consumer.poll(0.2), 60, "a message")
            error = message.error()
            if error is None:
                records.append((message.offset(), message.value()))
            else:
                is_at_end = error.code() == KafkaError._PARTITION_EOF
                assert is_at_end or error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED, error
    finally:
        consumer.close()
    return records


def first_error(properties: dict[str, Any], code: int) -> str:
    """Return the text of the error with which librdkafka reports that it cannot connect."""
    texts: list[str] = []
    seen = Event()

    def failed(error: KafkaError) -> None:
        if error.code() == code:
            texts.append(error.str())
            seen.set()

    settings: dict[str, Any] = {**properties, "error_cb": failed}
    client = AdminClient(settings)

    def is_reported() -> bool:
        client.poll(0.2)
        return seen.is_set()

    wait_until(is_reported, 60, "an error")
    return texts[0]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_librdkafka_over_tls(sasl_ssl: Secured, mechanism: str) -> None:
    properties = sasl_ssl.properties("SASL_SSL", sasl_mechanism=mechanism)
    assert read(properties, "orders") == RECORDS
    assert list(AdminClient(properties).list_topics(timeout=30).topics) == ["orders"]


def test_a_topic_that_is_not_allowed(sasl_ssl: Secured) -> None:
    properties = sasl_ssl.properties("SASL_SSL", sasl_mechanism="PLAIN")
    listed = AdminClient(properties).list_topics("clicks", timeout=30).topics["clicks"]
    assert listed.error is not None
    assert listed.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password_is_a_clear_error(sasl_ssl: Secured, mechanism: str) -> None:
    properties = sasl_ssl.properties("SASL_SSL", sasl_mechanism=mechanism, sasl_password="wrong")
    text = first_error(properties, KafkaError._AUTHENTICATION)
    assert "Invalid username or password" in text or "invalid credentials" in text
    wait_until(lambda: "endpoint.login_failed" in sasl_ssl.log(), 20, "the event")


def test_a_client_without_tls_or_without_a_login(sasl_ssl: Secured) -> None:
    assert first_error(sasl_ssl.properties("PLAINTEXT"), KafkaError._ALL_BROKERS_DOWN)
    wait_until(lambda: "security.protocol=SSL" in sasl_ssl.log(), 20, "the event")
    assert first_error(sasl_ssl.properties("SSL"), KafkaError._ALL_BROKERS_DOWN)
    wait_until(lambda: "before a login" in sasl_ssl.log(), 20, "the event")


def test_scram_without_tls_where_that_is_allowed(root: Path) -> None:
    with secured_by(root, "--users", str(root / "users.yaml"), "--insecure") as secured:
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            properties = secured.properties("SASL_PLAINTEXT", sasl_mechanism=mechanism)
            assert read(properties, "orders") == RECORDS
        refused = secured.properties("SASL_PLAINTEXT", sasl_mechanism="PLAIN")
        assert "SCRAM-SHA-256" in first_error(refused, KafkaError._AUTHENTICATION)


def test_mutual_tls(root: Path) -> None:
    options = [*_tls(root), "--tls-client-ca", str(root / "ca.pem")]
    with secured_by(root, *options, "--users", str(root / "users.yaml")) as secured:
        certificate = {
            "ssl_certificate_location": str(root / "client.pem"),
            "ssl_key_location": str(root / "client.key"),
        }
        assert read(secured.properties("SSL", **certificate), "clicks") == RECORDS
        properties = secured.properties("SASL_SSL", sasl_mechanism="SCRAM-SHA-256", **certificate)
        assert read(properties, "orders") == RECORDS
        assert first_error(secured.properties("SSL"), KafkaError._ALL_BROKERS_DOWN)
        wait_until(lambda: "handshake failed" in secured.log(), 20, "the event")


def test_java(
    sasl_ssl: Secured,
    java: object,  # noqa: ARG001 - the consumer needs it
    tmp_path: Path,
) -> None:
    properties = {
        "bootstrap.servers": sasl_ssl.bootstrap,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="alice" password="{PASSWORD}";'
        ),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": f"{sasl_ssl.root}/ca.pem",
    }
    read, error = read_partition_with_java(properties, "orders", 0, tmp_path)
    assert (read, error) == (list(range(40)), None)

"""TLS and SASL with a real broker."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from devtools.sandbox.kafka import KafkaCluster, KraftCluster
from sidetier.brokers.ports import HOST, free_port
from sidetier.segments import batches
from sidetier.segments.errors import BrokerLoginError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.wire import requests
from sidetier.wire.cluster import AnyBroker, Cluster
from sidetier.wire.fetch_session import FetchPosition
from sidetier.wire.protocol import ApiKey
from sidetier.wire.record_requests import (
    receive_fetched,
    receive_produced,
    send_fetch,
    send_produce,
)
from sidetier.wire.requests import ScramCredential
from sidetier.wire.settings import ClientSettings
from tests.harness.record_batches import MadeBatch, MadeRecord
from tests.harness.topics import create_topic
from tests.harness.waiting import holds_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

PASSWORD = "alice-secret"
SESSION_SECONDS = 2


@dataclass(frozen=True, slots=True)
class SecureBroker:
    kafka: KafkaCluster
    address: str
    directory: Path

    def properties(self, **changes: str) -> dict[str, str]:
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "alice",
            "sasl.password": PASSWORD,
            "ssl.ca.location": f"{self.directory}/ca.pem",
            "ssl.certificate.location": f"{self.directory}/client.pem",
            "ssl.key.location": f"{self.directory}/client.key",
        } | {name.replace("_", "."): value for name, value in changes.items()}

    def cluster(self, **changes: str) -> Cluster:
        return Cluster(ClientSettings.from_properties(self.properties(**changes)))


@pytest.fixture(scope="module")
def secure(
    java: object,  # noqa: ARG001 - servers need it
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SecureBroker]:
    """A broker whose second listener requires a client certificate and a login."""
    directory = tmp_path_factory.mktemp("secure")
    write_identities(directory)
    port = free_port()
    secure = "listener.name.secure"
    properties = {
        "listeners": f"SECURE://{HOST}:{port}",
        "advertised.listeners": f"SECURE://{HOST}:{port}",
        "listener.security.protocol.map": "SECURE:SASL_SSL",
        f"{secure}.ssl.client.auth": "required",
        f"{secure}.ssl.keystore.type": "PEM",
        f"{secure}.ssl.keystore.location": f"{directory}/broker.pem",
        f"{secure}.ssl.truststore.type": "PEM",
        f"{secure}.ssl.truststore.location": f"{directory}/ca.pem",
        f"{secure}.connections.max.reauth.ms": SESSION_SECONDS * 1000,
        f"{secure}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        f"{secure}.plain.sasl.jaas.config": (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'user_alice="{PASSWORD}";'
        ),
        **{
            f"{secure}.{mechanism}.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            )
            for mechanism in ("scram-sha-256", "scram-sha-512")
        },
    }
    with KraftCluster(directory / "kafka", properties=properties) as kafka:
        create_scram_user(kafka.bootstrap_servers)
        yield SecureBroker(kafka, f"{HOST}:{port}", directory)


def write_identities(directory: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    broker, client = authority.issue_cert(HOST), authority.issue_cert("client")
    key = load_pem_private_key(broker.private_key_pem.bytes(), None)
    pkcs8 = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain = b"".join(blob.bytes() for blob in broker.cert_chain_pems)
    (directory / "broker.pem").write_bytes(pkcs8 + chain)
    client.cert_chain_pems[0].write_to_path(str(directory / "client.pem"))
    client.private_key_pem.write_to_path(str(directory / "client.key"))


def create_scram_user(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        info = ScramCredentialInfo(mechanism, 4096)
        change = UserScramCredentialUpsertion("alice", info, PASSWORD.encode())
        admin.alter_user_scram_credentials([change])["alice"].result(60)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_batch_is_produced_and_fetched(secure: SecureBroker, topic: str, mechanism: str) -> None:
    create_topic(secure.kafka.bootstrap_servers, topic, configs={"retention.ms": -1})
    tp = TopicPartition(topic, 0)
    records = tuple(MadeRecord(offset, value=bytes([offset]) * 3000) for offset in range(250))
    batch = memoryview(bytearray(MadeBatch(records).encoded()))
    with secure.cluster(sasl_mechanism=mechanism) as cluster:
        producer = requests.init_producer_id(cluster)
        batches.set_producer(batch, producer, 0, transactional=False)
        with cluster.connect(cluster.partition_metadata(tp).leader) as connection:
            send_produce(connection, [(tp, batch)])
            (produced,) = receive_produced(connection)
            assert (produced.error_code, produced.base_offset) == (0, 0)
            send_fetch(connection, [FetchPosition(tp, Offset(0), 10_000_000)])
            (fetched,) = receive_fetched(connection)
    batches.set_leader_epoch(fetched.records, -1)
    assert fetched.records == batch


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_wrong_password_is_refused(secure: SecureBroker, mechanism: str) -> None:
    with (
        secure.cluster(sasl_mechanism=mechanism, sasl_password="wrong") as cluster,
        pytest.raises(BrokerLoginError, match=r"refuses the login: Authentication failed"),
    ):
        cluster.metadata()


def test_connection_outlives_its_session(secure: SecureBroker) -> None:
    """The broker closes a connection that uses an expired session (KIP-368)."""
    with secure.cluster() as cluster:
        connection = cluster.connection(AnyBroker())

        def asks() -> bool:
            connection.request(connection.build(ApiKey.FIND_COORDINATOR, key="g", key_type=0))
            return True

        holds_for(asks, 2.5 * SESSION_SECONDS, "the connection is open")
        assert not connection.is_closed


def test_scram_users_are_described_without_their_passwords(secure: SecureBroker) -> None:
    with secure.cluster() as cluster:
        assert sorted(requests.scram_credentials(cluster), key=lambda each: each.mechanism) == [
            ScramCredential("alice", "SCRAM-SHA-256", 4096),
            ScramCredential("alice", "SCRAM-SHA-512", 4096),
        ]

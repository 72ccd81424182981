"""A cluster of several brokers, each with a second listener that requires TLS and a login."""

from pathlib import Path

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

from devtools.sandbox.kafka import KraftCluster
from sidetier.brokers.kafka import KafkaNode, Properties
from sidetier.brokers.ports import HOST, free_port

USER = "endpoint"
_LISTENER = "listener.name.secure"


class SecureCluster(KraftCluster):
    """Three brokers with the internal topics on all of them, and SASL_SSL with SCRAM-SHA-256.

    Clients that are not secure use the brokers' first listener.

    Args:
        directory: Directory of the servers and certificates.
    """

    def __init__(self, directory: Path) -> None:
        self._ca = directory / "ca.pem"
        self._identity = directory / "broker.pem"
        self._write_identity()
        self._secure_ports: dict[int, int] = {}
        super().__init__(
            directory,
            brokers=3,
            properties={
                "offsets.topic.num.partitions": 6,
                "offsets.topic.replication.factor": 3,
                "listener.security.protocol.map": "SECURE:SASL_SSL",
                f"{_LISTENER}.ssl.keystore.type": "PEM",
                f"{_LISTENER}.ssl.keystore.location": str(self._identity),
                f"{_LISTENER}.sasl.enabled.mechanisms": "SCRAM-SHA-256",
                f"{_LISTENER}.scram-sha-256.sasl.jaas.config": (
                    "org.apache.kafka.common.security.scram.ScramLoginModule required;"
                ),
            },
        )

    @property
    def secure_servers(self) -> str:
        """Addresses of the listeners with TLS and logins."""
        return ",".join(f"{HOST}:{port}" for port in self._secure_ports.values())

    def set_password(self, password: str) -> None:
        """Create the user, or change its password."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        change = UserScramCredentialUpsertion(USER, info, password.encode())
        admin.alter_user_scram_credentials([change])[USER].result(60)

    def client_properties(self, password: str) -> str:
        """Return the properties of a client with a login."""
        return (
            "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\n"
            f"sasl.username={USER}\nsasl.password={password}\nssl.ca.location={self._ca}\n"
        )

    def _make(
        self, node_id: int, client_port: int, log_dirs: int, properties: Properties
    ) -> KafkaNode:
        port = self._secure_ports[node_id] = free_port()
        address = f"SECURE://{HOST}:{port}"
        own = {"listeners": address, "advertised.listeners": address}
        return super()._make(node_id, client_port, log_dirs, {**properties, **own})

    def _write_identity(self) -> None:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(self._ca))
        issued = authority.issue_cert(HOST)
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        pkcs8 = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        self._identity.write_bytes(pkcs8 + chain)

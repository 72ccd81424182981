"""The second cluster of tests that mirror between two clusters."""

from collections.abc import Iterator

import pytest

from devtools.sandbox.kafka import KraftCluster
from sidetier.brokers.java import Java
from sidetier.brokers.kafka import KAFKA_4_3

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    # Resources without an ACL are open to everyone; here everyone is User:ANONYMOUS.
    "allow.everyone.if.no.acl.found": "true",
}


@pytest.fixture(scope="session")
def target(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a shared cluster with ACLs, for tests that create their own topics."""
    del java  # is there
    directory = tmp_path_factory.mktemp("target")
    with KraftCluster(directory, KAFKA_4_3, properties=AUTHORIZER) as cluster:
        yield cluster.bootstrap_servers

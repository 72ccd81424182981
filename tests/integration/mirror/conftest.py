"""The second cluster of tests that mirror between two."""

from collections.abc import Iterator

import pytest

from devtools.sandbox.kafka import KraftCluster
from sidetier.brokers.java import Java
from sidetier.brokers.kafka import KAFKA_4_3

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    # What has no ACL is open to everyone, who is User:ANONYMOUS here.
    "allow.everyone.if.no.acl.found": "true",
}


@pytest.fixture(scope="session")
def target(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a shared cluster with ACLs, for tests that make topics of their own."""
    del java  # is there
    directory = tmp_path_factory.mktemp("target")
    with KraftCluster(directory, KAFKA_4_3, properties=AUTHORIZER) as cluster:
        yield cluster.bootstrap_servers

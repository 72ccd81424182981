"""Servers that only these tests need, and a partition that they may copy and damage."""

import uuid
from collections.abc import Iterator

import pytest

from devtools.sandbox.kafka import KraftCluster
from sidetier.brokers.java import Java
from sidetier.brokers.kafka import KAFKA_4_3
from tests.harness.copied_log_dir import Original, write_original


@pytest.fixture(scope="session")
def original(kraft43: KraftCluster) -> Original:
    """A partition of a real broker with at least twelve closed segments."""
    topic = f"original-{uuid.uuid4().hex[:6]}"
    return write_original(kraft43.bootstrap_servers, kraft43.log_dirs(1)[0], topic, 12)


@pytest.fixture(scope="module")
def pair(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KraftCluster]:
    """Two brokers that tests may stop and start, and a permanent controller."""
    directory = tmp_path_factory.mktemp("pair")
    patient = {"broker.session.timeout.ms": 9000}
    with KraftCluster(
        directory, KAFKA_4_3, brokers=2, controllers=1, properties=patient
    ) as cluster:
        yield cluster

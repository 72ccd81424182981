"""Clusters whose leadership is followed: each kind starts once for all tests."""

from collections.abc import Iterator

import pytest

from devtools.sandbox.kafka import KafkaCluster, KraftCluster, ZookeeperCluster
from sidetier.brokers.java import Java
from sidetier.brokers.kafka import KAFKA_3_9, KAFKA_4_3
from sidetier.leadership.kraft.metadata_log import parse_files
from sidetier.leadership.settings import KraftSettings
from sidetier.segments.offsets import BrokerId
from tests.harness.leadership import Followers, Onlooker, metadata_directory

# A metadata log that rolls, is snapshotted and cleaned during the tests.
RESTLESS_METADATA = {
    "metadata.log.segment.ms": 4000,
    "metadata.log.max.record.bytes.between.snapshots": 4000,
    "metadata.max.retention.ms": 8000,
    # A leader without a quorum stays leader long enough to write uncommitted records.
    "controller.quorum.fetch.timeout.ms": 6000,
    "controller.quorum.election.timeout.ms": 1000,
}


@pytest.fixture(scope="session")
def combined43(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KraftCluster]:
    """Three nodes of Kafka 4.3, each a broker and a controller."""
    with KraftCluster(
        tmp_path_factory.mktemp("combined43"), KAFKA_4_3, brokers=3, properties=RESTLESS_METADATA
    ) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def onlooker(combined43: KraftCluster) -> Iterator[Onlooker]:
    """A follower of broker 1 in `combined43` from the beginning on, through all tests."""
    with Followers() as followers:
        names = (path.name for path in metadata_directory(combined43, 1).iterdir())
        begun = parse_files(names)
        settings = KraftSettings(BrokerId(1), combined43.metadata_log_dir(1))
        yield Onlooker(followers.open("the onlooker", settings), begun)


@pytest.fixture(scope="session")
def split39(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KraftCluster]:
    """Two brokers and a controller of Kafka 3.9; the metadata log has its own directory."""
    with KraftCluster(
        tmp_path_factory.mktemp("split39"),
        KAFKA_3_9,
        brokers=2,
        controllers=1,
        log_dirs=2,
        properties={"metadata.log.dir": "{directory}/metadata"},
    ) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def zookeeper39(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperCluster]:
    """Two brokers of Kafka 3.9 with ZooKeeper 3.8, under a chroot."""
    with ZookeeperCluster(
        tmp_path_factory.mktemp("zookeeper39"), KAFKA_3_9, brokers=2, chroot="/kafka/eu"
    ) as cluster:
        yield cluster


# Request the onlooker here, so that it follows from the first test on.
@pytest.fixture(scope="session", params=["combined43", "split39", "zookeeper39"])
def cluster(request: pytest.FixtureRequest) -> KafkaCluster:
    """Each kind of cluster in turn."""
    found: KafkaCluster = request.getfixturevalue(request.param)
    if request.param == "combined43":
        request.getfixturevalue("onlooker")
    return found


@pytest.fixture
def followers() -> Iterator[Followers]:
    with Followers() as opened:
        yield opened

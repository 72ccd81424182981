"""Real servers and real broker segments, as fixtures.

Servers start when the first test requests them; each pytest-xdist worker has its own. Tests that
only create their own topics or buckets share the servers of the session. Tests that stop, kill or
configure a server use `kraft_cluster`, `zookeeper_cluster` or `own_s3_server`.
"""

import logging
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import structlog

from devtools.sandbox.azurite import AzuriteServer, azurite
from devtools.sandbox.hdfs import HdfsCluster
from devtools.sandbox.kafka import KraftCluster, ZookeeperCluster
from devtools.sandbox.npm import NodeMissingError
from devtools.sandbox.s3server import S3Server
from sidetier.brokers.errors import JavaMissingError
from sidetier.brokers.java import Java, find_java
from sidetier.brokers.kafka import KAFKA_3_9, KAFKA_4_3
from tests.harness.azure import AzureContainer, AzuriteFactory, new_container
from tests.harness.ci import STALL_SECONDS, in_ci
from tests.harness.clusters import (
    KraftFactory,
    ZookeeperFactory,
    kraft_factory,
    zookeeper_factory,
)
from tests.harness.gcs_server import GcsBucket, GcsServer, new_gcs_bucket
from tests.harness.s3 import S3Bucket, S3ServerFactory, TlsIdentity, make_tls_identity, new_bucket

_TESTS = Path(__file__).parent
_WITHOUT_SERVERS = ("unit", "property")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort files with the longest test timeouts first, and refuse servers where CI starts none.

    A worker that received one of them last would run alone at the end.
    """
    for item in items:
        folder = item.path.relative_to(_TESTS).parts[0]
        if folder in _WITHOUT_SERVERS and item.get_closest_marker("integration"):
            raise pytest.UsageError(
                f"{item.nodeid}: CI runs no tests with servers in tests/{folder}"
            )
    usual = float(config.getini("timeout"))
    longest: dict[Path, float] = {}
    for item in items:
        mark = item.get_closest_marker("timeout")
        timeout = mark.args[0] if mark else usual
        longest[item.path] = max(longest.get(item.path, 0.0), timeout)
        later = timeout + 2 * STALL_SECONDS
        item.add_marker(pytest.mark.timeout(later), append=False)
    items.sort(key=lambda item: -longest[item.path])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI a skipped test is a failed run (with several workers, in the one that reports)."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if in_ci() and reporter is not None and reporter.stats.get("skipped"):
        reporter.ensure_newline()
        reporter.write_line("a test was skipped, which CI does not allow", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the seed and the result of tests that use a seed, also if they have passed."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            properties = getattr(report, "user_properties", ())
            said = [str(value) for name, value in properties if name == "chaos"]
            if said and report.when == "call":
                terminalreporter.write_line(said[-1])


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """Restore the log configuration of the process after each test.

    Commands of the program configure the logs of the whole process; the next test must not write
    to the standard error of this one.
    """
    root = logging.getLogger()
    handlers = list(root.handlers)
    # Not the level that was found: a fixture of the module may have run a command. `setLevel` also
    # clears what loggers remember of the level.
    root.setLevel(logging.WARNING)
    yield
    root.handlers = handlers
    root.setLevel(logging.WARNING)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def java() -> Java:
    """The Java that servers run on; without one the test is skipped, and fails in CI."""
    try:
        return find_java()
    except JavaMissingError as error:
        if in_ci():
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def kraft43(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KraftCluster]:
    """A shared broker of Kafka 4.3 with KRaft."""
    with KraftCluster(tmp_path_factory.mktemp("kraft43"), KAFKA_4_3) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kraft39(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KraftCluster]:
    """A shared broker of Kafka 3.9 with KRaft."""
    with KraftCluster(tmp_path_factory.mktemp("kraft39"), KAFKA_3_9) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def zk39(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperCluster]:
    """A shared broker of Kafka 3.9 with ZooKeeper 3.8, below the chroot `/kafka`."""
    with ZookeeperCluster(tmp_path_factory.mktemp("zk39"), KAFKA_3_9, chroot="/kafka") as cluster:
        yield cluster


@pytest.fixture
def kraft_cluster(java: Java, tmp_path: Path) -> Iterator[KraftFactory]:
    """Starts KRaft clusters of the test's own: `kraft_cluster(version, brokers=3, ...)`."""
    with ExitStack() as stack:
        yield kraft_factory(tmp_path, stack)


@pytest.fixture
def zookeeper_cluster(java: Java, tmp_path: Path) -> Iterator[ZookeeperFactory]:
    """Starts ZooKeeper clusters of the test's own: `zookeeper_cluster(brokers=2, ...)`."""
    with ExitStack() as stack:
        yield zookeeper_factory(tmp_path, stack)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A shared S3 server over plain HTTP."""
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def tls_identity(tmp_path_factory: pytest.TempPathFactory) -> TlsIdentity:
    """A certificate for 127.0.0.1, its key, and the authority that signed it."""
    return make_tls_identity(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="session")
def s3_server_tls(
    tls_identity: TlsIdentity, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[S3Server]:
    """A shared S3 server over HTTPS; clients trust it by `tls_identity.authority`."""
    certificate = tls_identity.certificate
    with S3Server(tmp_path_factory.mktemp("s3-tls"), certificate=certificate) as server:
        yield server


@pytest.fixture
def own_s3_server(tmp_path: Path) -> Iterator[S3ServerFactory]:
    """Starts S3 servers of the test's own, to be paused or killed."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(S3Server(tmp_path / f"s3-{uuid.uuid4().hex[:6]}"))


@pytest.fixture
def s3_bucket(s3_server: S3Server) -> S3Bucket:
    """A new, empty bucket on the shared S3 server, with a boto3 client for it."""
    return new_bucket(s3_server)


@pytest.fixture
def s3_bucket_tls(s3_server_tls: S3Server, tls_identity: TlsIdentity) -> S3Bucket:
    """A new, empty bucket on the shared HTTPS server, with a boto3 client for it."""
    return new_bucket(s3_server_tls, tls_identity.authority)


@pytest.fixture(scope="session")
def node() -> None:
    """Azurite is installed; without Node.js the test is skipped, and fails in CI."""
    try:
        azurite()
    except NodeMissingError as error:
        if in_ci():
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def azurite_server(node: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzuriteServer]:
    """A shared Azurite over plain HTTP."""
    with AzuriteServer(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture(scope="session")
def azurite_server_tls(
    node: None, tls_identity: TlsIdentity, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AzuriteServer]:
    """A shared Azurite over HTTPS; clients trust it by `tls_identity.authority`."""
    directory = tmp_path_factory.mktemp("azurite-tls")
    with AzuriteServer(directory, certificate=tls_identity.certificate) as server:
        yield server


@pytest.fixture
def own_azurite_server(node: None, tmp_path: Path) -> Iterator[AzuriteFactory]:
    """Starts Azurites of the test's own, to be paused or killed."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(AzuriteServer(tmp_path / f"az-{uuid.uuid4().hex[:6]}"))


@pytest.fixture
def azure_container(azurite_server: AzuriteServer) -> AzureContainer:
    """A new, empty container on the shared Azurite; it has the options of obstore's AzureStore."""
    return new_container(azurite_server)


@pytest.fixture
def azure_container_tls(
    azurite_server_tls: AzuriteServer, tls_identity: TlsIdentity
) -> AzureContainer:
    """A new, empty container on the shared Azurite over HTTPS."""
    return new_container(azurite_server_tls, tls_identity.authority)


@pytest.fixture(scope="session")
def hdfs_cluster(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    """A shared NameNode with two DataNodes."""
    with HdfsCluster(tmp_path_factory.mktemp("hdfs"), datanodes=2) as cluster:
        yield cluster


@pytest.fixture
def own_hdfs_cluster(java: Java, tmp_path: Path) -> Iterator[HdfsCluster]:
    """A NameNode and a DataNode of the test's own, to be stopped or killed."""
    with HdfsCluster(tmp_path / "hdfs") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[GcsServer]:
    """A shared imitation of Google Cloud Storage in this process, over plain HTTP."""
    with GcsServer() as server:
        yield server


@pytest.fixture
def gcs_bucket(gcs_server: GcsServer) -> GcsBucket:
    """A new, empty bucket on the shared imitation; it has the options of obstore's GCSStore."""
    return new_gcs_bucket(gcs_server)


@pytest.fixture
def topic() -> str:
    """A topic name that no other test uses."""
    return f"topic-{uuid.uuid4().hex[:10]}"


@pytest.fixture(scope="session")
def segment_fixtures() -> Path:
    """Segments written by a real broker, one directory per partition, and what consumers read."""
    return Path(__file__).parent / "fixtures" / "segments"

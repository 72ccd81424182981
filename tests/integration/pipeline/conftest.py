"""Spark sessions of both versions, and an archive of real brokers' segments on S3."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from devtools.sandbox.s3server import S3Server
from devtools.sandbox.spark import SPARK_4, SPARK_35, Version
from devtools.sandbox.spark_jars import HUDI_3_5, ICEBERG_3_5, ICEBERG_4_0, ICEBERG_ON_S3, S3A_3_3
from sidetier.brokers.java import Java
from sidetier.pipeline.export.table_export import HUDI_SESSION as HUDI
from sidetier.pipeline.export.table_export import ICEBERG_SESSION as ICEBERG
from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.factory import open_plain
from sidetier.storage.port import RemoteStorage
from sidetier.storage.settings import Credentials, S3Settings, StorageEndpoint
from tests.harness.broker_archive import store_broker_segments
from tests.harness.broker_segments import directories
from tests.harness.s3 import new_bucket
from tests.harness.spark import SparkDriver, spark_driver
from tests.harness.table_exports import iceberg_catalog

LAYOUT = ArchiveLayout("prod-a", 5)


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive on S3: an open store to change it with, and the options to read it."""

    store: RemoteStorage
    options: dict[str, str]
    secret: str

    def reading(self, **more: str) -> dict[str, str]:
        """The options of a read; `__` stands for a dot."""
        return {**self.options, **{name.replace("__", "."): text for name, text in more.items()}}


NewArchive = Callable[..., Archive]


@pytest.fixture(scope="session")
def spark40(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkDriver]:
    """A session of Spark 4.0 with Iceberg, its S3 dependencies and the catalog `lake`."""
    root = tmp_path_factory.mktemp("spark40")
    settings = ICEBERG | iceberg_catalog(root / "tables")
    with spark_driver(SPARK_4, root, settings, ICEBERG_4_0, ICEBERG_ON_S3) as driver:
        yield driver


@pytest.fixture(scope="session")
def spark35(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkDriver]:
    """A session of Spark 3.5 in its own environment, with Hudi, S3A and Iceberg."""
    root = tmp_path_factory.mktemp("spark35")
    with spark_driver(SPARK_35, root, HUDI, HUDI_3_5, ICEBERG_3_5, S3A_3_3) as driver:
        yield driver


@dataclass(frozen=True, slots=True)
class Face:
    """One of the interfaces for reads: a session, and `read` or `format`."""

    driver: SparkDriver
    name: str


@pytest.fixture(
    params=[(SPARK_4, "read"), (SPARK_4, "format"), (SPARK_35, "read")],
    ids=lambda param: f"{param[0]}-{param[1]}",
)
def face(request: pytest.FixtureRequest) -> Face:
    """Each interface for batch reads."""
    version, name = request.param
    assert isinstance(version, Version)
    driver = request.getfixturevalue("spark40" if version is SPARK_4 else "spark35")
    assert isinstance(driver, SparkDriver)
    return Face(driver, name)


@pytest.fixture(scope="session")
def new_archive(
    s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NewArchive]:
    """Store the closed segments of the named fixtures, by default all, in a new bucket."""
    secrets = tmp_path_factory.mktemp("secrets")
    opened: list[RemoteStorage] = []

    def make(*names: str) -> Archive:
        archive = _archive(s3_server, secrets)
        opened.append(archive.store)
        for name in names or [path.name for path in directories()]:
            store_broker_segments(archive.store, LAYOUT, name)
        return archive

    yield make
    for store in opened:
        store.close()


@pytest.fixture(scope="session")
def archive(new_archive: NewArchive) -> Archive:
    """An archive of every fixture. Tests that change an archive use `new_archive`."""
    return new_archive()


def _archive(server: S3Server, secrets: Path) -> Archive:
    bucket = new_bucket(server)
    credentials = Credentials(server.access_key, server.secret_key)
    settings = S3Settings(server.endpoint_url, server.region, True, credentials=credentials)  # noqa: FBT003 -- path_style
    (secrets / "key").write_text(server.access_key)
    (secrets / "secret").write_text(server.secret_key)
    url = f"s3://{bucket.name}/archive"
    prefix = "tiered.storage"
    options = {
        f"{prefix}.url": url,
        f"{prefix}.cluster.name": LAYOUT.cluster,
        f"{prefix}.s3.endpoint.url": server.endpoint_url,
        f"{prefix}.s3.region": server.region,
        f"{prefix}.s3.path.style": "true",
        f"{prefix}.s3.access.key.id": f"file:{secrets / 'key'}",
        f"{prefix}.s3.secret.access.key": f"file:{secrets / 'secret'}",
    }
    return Archive(open_plain(StorageEndpoint(url, s3=settings)), options, server.secret_key)

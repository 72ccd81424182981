"""Every kind of store, for tests that must hold for all of them."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import obstore
from hdfs_native import Client
from moto.server import ThreadedMotoServer
from mypy_boto3_s3 import S3Client

from devtools.sandbox.azurite import ACCOUNT, ACCOUNT_KEY
from devtools.sandbox.hdfs import HdfsCluster
from sidetier.storage.fake import FakeStorage, memory_storage
from sidetier.storage.hdfs import HdfsStorage
from sidetier.storage.local import LocalStorage
from sidetier.storage.object_clients import ObjectClients, azure_clients, gcs_clients
from sidetier.storage.object_store import ObjectStorage
from sidetier.storage.overlay import OverlayStorage
from sidetier.storage.port import RemoteStorage
from sidetier.storage.s3 import S3Storage
from sidetier.storage.s3_client import make_client
from sidetier.storage.settings import (
    MIB,
    AttemptDeadline,
    AzureSettings,
    Credentials,
    GcsSettings,
    S3Settings,
)
from tests.harness.azure import AzureContainer
from tests.harness.gcs_server import GcsBucket
from tests.harness.s3 import S3Bucket

PREFIX = "some/prefix"


@dataclass(frozen=True, slots=True)
class Subject:
    """A store under test, which shares its root with no other test."""

    storage: RemoteStorage
    left_over: Callable[[], list[str]]
    """Lists the remains of unfinished or failed writes, through the store's own API."""
    fences: bool = True
    """Whether only one of several writers with the same If-Match can succeed."""
    fences_parts: bool = True
    """Whether only one of several uploads in parts with the same condition can succeed."""
    refused: str = ""
    """Characters that keys may not contain."""


def fake_subject() -> Subject:
    return Subject(FakeStorage(), list)


def local_subject(root: Path) -> Subject:
    def temporary() -> list[str]:
        return [path.name for path in (root / ".sidetier" / "tmp").iterdir()]

    return Subject(LocalStorage(root), temporary)


def overlay_subject() -> Subject:
    return Subject(OverlayStorage(FakeStorage(), FakeStorage()), list)


def memory_subject() -> Subject:
    return Subject(memory_storage(f"memory://{uuid.uuid4().hex}"), list)


def hdfs_subject(cluster: HdfsCluster) -> Subject:
    """Create a separate directory, with a listing of files below the reserved one."""
    client = Client(cluster.url)
    root = f"/{uuid.uuid4().hex}"

    def left() -> list[str]:
        rows = []
        for own in ("new", "swaps"):
            with suppress(FileNotFoundError):
                rows += list(client.list_status(f"{root}/{PREFIX}/_sidetier-store/{own}", True))  # noqa: FBT003
        return [row.path for row in rows]

    store = HdfsStorage(f"{cluster.url}{root}/{PREFIX}")
    return Subject(store, left, refused=":")


def object_subject(clients: ObjectClients) -> Subject:
    """Create a store on Google Cloud Storage or Azure, with a listing below the reserved prefix."""

    def left() -> list[str]:
        return [
            row["path"] for page in obstore.list(clients.small, "_sidetier-store") for row in page
        ]

    return Subject(ObjectStorage(clients), left, refused="" if clients.backslashes else "\\")


def gcs_subject(bucket: GcsBucket) -> Subject:
    settings = GcsSettings(endpoint_url=bucket.server.url, access_token=bucket.server.token)
    return object_subject(gcs_clients(f"gs://{bucket.name}/{PREFIX}", settings, AttemptDeadline()))


def azure_subject(container: AzureContainer) -> Subject:
    settings = AzureSettings(
        account_name=ACCOUNT, account_key=ACCOUNT_KEY, endpoint_url=container.server.endpoint_url
    )
    url = f"abfs://{container.name}/{PREFIX}"
    return object_subject(azure_clients(url, settings, AttemptDeadline()))


@contextmanager
def moto_server() -> Iterator[S3Settings]:
    """Yield settings for a moto server in this process, which ignores checksums."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield S3Settings(
            endpoint_url=f"http://{host}:{port}",
            region="us-east-1",
            path_style=True,
            credentials=Credentials("test", "test-secret"),
            checksum_verified=False,
            multipart_threshold=6 * MIB,
            part_size=5 * MIB,
        )
    finally:
        server.stop()


def moto_subject(settings: S3Settings) -> Subject:
    """Create a bucket on moto, which checks a condition and writes in two separate steps."""
    client = make_client(settings, AttemptDeadline())
    bucket = f"bucket-{uuid.uuid4().hex[:8]}"
    client.create_bucket(Bucket=bucket)
    return replace(s3_subject(client, bucket, settings, fences=False), fences_parts=False)


def s3_settings(bucket: S3Bucket, authority: Path | None = None) -> S3Settings:
    """Return the settings of a bucket on a sandbox server."""
    server = bucket.server
    return S3Settings(
        endpoint_url=server.endpoint_url,
        region=server.region,
        path_style=True,
        credentials=Credentials(server.access_key, server.secret_key),
        ca_bundle=authority,
        multipart_threshold=6 * MIB,
        part_size=5 * MIB,
    )


def s3_subject(
    client: S3Client,
    bucket: str,
    settings: S3Settings,
    *,
    fences: bool = True,
) -> Subject:
    def uploads() -> list[str]:
        answer = client.list_multipart_uploads(Bucket=bucket)
        return [upload["Key"] for upload in answer.get("Uploads", [])]

    store = S3Storage(bucket, PREFIX, settings)
    return Subject(store, uploads, fences)

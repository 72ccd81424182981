import subprocess
import sys
from pathlib import Path

import pytest

from sidetier.segments.errors import ConfigurationError
from sidetier.storage.bodies import BytesBody
from sidetier.storage.factory import open_plain, open_storage
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import RemoteStorage
from sidetier.storage.provider import OpenStores, PatternEndpointProvider
from sidetier.storage.s3 import S3Storage
from sidetier.storage.settings import (
    AzureSettings,
    Credentials,
    GcsSettings,
    S3Settings,
    StorageEndpoint,
)

HERE = StorageEndpoint("memory://here")
THERE = StorageEndpoint("memory://there")


def test_directory_is_opened_by_its_url(tmp_path: Path) -> None:
    store = open_storage(StorageEndpoint(f"file://{tmp_path}/with%20space"))
    store.put_object("t-0/a.log", BytesBody(b"x"))
    assert (tmp_path / "with space" / "t-0" / "a.log").read_bytes() == b"x"
    assert store.capabilities.conditional_writes
    assert isinstance(store, RemoteStorage)
    store.close()


def test_memory_store_is_shared_within_the_process() -> None:
    first = open_storage(StorageEndpoint("memory://bucket-m/prefix"))
    first.put_object("a/b", BytesBody(b"x"))
    second = open_storage(StorageEndpoint("memory://bucket-m/prefix"))
    assert [row.key for row in second.list_objects("")] == ["a/b"]
    assert second.capabilities.conditional_writes
    other = open_storage(StorageEndpoint("memory://bucket-m/other"))
    assert list(other.list_objects("")) == []


def test_opening_s3_sends_no_request() -> None:
    keys = Credentials("a", "b")
    endpoint = StorageEndpoint("s3://bucket/prefix", s3=S3Settings(credentials=keys))
    store = open_plain(endpoint)
    assert isinstance(store, S3Storage)
    store.close()


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("ftp://host/x", "must begin with one of"),
        ("/plain/path", "for a directory: file:///plain/path"),
        ("s3:///prefix", "names no bucket"),
        ("file://host/path", "absolute directory"),
        ("file:///", "absolute directory"),
        ("gs:///x", "names no bucket"),
        ("abfs://container/x", "storage.azure"),
        ("hdfs://namenode:8020", "must name a directory"),
        ("hdfs://kafka@namenode:8020/x", "HADOOP_USER_NAME"),
        ("hdfs://nameservice/x", "storage.hdfs.config_dir"),
        ("hdfs:///x", "storage.hdfs.config_dir"),
    ],
)
def test_unusable_url_is_refused_with_a_reason(url: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        open_storage(StorageEndpoint(url))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (S3Settings(profile="no-such-profile-here"), "no-such-profile-here"),
        (S3Settings(ca_bundle=Path("/no/such/ca.pem")), "/no/such/ca.pem"),
        (S3Settings(endpoint_url="not a url"), "endpoint"),
    ],
)
def test_unusable_s3_settings_are_refused_with_a_reason(settings: S3Settings, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        open_storage(StorageEndpoint("s3://bucket", s3=settings))


def test_secrets_are_not_shown() -> None:
    endpoint = StorageEndpoint(
        "s3://bucket",
        s3=S3Settings(credentials=Credentials("visible-id", "visible-secret", "visible-token")),
        gcs=GcsSettings(access_token="visible-token"),
        azure=AzureSettings(account_key="visible-key", sas_token="visible-sas"),
    )
    assert "visible" not in repr(endpoint)


def test_drivers_are_imported_only_when_needed() -> None:
    script = (
        "import sys, sidetier.storage.factory, sidetier.storage.provider, sidetier.storage.fake\n"
        "heavy = {'boto3', 'botocore', 'hdfs_native', 'obstore', 'numpy', 'pyarrow'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_first_pattern_that_matches_the_whole_name_wins() -> None:
    provider = PatternEndpointProvider(
        HERE, [("audit.*", THERE), ("audit-2", HERE), ("x|y", THERE)]
    )
    assert provider.endpoint("audit-2") is THERE
    assert provider.endpoint("my-audit") is HERE
    assert provider.endpoint("y") is THERE
    assert provider.endpoint("xy") is HERE


def test_invalid_pattern_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"\(unclosed"):
        PatternEndpointProvider(HERE, [("(unclosed", THERE)])


def test_each_endpoint_is_opened_once_and_closed() -> None:
    opened: list[StorageEndpoint] = []

    def open_fake(endpoint: StorageEndpoint) -> RemoteStorage:
        opened.append(endpoint)
        return FakeStorage()

    stores = OpenStores(PatternEndpointProvider(HERE, [("b", THERE)]), open_fake)
    assert stores.of_topic("a") is stores.of_topic("c")
    assert stores.of_topic("a") is not stores.of_topic("b")
    assert opened == [HERE, THERE]
    stores.close()
    stores.close()

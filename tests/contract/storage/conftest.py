"""Each test of this folder runs against every store."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sidetier.storage.port import RemoteStorage
from sidetier.storage.settings import S3Settings
from tests.harness.encryption import AllLogs, encrypting
from tests.harness.stores import (
    Subject,
    azure_subject,
    fake_subject,
    gcs_subject,
    hdfs_subject,
    local_subject,
    memory_subject,
    moto_server,
    moto_subject,
    overlay_subject,
    s3_settings,
    s3_subject,
)

if TYPE_CHECKING:
    from tests.harness.s3 import S3Bucket

STORES = [
    "fake",
    "local",
    "memory",
    "overlay",
    "moto",
    "gcs",
    "encrypting-fake",
    "encrypting-local",
    pytest.param("encrypting-s3", marks=pytest.mark.integration),
    pytest.param("azure", marks=pytest.mark.integration),
    pytest.param("hdfs", marks=pytest.mark.integration),
    pytest.param("s3", marks=pytest.mark.integration),
]


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Settings]:
    """One moto server for all tests."""
    with moto_server() as settings:
        yield settings


@pytest.fixture(params=STORES)
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    """An empty store with access to its internals."""
    kind: str = request.param
    subject = _make(kind, request, tmp_path)
    yield subject
    subject.storage.close()


@pytest.fixture
def store(subject: Subject) -> RemoteStorage:
    """The store alone."""
    return subject.storage


def _make(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Subject:
    makers: dict[str, Callable[[], Subject]] = {
        "fake": fake_subject,
        "local": lambda: local_subject(tmp_path / "root"),
        "memory": memory_subject,
        "overlay": overlay_subject,
        "moto": lambda: moto_subject(request.getfixturevalue("moto")),
        "gcs": lambda: gcs_subject(request.getfixturevalue("gcs_bucket")),
        "azure": lambda: azure_subject(request.getfixturevalue("azure_container")),
        "hdfs": lambda: hdfs_subject(request.getfixturevalue("hdfs_cluster")),
        "s3": lambda: _sandbox_subject(request.getfixturevalue("s3_bucket")),
    }
    plain = makers[kind.removeprefix("encrypting-")]()
    if kind.startswith("encrypting-"):
        return replace(plain, storage=AllLogs(encrypting(plain.storage)))
    return plain


def _sandbox_subject(bucket: "S3Bucket") -> Subject:
    return s3_subject(
        bucket.client,
        bucket.name,
        s3_settings(bucket),
    )

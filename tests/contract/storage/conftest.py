"""Each test of this folder runs against every store."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sidetier.storage.port import RemoteStorage
from sidetier.storage.settings import S3Settings
from tests.harness.stores import (
    Subject,
    fake_subject,
    fsspec_subject,
    local_subject,
    moto_server,
    moto_subject,
    s3_settings,
    s3_subject,
)

if TYPE_CHECKING:
    from tests.harness.s3 import S3Bucket

STORES = [
    "fake",
    "local",
    "fsspec-memory",
    "fsspec-file",
    "moto",
    pytest.param("s3", marks=pytest.mark.integration),
]


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Settings]:
    """One moto server for all tests."""
    with moto_server() as settings:
        yield settings


@pytest.fixture(params=STORES)
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    """A store with nothing in it, and a look behind it."""
    kind: str = request.param
    subject = _make(kind, request, tmp_path)
    yield subject
    subject.storage.close()


@pytest.fixture
def store(subject: Subject) -> RemoteStorage:
    """The store alone."""
    return subject.storage


def _make(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Subject:
    if kind == "s3":
        bucket: S3Bucket = request.getfixturevalue("s3_bucket")
        return s3_subject(
            bucket.client,
            bucket.name,
            s3_settings(bucket),
            imitation=bucket.server.kind == "s3proxy",
            fences=bucket.server.fences,
        )
    if kind == "moto":
        return moto_subject(request.getfixturevalue("moto"))
    if kind == "local":
        return local_subject(tmp_path / "root")
    if kind == "fsspec-file":
        return fsspec_subject("file", str(tmp_path / "root"))
    if kind == "fsspec-memory":
        return fsspec_subject("memory", f"/root-{uuid.uuid4().hex}")
    return fake_subject()

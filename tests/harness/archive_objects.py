"""Stores as an operator sees them: with `ls` and `cat`, or with the store's API."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import obstore

from devtools.sandbox.azurite import ACCOUNT, ACCOUNT_KEY
from tests.harness.azure import AzureContainer
from tests.harness.s3 import S3Bucket


class Objects(Protocol):
    """Objects on a store, seen without Sidetier's code."""

    def listing(self) -> frozenset[str]:
        """Return all current keys."""
        ...

    def read(self, key: str) -> bytes | None:
        """Return the bytes of an object; None if it does not exist."""
        ...


@dataclass(frozen=True, slots=True)
class DirectoryObjects:
    """The files of a file-system store, without its own bookkeeping."""

    root: Path

    def listing(self) -> frozenset[str]:
        keys: set[str] = set()
        for directory, inner, names in os.walk(self.root):
            if ".sidetier" in inner:
                inner.remove(".sidetier")
            below = os.path.relpath(directory, self.root)
            keys.update(os.path.normpath(f"{below}/{name}") for name in names)
        return frozenset(keys)

    def read(self, key: str) -> bytes | None:
        try:
            return (self.root / key).read_bytes()
        except FileNotFoundError:
            return None


@dataclass(frozen=True, slots=True)
class BucketObjects:
    """The objects of an S3 bucket, requested from its server directly."""

    bucket: S3Bucket

    def listing(self) -> frozenset[str]:
        pages = self.bucket.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket.name
        )
        return frozenset(row["Key"] for page in pages for row in page.get("Contents", []))

    def read(self, key: str) -> bytes | None:
        client = self.bucket.client
        try:
            return client.get_object(Bucket=self.bucket.name, Key=key)["Body"].read()
        except client.exceptions.NoSuchKey:
            return None


@dataclass(frozen=True, slots=True)
class ContainerObjects:
    """The blobs of an Azure container, requested from its server directly."""

    container: AzureContainer

    def listing(self) -> frozenset[str]:
        pages = obstore.list(self.container.client())
        return frozenset(row["path"] for page in pages for row in page)

    def read(self, key: str) -> bytes | None:
        try:
            return bytes(obstore.get(self.container.client(), key).bytes())
        except FileNotFoundError:
            return None


@dataclass(frozen=True, slots=True)
class ArchiveStore:
    """A store for a sidecar: `storage` settings, environment variables, and outside view."""

    settings: dict[str, Any]
    objects: Objects
    environment: dict[str, str] = field(default_factory=dict)


def file_store(root: Path) -> ArchiveStore:
    """Return a store in a directory."""
    return ArchiveStore({"url": f"file://{root}"}, DirectoryObjects(root))


def azure_store(container: AzureContainer, endpoint_url: str | None = None) -> ArchiveStore:
    """Return a store in a container. `endpoint_url` sends the sidecar, not the view, to a proxy."""
    settings = {
        "url": f"abfs://{container.name}",
        "azure": {
            "account_name": ACCOUNT,
            "account_key": {"env": "TEST_AZURE_KEY"},
            "endpoint_url": endpoint_url or container.server.endpoint_url,
        },
    }
    return ArchiveStore(settings, ContainerObjects(container), {"TEST_AZURE_KEY": ACCOUNT_KEY})


def s3_store(bucket: S3Bucket, endpoint_url: str | None = None) -> ArchiveStore:
    """Return a store in a bucket. `endpoint_url` directs the sidecar, not the view, to a proxy."""
    server = bucket.server
    settings = {
        "url": f"s3://{bucket.name}",
        "s3": {
            "endpoint_url": endpoint_url or server.endpoint_url,
            "region": server.region,
            "path_style": True,
            "access_key_id": {"env": "TEST_S3_ACCESS_KEY"},
            "secret_access_key": {"env": "TEST_S3_SECRET_KEY"},
        },
    }
    environment = {
        "TEST_S3_ACCESS_KEY": server.access_key,
        "TEST_S3_SECRET_KEY": server.secret_key,
    }
    return ArchiveStore(settings, BucketObjects(bucket), environment)

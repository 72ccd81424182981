"""The store of a chaos run: the sidecars' access through proxies, and the direct access of the
observer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

import obstore
from obstore.store import AzureStore

from devtools.sandbox.azurite import ACCOUNT
from tests.harness.archive_objects import (
    ArchiveStore,
    BucketObjects,
    ContainerObjects,
    Objects,
    azure_store,
    s3_store,
)
from tests.harness.azure import AzureContainer
from tests.harness.s3 import S3Bucket


class Eye(Protocol):
    """A view of a store without the product's own code."""

    def read(self, key: str) -> bytes | None:
        """The bytes of an object; None if it does not exist."""
        ...

    def listing(self, prefix: str, after: str = "") -> Mapping[str, str]:
        """The keys below a prefix that sort after a given one, with their ETags."""
        ...


@dataclass(frozen=True, slots=True)
class BucketEye:
    """A bucket, read directly from its server."""

    bucket: S3Bucket

    def read(self, key: str) -> bytes | None:
        client = self.bucket.client
        try:
            return client.get_object(Bucket=self.bucket.name, Key=key)["Body"].read()
        except client.exceptions.NoSuchKey:
            return None

    def listing(self, prefix: str, after: str = "") -> Mapping[str, str]:
        pages = self.bucket.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket.name, Prefix=prefix, StartAfter=after
        )
        return {row["Key"]: row["ETag"] for page in pages for row in page.get("Contents", [])}


@dataclass(frozen=True, slots=True)
class ContainerEye:
    """A container, read directly from its server; the parent of a prefix is listed and filtered."""

    store: AzureStore

    def read(self, key: str) -> bytes | None:
        try:
            return bytes(obstore.get(self.store, key).bytes())
        except FileNotFoundError:
            return None

    def listing(self, prefix: str, after: str = "") -> Mapping[str, str]:
        parent = prefix.rpartition("/")[0] or None
        rows = (row for page in obstore.list(self.store, parent) for row in page)
        return {
            row["path"]: row["e_tag"] or ""
            for row in sorted(rows, key=lambda row: row["path"].encode())
            if row["path"].startswith(prefix) and row["path"] > after
        }


@dataclass(frozen=True, slots=True)
class ChaosStore:
    """A store that is emptied at the end, together with its server.

    Attributes:
        port: The port of its server, for the proxies in front of it.
        eye: Observes the store without the proxies.
        objects: The same, without ETags.
        behind: Returns the store for a sidecar that reaches it at the URL of a proxy.
        direct: The store without a proxy.
    """

    port: int
    eye: Eye
    objects: Objects
    behind: Callable[[str], ArchiveStore]
    direct: ArchiveStore


def s3_chaos(bucket: S3Bucket) -> ChaosStore:
    """On an S3 server."""
    return ChaosStore(
        bucket.server.port,
        BucketEye(bucket),
        BucketObjects(bucket),
        lambda url: s3_store(bucket, url),
        s3_store(bucket),
    )


def azure_chaos(container: AzureContainer) -> ChaosStore:
    """On Azurite."""
    port = urlsplit(container.server.endpoint_url).port
    assert port is not None
    return ChaosStore(
        port,
        ContainerEye(container.client()),
        ContainerObjects(container),
        lambda url: azure_store(container, f"{url}/{ACCOUNT}"),
        azure_store(container),
    )

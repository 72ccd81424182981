"""Open the stores that the configuration names.

Uploader, consumer and pipeline use the same code.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.archive.objects.watermark import Watermark
from sidetier.config.storage import (
    AzureConfig,
    EncryptionConfig,
    EncryptionKeyConfig,
    GcsConfig,
    S3Config,
    StorageConfig,
    StorageTarget,
)
from sidetier.config.storage_urls import file_root
from sidetier.config.types import SecretRef
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.factory import open_storage
from sidetier.storage.port import ChecksumAlgorithm, IfMatch, ObjectSummary, RemoteStorage
from sidetier.storage.provider import OpenStores, PatternEndpointProvider
from sidetier.storage.ranges import FillRange, ReadRange, located, read_into, read_range
from sidetier.storage.settings import (
    AttemptDeadline,
    AzureSettings,
    Credentials,
    EncryptionSettings,
    GcsSettings,
    HdfsSettings,
    KmsKeySettings,
    LocalKeySettings,
    RetryPolicy,
    S3Settings,
    StorageEndpoint,
)
from sidetier.storage.store_calls import RequestObserver, StoreCalls


@dataclass(frozen=True, slots=True)
class ArchiveAccess:
    """The archive of one cluster: its open stores by topic, and its key layout.

    Attributes:
        provider: Maps each topic to its storage endpoint.
        stores: The open stores, one per endpoint.
        layout: How object keys are made.
        watermarks: Archive end offsets that replace the stored `offset.wm`, for archives that were
            moved to a folder without one.
    """

    provider: PatternEndpointProvider
    stores: OpenStores
    layout: ArchiveLayout
    watermarks: Mapping[TopicPartition, Watermark] = field(default_factory=dict)

    @property
    def default_store(self) -> RemoteStorage:
        """The store of objects that belong to no topic."""
        return self.stores.at(self.provider.default)

    def store(self, topic: str) -> RemoteStorage:
        """Return the store of a topic."""
        return self.stores.of_topic(topic)

    @property
    def by_endpoint(self) -> Mapping[StorageEndpoint, RemoteStorage]:
        """All stores of the archive, without duplicates; opens those that are not open yet."""
        return {endpoint: self.stores.at(endpoint) for endpoint in self.provider.endpoints}

    def require_directories(self) -> None:
        """Refuse `file://` stores that do not exist, because opening one would create it.

        Raises:
            ConfigurationError: The directory of a store does not exist.
        """
        for endpoint in self.provider.endpoints:
            require_directory(endpoint.url)

    def partition(self, tp: TopicPartition) -> StoredPartition:
        """Return the place of a partition's archive."""
        return StoredPartition(self.store(tp.topic), self.layout, tp)

    def url(self, topic: str) -> str:
        """Return the URL of a topic's store, without a trailing slash. For error messages."""
        return self.provider.endpoint(topic).url


def endpoint_provider(storage: StorageConfig, connections: int = 16) -> PatternEndpointProvider:
    """Map each topic to its storage endpoint.

    Args:
        storage: The storage configuration.
        connections: Maximum number of concurrent requests to one store.

    Raises:
        ConfigurationError: A secret cannot be read, or the plug-in cannot be loaded.
    """
    default = _endpoint(storage, storage.at(storage.url), connections)
    overrides = [
        (other.topics, _endpoint(storage, storage.overridden(other), connections))
        for other in storage.overrides
    ]
    return PatternEndpointProvider(
        default,
        overrides,
        storage.plug_in(),
        lambda url: _endpoint(storage, storage.at(url), connections),
    )


@contextmanager
def open_archive(
    cluster: str,
    storage: StorageConfig,
    *,
    connections: int = 16,
    observer: RequestObserver | None = None,
    stop: threading.Event | None = None,
    calls: StoreCalls | None = None,
) -> Iterator[ArchiveAccess]:
    """Open the archive of a cluster, and close its stores at the end.

    Args:
        cluster: The cluster's name, as in `cluster.name`.
        storage: The storage configuration.
        connections: Maximum number of concurrent requests to one store.
        observer: Receives the outcome of each request.
        stop: Ends the pauses between retries when it is set.
        calls: Collects the requests that are in progress.

    Raises:
        ConfigurationError: A secret cannot be read, or a name cannot be part of a key.
    """
    provider = endpoint_provider(storage, connections)
    stores = OpenStores(
        provider,
        lambda endpoint: open_storage(endpoint, observer=observer, stop=stop, calls=calls),
    )
    try:
        yield ArchiveAccess(provider, stores, ArchiveLayout(cluster, storage.prefix_entropy_bits))
    finally:
        stores.close()


def require_directory(url: str) -> None:
    """Refuse a `file://` store that does not exist, because opening it would create it."""
    root = file_root(url)
    if root is not None and not root.is_dir():
        raise ConfigurationError(
            f"storage.url {url}: there is no such directory; nothing is stored at this URL yet"
        )


def require_fencing(storage: StorageConfig, store: RemoteStorage, url: str) -> None:
    """Refuse a store without conditional puts, unless the configuration acknowledges the risk."""
    if store.capabilities.conditional_writes or storage.fencing != "required":
        return
    raise ConfigurationError(
        f"storage.url {url}: this store has no conditional writes, so two sidecars that both "
        "believe they lead could overwrite each other; set storage.fencing: "
        "unfenced_acknowledged to use it all the same"
    )


def _endpoint(storage: StorageConfig, target: StorageTarget, connections: int) -> StorageEndpoint:
    retry, deadline = storage.retry, storage.deadline
    return StorageEndpoint(
        url=target.url,
        s3=_s3(target.s3, connections, deadline.silence),
        gcs=_gcs(target.gcs, deadline.silence),
        azure=_azure(target.azure, deadline.silence),
        hdfs=HdfsSettings(target.hdfs.config_dir, tuple(sorted(target.hdfs.properties.items()))),
        retry=RetryPolicy(retry.attempts, retry.first_delay, retry.max_delay, retry.max_elapsed),
        deadline=AttemptDeadline(deadline.base, deadline.min_bytes_per_second, deadline.connect),
        encryption=None if storage.encryption is None else encryption_settings(storage.encryption),
    )


def encryption_settings(encryption: EncryptionConfig) -> EncryptionSettings:
    """Read the keys of the configuration. KMS is not asked.

    Raises:
        ConfigurationError: A key cannot be read, or is not 32 bytes. The text names it.
    """
    return EncryptionSettings(
        keys=tuple((name, _key(name, key)) for name, key in sorted(encryption.keys.items())),
        key=encryption.key,
        topics=encryption.topics,
        refuse_plain=encryption.refuse_plain,
    )


def _key(name: str, key: EncryptionKeyConfig) -> LocalKeySettings | KmsKeySettings:
    if key.aws_kms is not None:
        return KmsKeySettings(key.aws_kms, key.region, key.endpoint_url)
    try:
        return LocalKeySettings(key.resolve())
    except ConfigurationError as error:
        raise ConfigurationError(f"storage.encryption.keys, key {name!r}: {error}") from None


def _s3(s3: S3Config, connections: int, silence: float) -> S3Settings:
    return S3Settings(
        endpoint_url=s3.endpoint_url,
        region=s3.region,
        path_style=s3.path_style,
        profile=s3.profile,
        credentials=_credentials(s3),
        ca_bundle=s3.ca_bundle,
        sse=s3.sse,
        sse_kms_key_id=s3.sse_kms_key_id,
        storage_class=s3.storage_class,
        tags=tuple(sorted(s3.tags.items())),
        class_tag=s3.class_tag,
        checksum=ChecksumAlgorithm(s3.checksum),
        multipart_threshold=s3.multipart_threshold,
        part_size=s3.part_size,
        max_connections=connections,
        read_timeout=silence,
    )


def _gcs(gcs: GcsConfig, silence: float) -> GcsSettings:
    return GcsSettings(
        endpoint_url=gcs.endpoint_url,
        credentials_file=gcs.credentials_file,
        access_token=_secret(gcs.access_token),
        ca_bundle=gcs.ca_bundle,
        storage_class=gcs.storage_class,
        read_timeout=silence,
    )


def _azure(azure: AzureConfig, silence: float) -> AzureSettings:
    return AzureSettings(
        account_name=azure.account_name,
        account_key=_secret(azure.account_key),
        sas_token=_secret(azure.sas_token),
        client_id=azure.client_id,
        client_secret=_secret(azure.client_secret),
        tenant_id=azure.tenant_id,
        federated_token_file=azure.federated_token_file,
        endpoint_url=azure.endpoint_url,
        ca_bundle=azure.ca_bundle,
        access_tier=azure.access_tier,
        tags=tuple(sorted(azure.tags.items())),
        read_timeout=silence,
    )


def _secret(reference: SecretRef | None) -> str | None:
    return None if reference is None else reference.resolve()


def _credentials(s3: S3Config) -> Credentials | None:
    if s3.access_key_id is None or s3.secret_access_key is None:
        return None
    token = s3.session_token.resolve() if s3.session_token is not None else None
    return Credentials(s3.access_key_id.resolve(), s3.secret_access_key.resolve(), token)


def range_reader(archive: ArchiveAccess, topic: str) -> ReadRange:
    """Return a function that reads ranges of a topic's objects."""
    deadline = archive.provider.endpoint(topic).deadline
    return partial(_read, archive.store(topic), deadline)


def range_filler(archive: ArchiveAccess, topic: str) -> FillRange:
    """Return a function that reads ranges of a topic's objects into memory of the caller."""
    deadline = archive.provider.endpoint(topic).deadline
    return partial(_fill, archive.store(topic), deadline)


def _fill(
    store: RemoteStorage,
    deadline: AttemptDeadline,
    row: ObjectSummary,
    start: int,
    buffer: memoryview,
) -> int:
    # With the same condition as `_read`.
    key, first, end = located(row, start, start + len(buffer))
    room = buffer[: end - first]
    return read_into(store, key, first, room, condition=IfMatch(row.etag), deadline=deadline)


def _read(
    store: RemoteStorage, deadline: AttemptDeadline, row: ObjectSummary, start: int, end: int
) -> bytes:
    # With If-Match on the listed version: bytes of two versions of an object are never mixed.
    key, first, last = located(row, start, end)
    return read_range(store, key, first, last, condition=IfMatch(row.etag), deadline=deadline)

"""From the configuration to open stores: what every command that touches the archive needs."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from sidetier.config.contradictions import file_root
from sidetier.config.model import Config
from sidetier.config.s3 import S3Config
from sidetier.config.storage import StorageTarget
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.factory import open_storage
from sidetier.storage.observing import RequestObserver
from sidetier.storage.port import ChecksumAlgorithm, RemoteStorage
from sidetier.storage.provider import OpenStores, PatternEndpointProvider
from sidetier.storage.settings import (
    AttemptDeadline,
    Credentials,
    FsspecSettings,
    RetryPolicy,
    S3Settings,
    StorageEndpoint,
)

_HASTY_ATTEMPTS: Final = 3
_HASTY_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class ArchiveAccess:
    """The archive of the configured cluster: open stores by topic, and how keys are made."""

    provider: PatternEndpointProvider
    stores: OpenStores
    layout: ArchiveLayout

    def store(self, topic: str) -> RemoteStorage:
        """The store of a topic."""
        return self.stores.of_topic(topic)


def layout_of(config: Config) -> ArchiveLayout:
    """How keys are made."""
    return ArchiveLayout(config.cluster.name, config.storage.prefix_entropy_bits)


def endpoint_provider(config: Config, connections: int = 16) -> PatternEndpointProvider:
    """Where each topic is stored; the same for uploader, consumer and pipeline.

    Raises:
        ConfigurationError: a secret cannot be read.
    """
    storage = config.storage
    default = _endpoint(config, StorageTarget(storage.url, storage.s3), connections)
    overrides = [
        (
            other.topics,
            _endpoint(config, StorageTarget(other.url, storage.merged(other.s3)), connections),
        )
        for other in storage.overrides
    ]
    return PatternEndpointProvider(default, overrides)


@contextmanager
def open_archive(
    config: Config,
    *,
    connections: int = 16,
    observer: RequestObserver | None = None,
    stop: threading.Event | None = None,
) -> Iterator[ArchiveAccess]:
    """The archive, closed at the end; `connections` is how many requests may be made at once."""
    provider = endpoint_provider(config, connections)
    stores = OpenStores(
        provider, lambda endpoint: open_storage(endpoint, observer=observer, stop=stop)
    )
    try:
        yield ArchiveAccess(provider, stores, layout_of(config))
    finally:
        stores.close()


@dataclass(frozen=True, slots=True)
class EveryStore:
    """Every store that is configured."""

    provider: PatternEndpointProvider
    by_endpoint: Mapping[StorageEndpoint, RemoteStorage]

    def of_topic(self, topic: str) -> RemoteStorage:
        """The store of a topic."""
        return self.by_endpoint[self.provider.endpoint(topic)]


@contextmanager
def open_every_store(config: Config, *, connections: int = 16) -> Iterator[EveryStore]:
    """Every store that is configured, to be read; closed at the end.

    Raises:
        ConfigurationError: a directory that is to be read does not exist.
    """
    provider = endpoint_provider(config, connections)
    for endpoint in provider.endpoints:
        require_directory(endpoint.url)
    stores: dict[StorageEndpoint, RemoteStorage] = {}
    with ExitStack() as stack:
        for endpoint in provider.endpoints:
            stores[endpoint] = open_storage(endpoint)
            stack.callback(stores[endpoint].close)
        yield EveryStore(provider, stores)


def hasty(config: Config) -> Config:
    """The configuration for somebody who waits at a terminal: a store that is away is said soon."""
    retry, deadline = config.storage.retry, config.storage.deadline
    attempts = min(retry.attempts, _HASTY_ATTEMPTS)
    changes = {
        "retry": retry.model_copy(
            update={"attempts": attempts, "max_elapsed": min(retry.max_elapsed, _HASTY_SECONDS)}
        ),
        "deadline": deadline.model_copy(
            update={
                "base": min(deadline.base, _HASTY_SECONDS),
                "silence": min(deadline.silence, _HASTY_SECONDS / attempts),
            }
        ),
    }
    return config.model_copy(update={"storage": config.storage.model_copy(update=changes)})


def require_directory(url: str) -> None:
    """Refuse a `file://` store that does not exist: opening it would make it."""
    root = file_root(url)
    if root is not None and not root.is_dir():
        raise ConfigurationError(
            f"storage.url {url}: there is no such directory; nothing has been stored there yet"
        )


def require_fencing(config: Config, store: RemoteStorage, url: str) -> None:
    """Refuse a store that cannot keep two writers apart, unless that was acknowledged."""
    if store.capabilities.conditional_writes or config.storage.fencing != "required":
        return
    raise ConfigurationError(
        f"storage.url {url}: this store has no conditional writes, so two sidecars that both "
        "believe they lead could overwrite each other; set storage.fencing: "
        "unfenced_acknowledged to use it all the same"
    )


def _endpoint(config: Config, target: StorageTarget, connections: int) -> StorageEndpoint:
    retry, deadline = config.storage.retry, config.storage.deadline
    return StorageEndpoint(
        url=target.url,
        s3=_s3(target.s3, connections, deadline.silence),
        fsspec=FsspecSettings(tuple(sorted(config.storage.fsspec_options().items()))),
        retry=RetryPolicy(retry.attempts, retry.first_delay, retry.max_delay, retry.max_elapsed),
        deadline=AttemptDeadline(deadline.base, deadline.min_bytes_per_second, deadline.connect),
    )


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
        checksum=ChecksumAlgorithm(s3.checksum),
        multipart_threshold=s3.multipart_threshold,
        part_size=s3.part_size,
        max_connections=connections,
        read_timeout=silence,
    )


def _credentials(s3: S3Config) -> Credentials | None:
    if s3.access_key_id is None or s3.secret_access_key is None:
        return None
    token = s3.session_token.resolve() if s3.session_token is not None else None
    return Credentials(s3.access_key_id.resolve(), s3.secret_access_key.resolve(), token)

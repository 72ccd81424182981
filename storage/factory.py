"""Open the store of an endpoint. Drivers are imported only when needed."""

import re
import threading
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from sidetier.segments.errors import ConfigurationError
from sidetier.segments.keys import topic_of_key
from sidetier.storage.encrypting import EncryptingStorage
from sidetier.storage.port import RemoteStorage
from sidetier.storage.retrying import RetryingStorage
from sidetier.storage.settings import EncryptionSettings, StorageEndpoint
from sidetier.storage.store_calls import RequestObserver, StoreCalls

if TYPE_CHECKING:
    from sidetier.storage.encryption_keys import Keyring

_DRIVERS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "hdfs": ("hdfs", ("hdfs_native",)),
}
"""URL scheme to the extra of this package that installs the driver, and the driver's modules."""


def check_driver(url: str) -> None:
    """Check that the driver of a storage URL is installed, without importing it.

    Raises:
        ConfigurationError: The driver is missing; the text names the package to install.
    """
    extra, modules = _DRIVERS.get(urlsplit(url).scheme, ("", ()))
    for name in modules:
        if find_spec(name) is None:
            raise ConfigurationError(
                f"storage url {url!r} needs the package {name}, which is not installed: "
                f"pip install 'sidetier[{extra}]'"
            )


def open_storage(
    endpoint: StorageEndpoint,
    *,
    observer: RequestObserver | None = None,
    stop: threading.Event | None = None,
    calls: StoreCalls | None = None,
) -> RemoteStorage:
    """Open the store of an endpoint, with encryption and retries.

    No request is made; the directory of a `file://` URL is created.

    Args:
        endpoint: URL and options of the store.
        observer: Receives every attempt.
        stop: Ends the pauses between attempts.
        calls: Lists the requests in progress.

    Raises:
        ConfigurationError: The URL or an option can never work, or the driver is not installed.
        StorageError: The directory of a `file://` URL cannot be created.
    """
    return RetryingStorage(
        _encrypting(open_plain(endpoint), endpoint.encryption),
        endpoint.retry,
        observer=observer,
        stop=stop,
        calls=calls,
        url=endpoint.url,
    )


def open_plain(endpoint: StorageEndpoint) -> RemoteStorage:
    """Open the store without encryption and retries: each request is tried once."""
    scheme = urlsplit(endpoint.url).scheme
    if scheme not in _OPENERS:
        from sidetier.config.storage_urls import wrong_scheme  # noqa: PLC0415 - loads pydantic

        raise ConfigurationError(f"storage url {endpoint.url!r} {wrong_scheme(endpoint.url)}")
    return _OPENERS[scheme](endpoint)


def check_encryption(settings: EncryptionSettings) -> None:
    """Check that the key that encrypts can wrap and unwrap a data key; asks KMS twice.

    Raises:
        ConfigurationError: The package that encrypts is not installed.
        StorageError: The key cannot be used, or KMS does not answer now.
    """
    _keyring(settings).check()


def _encrypting(store: RemoteStorage, settings: EncryptionSettings | None) -> RemoteStorage:
    if settings is None:
        # Still needed: listings show the sizes of encrypted objects, and a read names their key.
        return EncryptingStorage(store)
    return EncryptingStorage(
        store, _keyring(settings), _selector(settings.topics), _selector(settings.refuse_plain)
    )


def _selector(topics: Iterable[str]) -> Callable[[str], bool]:
    """Return whether a key belongs to a segment of these topics, which are patterns."""
    patterns = [re.compile(pattern) for pattern in topics]

    def selects(key: str) -> bool:
        topic = topic_of_key(key)
        return topic is not None and any(pattern.fullmatch(topic) for pattern in patterns)

    return selects


def _keyring(settings: EncryptionSettings) -> "Keyring":
    if find_spec("cryptography") is None:
        raise ConfigurationError(
            "storage.encryption needs the package cryptography, which is not installed: "
            "pip install 'sidetier[encryption]'"
        )
    from sidetier.storage.encryption_keys import Keyring  # noqa: PLC0415

    return Keyring(settings)


# The openers import their drivers: a sidecar uses one of them, and a driver takes megabytes.


def _open_s3(endpoint: StorageEndpoint) -> RemoteStorage:
    from sidetier.storage.s3 import S3Storage  # noqa: PLC0415

    url = urlsplit(endpoint.url)
    if not url.netloc:
        raise ConfigurationError(
            f"storage url {endpoint.url!r} names no bucket: s3://bucket/prefix"
        )
    return S3Storage(
        url.netloc,
        unquote(url.path),
        endpoint.s3,
        endpoint.deadline,
    )


def _open_object_store(endpoint: StorageEndpoint) -> RemoteStorage:
    from sidetier.storage.object_clients import azure_clients, gcs_clients  # noqa: PLC0415
    from sidetier.storage.object_store import ObjectStorage  # noqa: PLC0415

    clients = (
        gcs_clients(endpoint.url, endpoint.gcs, endpoint.deadline)
        if urlsplit(endpoint.url).scheme == "gs"
        else azure_clients(endpoint.url, endpoint.azure, endpoint.deadline)
    )
    return ObjectStorage(clients, endpoint.deadline)


def _open_local(endpoint: StorageEndpoint) -> RemoteStorage:
    from sidetier.storage.local import LocalStorage  # noqa: PLC0415

    url = urlsplit(endpoint.url)
    if url.netloc or not url.path.strip("/"):
        raise ConfigurationError(
            f"storage url {endpoint.url!r} must name an absolute directory: file:///path"
        )
    root = Path(unquote(url.path))
    return LocalStorage(root, endpoint.local)


def _open_hdfs(endpoint: StorageEndpoint) -> RemoteStorage:
    check_driver(endpoint.url)
    from sidetier.storage.hdfs import HdfsStorage  # noqa: PLC0415

    return HdfsStorage(endpoint.url, endpoint.hdfs, endpoint.deadline)


def _open_memory(endpoint: StorageEndpoint) -> RemoteStorage:
    from sidetier.storage.fake import memory_storage  # noqa: PLC0415

    return memory_storage(endpoint.url)


_OPENERS: Final[dict[str, Callable[[StorageEndpoint], RemoteStorage]]] = {
    "s3": _open_s3,
    "file": _open_local,
    "gs": _open_object_store,
    "abfs": _open_object_store,
    "hdfs": _open_hdfs,
    "memory": _open_memory,
}

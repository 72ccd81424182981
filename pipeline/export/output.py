"""The store that an export writes to."""

from collections.abc import Iterator
from contextlib import contextmanager

from sidetier.archive.access import endpoint_provider
from sidetier.config.storage import StorageConfig
from sidetier.segments.errors import ConfigurationError
from sidetier.storage.factory import open_storage
from sidetier.storage.port import RemoteStorage


@contextmanager
def open_output(config: StorageConfig) -> Iterator[RemoteStorage]:
    """Open the store; it is closed at the end of the `with` block.

    Raises:
        ConfigurationError: a secret cannot be read in this process, or a storage driver is missing.
    """
    store = open_storage(endpoint_provider(config).endpoints[0])
    try:
        yield store
    finally:
        store.close()


def require_fencing(target: RemoteStorage, config: StorageConfig) -> None:
    """Raise ConfigurationError if the target store has no conditional puts.

    Without them two exports of the same output could overwrite each other's files and state. The
    setting `fencing: unfenced_acknowledged` accepts this.
    """
    if target.capabilities.conditional_writes or config.fencing != "required":
        return
    raise ConfigurationError(
        f"{config.url}: this store has no conditional writes, so two exports at once could spoil "
        "each other's files and state; set fencing: unfenced_acknowledged for the output to use it "
        "all the same"
    )

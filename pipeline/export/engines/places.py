"""The stores and servers that a task connects to, as a value without secrets.

Each process resolves secrets itself, so the value can be sent to Spark executors.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sidetier.archive.access import ArchiveAccess, endpoint_provider, open_archive
from sidetier.config.cluster import BrokerConfig
from sidetier.config.storage import StorageConfig
from sidetier.pipeline.export.files.values.registry import RegistryConfig
from sidetier.segments.errors import ConfigurationError
from sidetier.storage.factory import open_storage
from sidetier.storage.port import RemoteStorage


@dataclass(frozen=True, slots=True)
class Places:
    """A cluster's archive, the export's target store, the brokers, and the schema registry."""

    cluster: str
    archive: StorageConfig
    target: StorageConfig
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    registry: RegistryConfig | None = None

    @contextmanager
    def open(self) -> Iterator[tuple[ArchiveAccess, RemoteStorage]]:
        """Open the archive and the target store; both are closed at the end of the `with` block.

        Raises:
            ConfigurationError: a secret cannot be read in this process, or a storage driver is
                missing.
        """
        with open_archive(self.cluster, self.archive) as access:
            target = open_storage(endpoint_provider(self.target).endpoints[0])
            try:
                yield access, target
            finally:
                target.close()


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

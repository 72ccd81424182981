"""Where a task finds what it needs: no secret is in it, each process resolves its own."""

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
    """The archive of a cluster, the store that its export goes to, the cluster itself, and its
    schema registry.
    """

    cluster: str
    archive: StorageConfig
    target: StorageConfig
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    registry: RegistryConfig | None = None

    @contextmanager
    def open(self) -> Iterator[tuple[ArchiveAccess, RemoteStorage]]:
        """Both, closed at the end.

        Raises:
            ConfigurationError: a secret cannot be read here, or a driver is missing.
        """
        with open_archive(self.cluster, self.archive) as access:
            target = open_storage(endpoint_provider(self.target).endpoints[0])
            try:
                yield access, target
            finally:
                target.close()


def require_fencing(target: RemoteStorage, config: StorageConfig) -> None:
    """Raises ConfigurationError for a store on which two exports could not be kept apart."""
    if target.capabilities.conditional_writes or config.fencing != "required":
        return
    raise ConfigurationError(
        f"{config.url}: this store has no conditional writes, so two exports at once could spoil "
        "each other's files and state; set fencing: unfenced_acknowledged for the output to use it "
        "all the same"
    )

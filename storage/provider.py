"""Which topic is stored where: the port, the built-in provider, and plug-ins."""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Final, Protocol, runtime_checkable

from sidetier.segments.errors import ConfigurationError
from sidetier.storage.port import RemoteStorage
from sidetier.storage.settings import StorageEndpoint

ENTRY_POINT_GROUP: Final = "sidetier.storage_endpoints"
"""A plug-in registers a callable that takes its options (text to text) and returns a provider."""


@runtime_checkable
class StorageEndpointProvider(Protocol):
    """Maps topics to places. The same topic always gets the same endpoint, in the uploader, the
    consumer and the pipeline alike; may be called from many threads at once.
    """

    def endpoint(self, topic: str) -> StorageEndpoint:
        """Where the topic is stored.

        Raises:
            ConfigurationError: nowhere.
        """
        ...


class PatternEndpointProvider:
    """A default, and overrides by topic pattern: the first that matches the whole name wins."""

    def __init__(
        self, default: StorageEndpoint, overrides: Sequence[tuple[str, StorageEndpoint]] = ()
    ) -> None:
        """Raises ConfigurationError for a pattern that is no regular expression."""
        self._default = default
        self._overrides = [(_compiled(pattern), endpoint) for pattern, endpoint in overrides]

    @property
    def default(self) -> StorageEndpoint:
        """Where a topic without an override is stored, and what belongs to no topic."""
        return self._default

    @property
    def endpoints(self) -> tuple[StorageEndpoint, ...]:
        """Every place there is, without repeats."""
        return tuple(dict.fromkeys([self._default, *(other for _, other in self._overrides)]))

    def endpoint(self, topic: str) -> StorageEndpoint:
        """See the port."""
        for pattern, endpoint in self._overrides:
            if pattern.fullmatch(topic):
                return endpoint
        return self._default


def load_provider(name: str, options: Mapping[str, str]) -> StorageEndpointProvider:
    """A provider from a plug-in, by the name of its entry point.

    Raises:
        ConfigurationError: no package registers the name, or it cannot be loaded or built.
    """
    found = entry_points(group=ENTRY_POINT_GROUP)
    if name not in found.names:
        known = ", ".join(sorted(found.names)) or "none"
        raise ConfigurationError(
            f"storage endpoint provider {name!r} is not installed; there is: {known}"
        )
    try:
        provider = found[name].load()(options)
    except Exception as error:
        raise ConfigurationError(f"storage endpoint provider {name!r}: {error}") from error
    if not isinstance(provider, StorageEndpointProvider):
        raise ConfigurationError(f"storage endpoint provider {name!r} has no method `endpoint`")
    return provider


class OpenStores:
    """One open store per endpoint, opened when first asked for."""

    def __init__(
        self,
        provider: StorageEndpointProvider,
        open_endpoint: Callable[[StorageEndpoint], RemoteStorage],
    ) -> None:
        self._provider = provider
        self._open = open_endpoint
        self._guard = threading.Lock()
        self._stores: dict[StorageEndpoint, RemoteStorage] = {}

    def of_topic(self, topic: str) -> RemoteStorage:
        """The store of a topic; raises what opening raises."""
        return self.at(self._provider.endpoint(topic))

    def at(self, endpoint: StorageEndpoint) -> RemoteStorage:
        """The store at one place; raises what opening raises."""
        with self._guard:
            if endpoint not in self._stores:
                self._stores[endpoint] = self._open(endpoint)
            return self._stores[endpoint]

    def close(self) -> None:
        """Close all of them; may be called twice."""
        with self._guard:
            stores, self._stores = list(self._stores.values()), {}
        for store in stores:
            store.close()


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigurationError(f"topic pattern {pattern!r}: {error}") from error

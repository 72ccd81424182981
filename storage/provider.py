"""Mapping of topics to storage endpoints."""

import re
import threading
from collections.abc import Callable, Sequence
from functools import cache

from sidetier.config.storage_urls import PlugIn
from sidetier.segments.errors import ConfigurationError
from sidetier.storage.port import RemoteStorage
from sidetier.storage.settings import StorageEndpoint


class PatternEndpointProvider:
    """Selects the storage endpoint of a topic. May be called from many threads at the same time.

    The first override whose pattern matches the whole topic name wins, then the plug-in, then the
    default.

    Args:
        default: Endpoint of all other topics, and of objects that belong to no topic.
        overrides: Regular expressions and their endpoints.
        plug_in: Returns a topic's storage URL; None for the default.
        at: Returns the endpoint of such a URL.

    Raises:
        ConfigurationError: A pattern is not a valid regular expression.
    """

    def __init__(
        self,
        default: StorageEndpoint,
        overrides: Sequence[tuple[str, StorageEndpoint]] = (),
        plug_in: PlugIn | None = None,
        at: Callable[[str], StorageEndpoint] = StorageEndpoint,
    ) -> None:
        self._default = default
        self._overrides = [(_compiled(pattern), endpoint) for pattern, endpoint in overrides]
        self._plug_in = plug_in
        self._at = cache(at)

    @property
    def default(self) -> StorageEndpoint:
        """Endpoint of topics without an override, and of objects that belong to no topic."""
        return self._default

    @property
    def endpoints(self) -> tuple[StorageEndpoint, ...]:
        """All endpoints, without duplicates; raises as `endpoint`."""
        endpoints = [self._default, *(other for _, other in self._overrides)]
        if self._plug_in is not None:
            endpoints += [self._at(url) for url in self._plug_in.urls()]
        return tuple(dict.fromkeys(endpoints))

    def endpoint(self, topic: str) -> StorageEndpoint:
        """Return the endpoint of a topic; always the same one.

        Raises:
            ConfigurationError: The plug-in fails.
        """
        for pattern, endpoint in self._overrides:
            if pattern.fullmatch(topic):
                return endpoint
        url = None if self._plug_in is None else self._plug_in.url(topic)
        return self._default if url is None else self._at(url)


class OpenStores:
    """One open store per endpoint, opened on first use."""

    def __init__(
        self,
        provider: PatternEndpointProvider,
        open_endpoint: Callable[[StorageEndpoint], RemoteStorage],
    ) -> None:
        self._provider = provider
        self._open = open_endpoint
        self._guard = threading.Lock()
        self._stores: dict[StorageEndpoint, RemoteStorage] = {}

    def of_topic(self, topic: str) -> RemoteStorage:
        """Return the store of a topic; raises the errors of opening it."""
        return self.at(self._provider.endpoint(topic))

    def at(self, endpoint: StorageEndpoint) -> RemoteStorage:
        """Return the store of an endpoint; raises the errors of opening it."""
        with self._guard:
            # Under the lock, so that two threads do not open two stores with connections of their
            # own. Opening makes no request.
            if endpoint not in self._stores:
                self._stores[endpoint] = self._open(endpoint)
            return self._stores[endpoint]

    def close(self) -> None:
        """Close all stores. May be called twice."""
        with self._guard:
            stores, self._stores = list(self._stores.values()), {}
        for store in stores:
            store.close()


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigurationError(f"topic pattern {pattern!r}: {error}") from error

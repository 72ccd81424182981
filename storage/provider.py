"""Which topic is stored where."""

import re
import threading
from collections.abc import Callable, Sequence
from functools import cache

from sidetier.config.storage_urls import PlugIn
from sidetier.segments.errors import ConfigurationError
from sidetier.storage.port import RemoteStorage
from sidetier.storage.settings import StorageEndpoint


class PatternEndpointProvider:
    """A default, overrides by topic pattern (the first that matches the whole name wins), and a
    plug-in for the topics that none matches. May be called from many threads at once.

    Args:
        default: Where other topics are stored, and what belongs to no topic.
        overrides: Patterns and places.
        plug_in: Says at which url a topic is stored.
        at: The place of such a url.

    Raises:
        ConfigurationError: a pattern is no regular expression.
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
        """Where a topic without an override is stored, and what belongs to no topic."""
        return self._default

    @property
    def endpoints(self) -> tuple[StorageEndpoint, ...]:
        """Every place there is, without repeats; raises as `endpoint`."""
        found = [self._default, *(other for _, other in self._overrides)]
        if self._plug_in is not None:
            found += [self._at(url) for url in self._plug_in.urls()]
        return tuple(dict.fromkeys(found))

    def endpoint(self, topic: str) -> StorageEndpoint:
        """Where the topic is stored: always the same place.

        Raises:
            ConfigurationError: the plug-in fails.
        """
        for pattern, endpoint in self._overrides:
            if pattern.fullmatch(topic):
                return endpoint
        url = None if self._plug_in is None else self._plug_in.url(topic)
        return self._default if url is None else self._at(url)


class OpenStores:
    """One open store per endpoint, opened when first asked for."""

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

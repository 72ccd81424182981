"""Urls of stores, and plug-ins that say at which url a topic is stored.

A package registers one as an entry point of the group `sidetier.storage_endpoints`: a callable
that takes its options, text by text, and returns an object with the methods of `TopicUrls`.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Annotated, Final, Protocol, runtime_checkable
from urllib.parse import urlsplit

from pydantic import AfterValidator

from sidetier.segments.errors import ConfigurationError

SCHEMES: Final = ("s3", "file", "gs", "abfs", "hdfs", "memory")


def storage_url(value: str) -> str:
    """The url without trailing slashes; raises ValueError with what is wrong."""
    known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
    parts = urlsplit(value)
    if "://" not in value or parts.scheme not in SCHEMES:
        raise ValueError(f"must begin with one of {known}")
    if parts.username or parts.password:
        raise ValueError("must not hold a user or a password")
    if "?" in value or "#" in value:
        raise ValueError("must not hold ? or #")
    if parts.scheme == "file" and (parts.netloc or not parts.path.strip("/")):
        raise ValueError("must name an absolute directory: file:///path/to/archive")
    if parts.scheme in ("s3", "gs", "abfs") and not parts.netloc:
        raise ValueError(f"must name a bucket: {parts.scheme}://bucket/prefix")
    return f"{parts.scheme}://{value.split('://', 1)[1].rstrip('/')}"


StorageUrl = Annotated[str, AfterValidator(storage_url)]

ENTRY_POINT_GROUP: Final = "sidetier.storage_endpoints"


@runtime_checkable
class TopicUrls(Protocol):
    """Where topics are stored; may be called from many threads at once.

    Sidecars, consumers and jobs each load it. All must get the same answers, and the url of a topic
    must never change: what was stored before would no longer be found.
    """

    def url(self, topic: str) -> str | None:
        """The storage url of a topic, one of `urls`; None for that of the settings.

        It is asked for each topic once in a process. An exception counts as a wrong setting.
        """
        ...

    def urls(self) -> Iterable[str]:
        """Every url that `url` returns for any topic; each is checked when a sidecar starts."""
        ...


class PlugIn:
    """A loaded plug-in, whose answers are checked and remembered.

    Args:
        name: Of its entry point.
        inner: What the entry point has returned.
    """

    def __init__(self, name: str, inner: TopicUrls) -> None:
        self._name = name
        self._inner = inner
        self._known: dict[str, str | None] = {}

    def url(self, topic: str) -> str | None:
        """See `TopicUrls`.

        Raises:
            ConfigurationError: the plug-in fails, or its answer is not among its `urls`.
        """
        if topic not in self._known:
            try:
                given = self._inner.url(topic)
                url = None if given is None else storage_url(given)
            except Exception as error:
                raise self._failed(f"topic {topic}: {error}") from error
            if url is not None and url not in self.urls():
                raise self._failed(f"topic {topic}: {url!r} is not one of its urls")
            self._known[topic] = url
        return self._known[topic]

    def urls(self) -> tuple[str, ...]:
        """See `TopicUrls`; raises as `url`."""
        try:
            return tuple(storage_url(url) for url in self._inner.urls())
        except Exception as error:
            raise self._failed(str(error)) from error

    def _failed(self, why: str) -> ConfigurationError:
        return ConfigurationError(f"storage.provider {self._name}: {why}")


def load_plug_in(name: str, options: Mapping[str, str]) -> PlugIn:
    """The plug-in that is registered under the name; the same object for the same options.

    Raises:
        ConfigurationError: no package registers the name, or it cannot be loaded or made.
    """
    return _loaded(name, tuple(sorted(options.items())))


@cache
def _loaded(name: str, options: tuple[tuple[str, str], ...]) -> PlugIn:
    found = entry_points(group=ENTRY_POINT_GROUP)
    if name not in found.names:
        known = ", ".join(sorted(found.names)) or "none"
        raise ConfigurationError(
            f"storage.provider.name: {name!r} is not installed; installed: {known}. A package "
            f"registers it as an entry point of the group {ENTRY_POINT_GROUP}"
        )
    try:
        inner = found[name].load()(dict(options))
    except Exception as error:
        raise ConfigurationError(f"storage.provider {name}: {error}") from error
    if not isinstance(inner, TopicUrls):
        raise ConfigurationError(f"storage.provider {name}: it has no methods `url` and `urls`")
    return PlugIn(name, inner)

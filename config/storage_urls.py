"""URLs of stores, and plug-ins that return the URL of a topic.

A package registers a plug-in as an entry point of the group `sidetier.storage_endpoints`: a
callable that takes its options (a mapping of text to text) and returns an object with the methods
of `TopicUrls`.
"""

import os
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Final, Protocol, runtime_checkable
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator

from sidetier.segments.errors import ConfigurationError

SCHEMES: Final = ("s3", "file", "gs", "abfs", "hdfs", "memory")


def wrong_scheme(value: str) -> str:
    """Return what is wrong with a URL without a known scheme."""
    known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
    directory = f"; for a directory: file://{value}" if value.startswith("/") else ""
    return f"must begin with one of {known}{directory}"


def file_root(url: str) -> Path | None:
    """Return the directory of a `file://` URL; None for another store."""
    parts = urlsplit(url)
    return Path(os.path.normpath(unquote(parts.path))) if parts.scheme == "file" else None


def storage_url(value: str) -> str:
    """Return the URL without trailing slashes; raise ValueError with the problem."""
    parts = urlsplit(value)
    if "://" not in value or parts.scheme not in SCHEMES:
        raise ValueError(wrong_scheme(value))
    if parts.username or parts.password:
        raise ValueError("must not contain a user or a password")
    if "?" in value or "#" in value:
        raise ValueError("must not contain ? or #")
    if parts.scheme == "file" and (parts.netloc or not parts.path.strip("/")):
        raise ValueError("must name an absolute directory: file:///path/to/archive")
    if parts.scheme in ("s3", "gs", "abfs") and not parts.netloc:
        raise ValueError(f"must name a bucket: {parts.scheme}://bucket/prefix")
    # `urlsplit` has made the scheme lower-case.
    return f"{parts.scheme}://{value.split('://', 1)[1].rstrip('/')}"


StorageUrl = Annotated[str, AfterValidator(storage_url)]

ENTRY_POINT_GROUP: Final = "sidetier.storage_endpoints"


@runtime_checkable
class TopicUrls(Protocol):
    """Location of topics. May be called from many threads at once.

    Sidecars, consumers and jobs each load the plug-in. All must get the same answers, and the URL
    of a topic must never change: readers would not find the objects at the old URL.
    """

    def url(self, topic: str) -> str | None:
        """Return the URL of a topic, one of `urls`; None for the URL in the settings.

        Called once per topic and process. An exception is reported as a wrong setting.
        """
        ...

    def urls(self) -> Iterable[str]:
        """Return every URL that `url` returns for any topic; a sidecar checks each at its start."""
        ...


class PlugIn:
    """A loaded plug-in, whose answers are checked and cached.

    Args:
        name: name of its entry point.
        inner: object that the entry point has returned.
    """

    def __init__(self, name: str, inner: TopicUrls) -> None:
        self._name = name
        self._inner = inner
        self._known: dict[str, str | None] = {}

    def url(self, topic: str) -> str | None:
        """Ask the plug-in once for each topic.

        Raises:
            ConfigurationError: the plug-in fails, or its answer is not among its `urls`.
        """
        if topic not in self._known:
            try:
                given = self._inner.url(topic)
                url = None if given is None else storage_url(given)
            except Exception as error:
                raise self._failed(f"topic {topic}: {error}") from error
            # The start checks only `urls`; a URL outside would be an unchecked store, found later.
            if url is not None and url not in self.urls():
                raise self._failed(f"topic {topic}: {url!r} is not one of its urls")
            self._known[topic] = url
        return self._known[topic]

    def urls(self) -> tuple[str, ...]:
        """Ask the plug-in; raises as `url`."""
        try:
            return tuple(storage_url(url) for url in self._inner.urls())
        except Exception as error:
            raise self._failed(str(error)) from error

    def _failed(self, why: str) -> ConfigurationError:
        return ConfigurationError(f"storage.provider {self._name}: {why}")


def load_plug_in(name: str, options: Mapping[str, str]) -> PlugIn:
    """Return the plug-in that is registered under the name; the same object for the same options.

    Raises:
        ConfigurationError: no package registers the name, or the plug-in cannot be loaded or
            created.
    """
    return _loaded(name, tuple(sorted(options.items())))


# Cached: `url` remembers each topic's answer, so the object must be the same in a process.
@cache
def _loaded(name: str, options: tuple[tuple[str, str], ...]) -> PlugIn:
    plug_ins = entry_points(group=ENTRY_POINT_GROUP)
    if name not in plug_ins.names:
        known = ", ".join(sorted(plug_ins.names)) or "none"
        raise ConfigurationError(
            f"storage.provider.name: {name!r} is not installed; installed: {known}. A package "
            f"registers it as an entry point of the group {ENTRY_POINT_GROUP}"
        )
    try:
        inner = plug_ins[name].load()(dict(options))
    except Exception as error:
        raise ConfigurationError(f"storage.provider {name}: {error}") from error
    if not isinstance(inner, TopicUrls):
        raise ConfigurationError(f"storage.provider {name}: it has no methods `url` and `urls`")
    return PlugIn(name, inner)

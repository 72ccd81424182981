"""Facts about each configured store: whether it answers, its layout note, conditions and clock."""

import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from email.message import Message
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Final
from urllib.parse import urlsplit

from sidetier.archive.objects.layout import LayoutNote, read_note
from sidetier.cli.stores import layout_of, open_every_store, with_short_timeouts
from sidetier.config.model import Config
from sidetier.segments.errors import PreconditionFailedError, SidetierError
from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import IfAbsent, RemoteStorage
from sidetier.storage.settings import StorageEndpoint
from sidetier.uploader.clock import SYSTEM_CLOCK

_SECONDS: Final = 5.0
_DATE_IS_CUT: Final = 0.5
"""A Date has whole seconds, so it is half a second too early on average."""


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """One configured store.

    Attributes:
        error: Why the store does not answer.
        honours_conditions: Whether it honours conditional writes; None if that was not tried.
        skew_seconds: Seconds by which its clock is ahead of this host's.
    """

    url: str
    error: str | None = None
    note: LayoutNote | None = None
    declares_conditions: bool = True
    honours_conditions: bool | None = None
    skew_seconds: float | None = None


def store_facts(config: Config, *, try_conditions: bool = False) -> Iterator[StoreFacts]:
    """Ask each configured store; yield its facts.

    Args:
        config: The stores, and the archive's layout.
        try_conditions: Send a PUT of the store's own layout note over itself.

    Raises:
        SidetierError: A store cannot be opened, such as a missing directory or driver.
    """
    with open_every_store(with_short_timeouts(config)) as stores:
        for endpoint, store in stores.by_endpoint.items():
            yield _store(endpoint, store, layout_of(config), try_conditions=try_conditions)


def _store(
    endpoint: StorageEndpoint, store: RemoteStorage, layout: ArchiveLayout, *, try_conditions: bool
) -> StoreFacts:
    facts = StoreFacts(
        endpoint.url,
        declares_conditions=store.capabilities.conditional_writes,
        skew_seconds=skew_of(endpoint),
    )
    try:
        note = read_note(store, layout)
        honours = _honours(store, layout, note) if try_conditions else None
    except SidetierError as error:
        return replace(facts, error=str(error))
    return replace(facts, note=note, honours_conditions=honours)


def _honours(store: RemoteStorage, layout: ArchiveLayout, note: LayoutNote | None) -> bool | None:
    """Return whether the store honours conditional writes; None without a layout note.

    Put the layout note under its own key, on condition that the key is absent. Only a store that
    ignores the condition writes it, and it writes the same bytes.
    """
    if note is None:
        return None
    key = layout.layout_key()
    try:
        store.put_object(key, BytesBody(store.get_object(key).data), condition=IfAbsent())
    except PreconditionFailedError:
        return True
    return False


def skew_of(endpoint: StorageEndpoint) -> float | None:
    """Return the seconds by which an S3 store is ahead of this host.

    None for other stores, and without an answer. Sends one request without credentials: only the
    Date of the answer matters, not its status.
    """
    if urlsplit(endpoint.url).scheme != "s3":
        return None
    region = endpoint.s3.region or "us-east-1"
    url = endpoint.s3.endpoint_url or f"https://s3.{region}.amazonaws.com"
    before = SYSTEM_CLOCK.wall()
    headers = _headers(url, endpoint)
    after = SYSTEM_CLOCK.wall()
    return None if headers is None else skew(headers.get("Date"), before, after)


def skew(date: str | None, before: float, after: float) -> float | None:
    """Return the seconds ahead, from a Date written between two moments (in s since 1970)."""
    try:
        store_time = parsedate_to_datetime(date or "").timestamp() + _DATE_IS_CUT
    except ValueError:
        return None
    # The store wrote the Date between the two moments. Their middle is the best guess.
    return store_time - (before + after) / 2


def _headers(url: str, endpoint: StorageEndpoint) -> Message | None:
    bundle = endpoint.s3.ca_bundle
    trust = ssl.create_default_context(cafile=None if bundle is None else str(bundle))
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=trust))
    try:
        with opener.open(urllib.request.Request(url, method="HEAD"), timeout=_SECONDS) as answer:  # noqa: S310 -- http or https, as configured
            return Message() if answer.headers is None else answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.headers
    except (OSError, HTTPException):
        return None

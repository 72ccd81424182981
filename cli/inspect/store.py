"""Facts about each configured store: whether it answers, its layout note, conditions and clock."""

import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from email.message import Message
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Final
from urllib.parse import urlsplit

from sidetier.archive.objects.layout import LayoutNote, other_archives, read_note
from sidetier.cli.inspect.time_limit import TimeLimit
from sidetier.cli.stores import open_every_store
from sidetier.config.model import Config
from sidetier.segments.errors import (
    PreconditionFailedError,
    RefusedConditionError,
    SidetierError,
)
from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import Condition, IfAbsent, IfMatch, PutOptions, RemoteStorage
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
        may_recover: Whether the same request can succeed later, without another setting.
        ignored_conditions: Headers of conditional writes that it ignores; None if that was not
            tried.
        refused_condition: Why the store refused an If-Match that holds; None if it did not, or if
            that was not tried.
        skew_seconds: Seconds by which its clock is ahead of this host's.
        other_archives: The `cluster.name`s of its other archives of the same Kafka cluster.
    """

    url: str
    error: str | None = None
    may_recover: bool = False
    note: LayoutNote | None = None
    declares_conditions: bool = True
    ignored_conditions: tuple[str, ...] | None = None
    refused_condition: str | None = None
    skew_seconds: float | None = None
    other_archives: tuple[str, ...] = ()


def store_facts(
    config: Config, kafka_cluster_id: str | None = None, *, try_conditions: bool = False
) -> Iterator[StoreFacts]:
    """Ask each configured store; yield its facts.

    Args:
        config: The stores, and the archive's layout.
        kafka_cluster_id: Kafka's id of this host's cluster; None if it is not known.
        try_conditions: Send PUTs of the store's own layout note over itself.

    Raises:
        SidetierError: A store cannot be opened, such as a missing directory or driver.
    """
    with open_every_store(config.with_short_timeouts()) as stores:
        for endpoint, store in stores.by_endpoint.items():
            facts = _store(endpoint, store, stores.layout, try_conditions=try_conditions)
            if facts.error is None and kafka_cluster_id is not None:
                with suppress(SidetierError):  # it has just answered
                    others = other_archives(store, stores.layout, kafka_cluster_id)
                    facts = replace(facts, other_archives=others)
            yield facts


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
        facts = replace(facts, note=note)
        if try_conditions and note is not None:
            key = layout.layout_key()
            facts = replace(
                facts,
                ignored_conditions=ignored_conditions(store, key),
                refused_condition=refused_condition(store, key),
            )
    except SidetierError as error:
        return replace(facts, error=str(error), may_recover=error.retry)
    return facts


def ignored_conditions(store: RemoteStorage, key: str) -> tuple[str, ...]:
    """Return the headers of conditional writes that the store ignores.

    Put the object under its own key, on condition that it has another version, and on condition
    that the key is absent. Only a store that ignores a condition writes it, and it writes the same
    bytes.
    """
    stored = store.get_object(key)
    conditions: dict[str, Condition] = {
        # First, because a write changes the etag.
        "If-Match": IfMatch(_other(stored.head.etag)),
        "If-None-Match": IfAbsent(),
    }
    ignored = []
    for name, condition in conditions.items():
        with suppress(PreconditionFailedError):
            store.put_object(key, BytesBody(stored.data), PutOptions(condition=condition))
            ignored.append(name)
    return tuple(ignored)


def refused_condition(store: RemoteStorage, key: str) -> str | None:
    """Return why the store refuses, or may refuse, to replace an object under an If-Match that
    holds; None if it does not.

    Writes the same bytes again.
    """
    stored = store.get_object(key)
    if stored.head.etag.startswith("W/"):
        return (
            f"the store answers with weak etags ({stored.head.etag}), such as behind a gateway "
            "that compresses answers: If-Match never holds for them, and they differ from those of "
            "listings"
        )
    try:
        store.put_object(
            key,
            BytesBody(stored.data),
            PutOptions(metadata=stored.head.metadata, condition=IfMatch(stored.head.etag)),
        )
    except RefusedConditionError as error:
        return str(error)
    except PreconditionFailedError:  # another process has just written the object
        return None
    return None


def _other(etag: str) -> str:
    """Return a different etag of the same form; a store refuses one of another form as invalid."""
    return etag[:-1] + ("2" if etag.endswith("1") else "1")


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
    request = urllib.request.Request(url, method="HEAD")  # noqa: S310 -- http or https, as configured
    with TimeLimit(_SECONDS, trust) as limit:
        try:
            with limit.opener().open(request, timeout=_SECONDS) as answer:
                return Message() if answer.headers is None else answer.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.headers
        except (OSError, HTTPException):
            return None

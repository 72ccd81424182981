"""Skew of a store's clock, from the `Date` of any answer of its HTTP server."""

import ssl
import urllib.error
import urllib.request
from email.message import Message
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Final
from urllib.parse import urlsplit

from sidetier.storage.settings import StorageEndpoint
from sidetier.uploader.running.clock import SYSTEM_CLOCK

_SECONDS: Final = 5.0
_DATE_IS_CUT: Final = 0.5
"""A Date has whole seconds, so it is half a second too early on average."""


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

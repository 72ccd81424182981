"""Facts that a running sidecar reports over HTTP: its partitions, pins and readiness."""

import ssl
import urllib.error
import urllib.request
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlencode, urlsplit

import click

from sidetier import __version__
from sidetier.cli.inspect.time_limit import TimeLimit
from sidetier.segments.errors import ConfigurationError, SidetierError
from sidetier.segments.json_text import parse_json
from sidetier.segments.offsets import TopicPartition
from sidetier.telemetry.status import (
    Condition,
    PartitionStatus,
    PinnedRange,
    SegmentStatus,
    StatusSnapshot,
)
from sidetier.telemetry.status_json import parsed

if TYPE_CHECKING:
    from sidetier.config.model import HttpConfig

_TIMEOUT_SECONDS: Final = 10.0
_MAX_BYTES: Final = 64 << 20
"""Largest answer, after decompression. 10,000 partitions take about 10 MB."""
_MAX_PAGE_BYTES: Final = 16 << 20
"""Largest page. 1,000 partitions take about 1 MB; the errors of others are on each page, too."""
_GZIP: Final = 16 + zlib.MAX_WBITS

T = TypeVar("T")
Fields = Mapping[str, Any]
"""JSON object that the sidecar returns."""


class NoSidecarError(SidetierError):
    """No server answers at the address, or the server is not a sidecar."""


@dataclass(frozen=True, slots=True)
class SidecarPartition:
    """A sidecar's answer about one partition.

    Attributes:
        broker_id: Broker of the sidecar.
        status: None if the broker does not lead the partition, and none of its segments is at risk.
        pins: Offsets of the partition that the sidecar holds open.
    """

    broker_id: int | None = None
    status: PartitionStatus | None = None
    pins: tuple[PinnedRange, ...] = ()

    @property
    def segments(self) -> tuple[SegmentStatus, ...]:
        """Oldest closed segments that are not stored."""
        return () if self.status is None else self.status.segments

    def segment_of(self, offset: int) -> SegmentStatus | None:
        """Return the unstored segment that has the offset; None if the answer does not list it."""
        return next(
            (
                segment
                for segment in self.segments
                if _contains(segment.base_offset, segment.next_offset, offset)
            ),
            None,
        )

    def pin_of(self, offset: int) -> PinnedRange | None:
        """Return the pin that has the offset; None without one."""
        return next(
            (pin for pin in self.pins if _contains(pin.start_offset, pin.end_offset, offset)), None
        )


def _contains(start: int, end: int | None, offset: int) -> bool:
    """Return whether [start, end) has the offset. Without an end, it may have any above `start`."""
    return start <= offset and (end is None or offset < end)


@dataclass(frozen=True, slots=True)
class SidecarState:
    """A sidecar's answers.

    Attributes:
        url: Address of the sidecar.
        status: `/api/partitions`, and the conditions of `/readyz` if that was asked.
        ready: Whether the sidecar reports that it is ready.
    """

    url: str
    status: StatusSnapshot
    ready: bool

    @property
    def unmet_conditions(self) -> str:
        """Conditions that do not hold, with their reasons; "starting" if it reports none."""
        unmet = [f"{c.name}: {c.reason}" for c in self.status.conditions if not c.holds]
        return "; ".join(unmet) or "starting"

    def partition(self, tp: TopicPartition) -> SidecarPartition:
        """Return its answer about one partition."""
        return self.by_partition().get(tp, SidecarPartition(self.status.broker_id))

    def by_partition(self) -> Mapping[TopicPartition, SidecarPartition]:
        """Return its answer about each partition that it reports or pins."""
        status = self.status
        rows = {row.topic_partition: row for row in status.partitions}
        pins: dict[TopicPartition, list[PinnedRange]] = {}
        for pin in status.pins:
            pins.setdefault(TopicPartition(pin.topic, pin.partition), []).append(pin)
        return {
            tp: SidecarPartition(status.broker_id, rows.get(tp), tuple(pins.get(tp, ())))
            for tp in rows.keys() | pins.keys()
        }


def ask_sidecar(
    url: str,
    topic: str | None = None,
    timeout: float = _TIMEOUT_SECONDS,
    bearer_token: str | None = None,
) -> SidecarState:
    """Request the sidecar's `/api/partitions`, optionally of one topic only.

    Raises:
        NoSidecarError: No server answers in `timeout` seconds, or the server is not a sidecar.
    """
    query = "?" + urlencode({"topic": topic}) if topic is not None else ""
    answer = _get(url, "/api/partitions" + query, timeout, bearer_token)
    if not isinstance(answer.get("partitions"), list):
        raise NoSidecarError(f"the server at {url} is not a sidecar")
    return SidecarState(url, _read(StatusSnapshot, answer, url), bool(answer.get("ready")))


def _read(kind: type[T], value: object, url: str) -> T:
    try:
        return parsed(kind, value)
    except ValueError as error:
        raise NoSidecarError(
            f"the answer of the server at {url} is not the status of a sidecar: {error}"
        ) from None


@dataclass(frozen=True, slots=True)
class FleetTls:
    """How the certificates of sidecars, or of the proxies before them, are checked.

    Attributes:
        context: Trusted certificates.
        name_of_addresses: Name that the certificates of addresses must have; None for the address.
    """

    context: ssl.SSLContext
    name_of_addresses: str | None = None


def ask_page(
    url: str,
    query: str,
    timeout: float = _TIMEOUT_SECONDS,
    bearer_token: str | None = None,
    tls: FleetTls | None = None,
) -> Fields:
    """Request one page of the sidecar's `/api/partitions`.

    The whole answer has to arrive within `timeout` seconds.

    Raises:
        NoSidecarError: No server answers at the address, the server is not a sidecar, the answer is
            too large, or the sidecar is too old to have pages.
    """
    path = f"/api/partitions?{query}"
    answer = _get(url, path, timeout, bearer_token, hint="", most_bytes=_MAX_PAGE_BYTES, tls=tls)
    if not isinstance(answer.get("partitions"), list):
        raise NoSidecarError(f"the server at {url} is not a sidecar")
    if "totals" not in answer:
        raise NoSidecarError(
            f"the sidecar at {url} has no pages of partitions: upgrade it to version {__version__}"
        )
    return answer


def with_conditions(state: SidecarState, bearer_token: str | None = None) -> SidecarState:
    """Add the conditions of `/readyz`, ready or not. Raises as `ask_sidecar`."""
    answer = _get(state.url, "/readyz", _TIMEOUT_SECONDS, bearer_token)
    conditions = tuple(_read(Condition, one, state.url) for one in answer.get("conditions", ()))
    return replace(state, status=replace(state.status, conditions=conditions))


def checked_url(url: str) -> str:
    """Return the URL without a trailing slash.

    Raises:
        click.BadParameter: It is not an http or https URL with a host.
    """
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number, or above 65535
        is_valid = False
    if not is_valid:
        raise click.BadParameter(f"{url!r}: expected http://host:port")
    return url.rstrip("/")


def url_of(http: "HttpConfig") -> str:
    """Return the configured URL of this host's sidecar.

    Raises:
        ConfigurationError: `http.port` is 0, so only the running sidecar knows its port.
    """
    if http.port == 0:
        raise ConfigurationError(
            "http.port is 0, so the system has chosen the sidecar's port. The log event "
            "daemon.started has its address: give it by --sidecar"
        )
    from sidetier.config.model import local_url  # noqa: PLC0415 -- `http` has loaded this module already

    return local_url(http.host, http.port)


def bearer_token_of(http: "HttpConfig") -> str | None:
    """Return the bearer token of these sidecars; raises ConfigurationError if it cannot be read."""
    return None if http.bearer_token is None else http.bearer_token.resolve()


_HINT: Final = "; is `sidetier run` up? Give its address by --sidecar if it is another"


class _RefuseRedirects(urllib.request.HTTPRedirectHandler):
    """Redirects are errors: no sidecar sends one, and a hostile server could choose any address
    that this process reaches.
    """

    def redirect_request(self, *_: Any) -> None:  # noqa: ANN401 -- urllib's own
        return None


def _get(  # noqa: PLR0913 - one request, and its limits
    url: str,
    path: str,
    timeout: float,
    bearer_token: str | None,
    *,
    hint: str = _HINT,
    most_bytes: int = _MAX_BYTES,
    tls: FleetTls | None = None,
) -> Fields:
    with TimeLimit(timeout, *_trust_of(tls)) as limit:
        try:
            request = urllib.request.Request(url + path)  # noqa: S310 -- `checked_url` allows http and https only
            if bearer_token is not None:
                request.add_header("Authorization", f"Bearer {bearer_token}")
            return _parsed(_answer(request, url, timeout, most_bytes, limit), url)
        except urllib.error.HTTPError as error:
            with error:
                raise _not_a_sidecar(url, path, error) from None
        except (OSError, HTTPException, EOFError, zlib.error, UnicodeError) as error:
            # UnicodeError: the host is not a valid DNS name.
            reason = getattr(error, "reason", error)
            if limit.has_passed:
                reason = f"its answer was not complete within {timeout:g} s"
            raise NoSidecarError(f"no sidecar answers at {url}: {reason}{hint}") from None


def _answer(
    request: urllib.request.Request, url: str, timeout: float, most_bytes: int, limit: TimeLimit
) -> bytes:
    request.add_header("Accept-Encoding", "gzip")
    no_proxy = urllib.request.ProxyHandler({})  # the sidecar is on this host, or in this network
    with _opened(limit.opener(no_proxy, _RefuseRedirects()), request, timeout) as response:
        body = _body(response, url, most_bytes)
    if limit.has_passed:  # a body without a length may seem complete
        raise EOFError
    return body


def _not_a_sidecar(url: str, path: str, error: urllib.error.HTTPError) -> NoSidecarError:
    if error.code == HTTPStatus.UNAUTHORIZED:
        return NoSidecarError(
            f"the sidecar at {url} refuses {path}: it asks for a bearer token; "
            "give the configuration with its http.bearer_token (--config)"
        )
    if error.code == HTTPStatus.MISDIRECTED_REQUEST:
        return NoSidecarError(
            f"the sidecar at {url} does not answer under this name: use its address, or add the "
            "name to its http.allowed_hosts"
        )
    return NoSidecarError(f"the server at {url} is not a sidecar: {path}: {error}")


def _trust_of(tls: FleetTls | None) -> tuple[ssl.SSLContext | None, str | None]:
    return (None, None) if tls is None else (tls.context, tls.name_of_addresses)


def _opened(
    opener: urllib.request.OpenerDirector, request: urllib.request.Request, timeout: float
) -> Any:  # noqa: ANN401 -- urllib's types differ
    try:
        return opener.open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        # the body of `/readyz` has the reasons
        if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
            return error
        raise


def _body(response: Any, url: str, most_bytes: int) -> bytes:  # noqa: ANN401 -- urllib's types differ
    """Return the body, decompressed.

    Raises:
        NoSidecarError: It has more than `most_bytes` bytes.
    """
    body: bytes = response.read(most_bytes + 1)
    if len(body) <= most_bytes and response.length:  # `read` with a size does not report it
        raise EOFError(f"the answer breaks off, {response.length} bytes early")
    if response.headers.get("Content-Encoding") == "gzip" and len(body) <= most_bytes:
        decompressor = zlib.decompressobj(_GZIP)
        body = decompressor.decompress(body, most_bytes + 1)
        if not decompressor.eof and len(body) <= most_bytes:
            raise EOFError("the compressed answer breaks off")
    if len(body) > most_bytes:
        raise NoSidecarError(
            f"the server at {url} is not a sidecar: its answer has more than {most_bytes >> 20} MiB"
        )
    return body


def _parsed(body: bytes, url: str) -> Fields:
    try:
        parsed = parse_json(body)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise NoSidecarError(
            f"the server at {url} is not a sidecar: its answer is not a JSON object"
        )
    return parsed

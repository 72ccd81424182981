"""Status of the sidecars of all brokers: asked concurrently, and merged into one page."""

import heapq
import math
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode

from sidetier import __version__
from sidetier.segments.errors import ConfigurationError, SidetierError
from sidetier.telemetry.partition_page import (
    MAX_ROWS,
    PartitionKey,
    PartitionQuery,
    PartitionTotals,
    ShownState,
    order_of,
)

THREADS: Final = 32
"""Sidecars that are asked at the same time."""
_REST_SECONDS: Final = 15.0
"""Time for which a sidecar that did not answer is not asked again, so that each refresh of the page
does not wait for it.
"""
_FIRST_ROWS: Final = 5
_MORE_ROWS: Final = 4
"""Factor by which more rows are requested from a sidecar whose rows are all on the page."""
_MAX_PROBLEMS: Final = 50
_SUMS: Final = (
    "queued_segments",
    "queued_bytes",
    "uploading_segments",
    "uploaded_bytes",
    "sending_bytes",
    "hung_requests",
    "pinned_files",
    "pinned_bytes",
    "pinned_deleted_bytes",
)


Fields = Mapping[str, Any]
"""A page of `/api/partitions`, or an object in it."""


class UnknownFleetError(SidetierError):
    """The DNS name of the sidecars cannot be resolved."""


class UnknownPageError(SidetierError):
    """The answer is not a page of a sidecar of this version."""


@dataclass(frozen=True, slots=True)
class FleetSidecar:
    """One sidecar of the fleet.

    Attributes:
        address: as configured or resolved, such as `10.0.0.7:9108`.
        answer: its page of `/api/partitions`; None if it did not answer.
        reason: why it did not answer, or why it is not ready; empty otherwise.
    """

    address: str
    answer: Fields | None
    reason: str = ""

    @property
    def ready(self) -> bool:
        """Whether the sidecar has answered that it is ready."""
        return self.answer is not None and bool(self.answer["ready"])

    @property
    def rows(self) -> Sequence[Fields]:
        """The partitions on its page."""
        return () if self.answer is None else self.answer["partitions"]

    @property
    def totals(self) -> Fields:
        """Totals over its partitions; zeros if it did not answer."""
        return asdict(PartitionTotals()) if self.answer is None else self.answer["totals"]

    @property
    def matching(self) -> int:
        """Number of its partitions that match the query."""
        return 0 if self.answer is None else int(self.answer["page"]["matching"])

    @property
    def problems(self) -> int:
        """Number of its partitions that need an operator."""
        states = self.totals["states"]
        return sum(states.get(state, 0) for state in ShownState if state.is_problem)

    @property
    def worst(self) -> str:
        """The first partition of its page with its state; empty without one that is behind."""
        row = next(iter(self.rows), None)
        if row is None or row["shown_state"] == ShownState.ARCHIVED:
            return ""
        reason = row["last_error"] or row["waiting_for"]
        text = f"{row['topic']}-{row['partition']} {row['shown_state'].replace('_', ' ')}"
        return text if reason is None else f"{text}: {reason}"

    @property
    def severity(self) -> tuple[bool, bool, int, str]:
        """Sort key: unreachable sidecars first, then unready ones, then those with problems."""
        return self.answer is not None, self.ready, -self.problems, self.address

    def as_json(self) -> dict[str, Any]:
        """Return the sidecar without its partitions."""
        answer = self.answer or {}
        return {
            "address": self.address,
            "reachable": self.answer is not None,
            "ready": self.ready,
            "reason": self.reason,
            "cluster": answer.get("cluster"),
            "broker_id": answer.get("broker_id"),
            "version": answer.get("version"),
            "started_ms": answer.get("started_ms"),
            "problems": self.problems,
            "totals": dict(self.totals),
            "worst": self.worst,
        }


Ask = Callable[[str, str, float, str | None], Fields]
"""Requests a page: URL of the sidecar, query, timeout in seconds, bearer token.

Raises SidetierError if no sidecar answers.
"""


class Fleet:
    """The sidecars of a cluster. Thread-safe. Close it to end its threads.

    Args:
        sidecars: addresses, as `host:port` or as URL.
        dns: `name:port`; every address of the name is a sidecar. None for no name.
        ask: requests a page.
        timeout: time limit for the answer of a sidecar, in seconds.
        tls: whether addresses without a scheme are asked by HTTPS.
        bearer_token: returns the token that the sidecars require; None for no token.
        now: monotonic seconds.
    """

    def __init__(  # noqa: PLR0913 - the sidecars, and how they are asked
        self,
        sidecars: Iterable[str],
        dns: str | None,
        *,
        ask: Ask,
        timeout: float,
        tls: bool = False,
        bearer_token: Callable[[], str | None] = lambda: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sidecars = tuple(sidecars)
        self._dns = dns
        self._timeout = timeout
        self._tls = tls
        self._token = bearer_token
        self._ask = ask
        self._now = now
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="fleet")
        self._resting: dict[str, tuple[float, str]] = {}
        self._hanging: dict[str, Future[Fields]] = {}
        """Requests that went on after the time limit. Their sidecars are not asked again before
        they end: a sidecar that sends a byte now and then occupies one thread, and not all.
        """

    def close(self) -> None:
        """Start no more requests. Those under way end by their own time limits."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def check_configured(self) -> None:
        """Raise ConfigurationError if neither an address nor a DNS name is configured."""
        if not self._sidecars and self._dns is None:
            raise ConfigurationError(
                "no sidecars are configured: set fleet.sidecars or fleet.dns, or add --sidecar "
                "or --dns"
            )

    def addresses(self) -> list[str]:
        """Return the configured addresses and the DNS name's addresses, without duplicates.

        Raises:
            UnknownFleetError: The name cannot be resolved.
            ConfigurationError: Neither a name nor an address is configured.
        """
        self.check_configured()
        return list(dict.fromkeys([*self._sidecars, *self._resolved()]))

    def _resolved(self) -> list[str]:
        if self._dns is None:
            return []
        name, _, port = self._dns.rpartition(":")
        try:
            found = socket.getaddrinfo(name, int(port), type=socket.SOCK_STREAM)
        except OSError as error:
            raise UnknownFleetError(
                f"fleet.dns: {name} cannot be resolved: {error.strerror or error}"
            ) from error
        hosts = sorted({str(address[0]) for *_, address in found})
        return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts]

    def sidecars(self, query: PartitionQuery) -> list[FleetSidecar]:
        """Ask every sidecar for its first partitions; one that does not answer has the reason.

        Each answers with enough partitions for the fleet's page that the query selects.

        Raises:
            UnknownFleetError: as `addresses`.
            ConfigurationError: as `addresses`.
        """
        end = query.offset + query.limit
        addresses = self.addresses()
        rows = min(end, max(_FIRST_ROWS, math.ceil(2 * end / max(1, len(addresses)))))
        answers = dict(zip(addresses, self._ask_all(addresses, query, rows), strict=True))
        while rows < end:
            page = _first_rows(list(answers.values()), query, end)
            on_page = dict.fromkeys(addresses, 0)
            for address, _row in page:
                on_page[address] += 1
            # All rows of these sidecars are on the page, so their next ones may belong there too.
            short = [
                address
                for address, sidecar in answers.items()
                if on_page[address] == len(sidecar.rows) < sidecar.matching
            ]
            if not short:
                break
            rows = min(end, rows * _MORE_ROWS)
            answers.update(zip(short, self._ask_all(short, query, rows), strict=True))
        return sorted(answers.values(), key=lambda sidecar: sidecar.severity)

    def _ask_all(
        self, addresses: Sequence[str], query: PartitionQuery, rows: int
    ) -> list[FleetSidecar]:
        text = _query_string(replace(query, offset=0, limit=rows))
        now, token = self._now(), self._token()
        resting: dict[str, str] = {}
        for address, (until, reason) in list(self._resting.items()):
            hanging = self._hanging.get(address)
            if until > now or (hanging is not None and not hanging.done()):
                resting[address] = reason
            else:  # also of addresses that the DNS name no longer has
                self._resting.pop(address, None)
                self._hanging.pop(address, None)
        running = {
            address: self._pool.submit(
                self._ask, url_of_address(address, tls=self._tls), text, self._timeout, token
            )
            for address in addresses
            if address not in resting
        }
        # Each thread asks several sidecars of a large fleet, one after the other.
        wait(running.values(), timeout=self._timeout * math.ceil(len(running) / THREADS))
        asked = []
        for address in addresses:
            if address in resting:
                asked.append(FleetSidecar(address, None, resting[address]))
                continue
            future = running[address]
            if not future.done():
                if not future.cancel():
                    self._hanging[address] = future
                asked.append(self._silent(address, f"no answer within {self._timeout:g} s"))
                continue
            try:
                asked.append(_answered(address, future.result()))
            except SidetierError as error:
                asked.append(self._silent(address, str(error)))
        return asked

    def _silent(self, address: str, reason: str) -> FleetSidecar:
        self._resting[address] = (self._now() + _REST_SECONDS, reason)
        return FleetSidecar(address, None, reason)

    def page(self, query: PartitionQuery, runbook_url: str = "") -> dict[str, Any]:
        """Return the JSON object of `/api/partitions` for all sidecars together.

        Raises:
            ValueError: the page is too far down the list.
        """
        end = query.offset + query.limit
        if end > MAX_ROWS:
            raise ValueError(
                f"offset + limit: at most {MAX_ROWS} over a fleet; select a topic or a state"
            )
        problems: list[str] = []
        try:
            sidecars = self.sidecars(query)
        except UnknownFleetError as error:
            sidecars, problems = [], [str(error)]
        rows = _first_rows(sidecars, query, end)[query.offset :]
        by_address = {sidecar.address: sidecar for sidecar in sidecars}
        answers = {address: sidecar.answer or {} for address, sidecar in by_address.items()}
        return {
            **_merged(sidecars),
            "runbook_url": runbook_url,
            "page": {
                "offset": query.offset,
                "limit": query.limit,
                "matching": sum(sidecar.matching for sidecar in sidecars),
                "reachable": MAX_ROWS,
            },
            "partitions": [
                {
                    **row,
                    "sidecar": address,
                    "cluster": answers[address].get("cluster"),
                    "broker_id": answers[address].get("broker_id"),
                }
                for address, row in rows
            ],
            "fleet": {
                "sidecars": [sidecar.as_json() for sidecar in sidecars],
                "clusters": [
                    {"cluster": cluster, **_sums(members)}
                    for cluster, members in by_cluster(sidecars).items()
                ],
                "problems": problems,
            },
        }


def by_cluster(sidecars: Iterable[FleetSidecar]) -> dict[str, list[FleetSidecar]]:
    """Return the sidecars that have answered, by the name of their cluster, sorted by name."""
    clusters: dict[str, list[FleetSidecar]] = {}
    for sidecar in sidecars:
        if sidecar.answer is not None:
            clusters.setdefault(str(sidecar.answer["cluster"]), []).append(sidecar)
    return dict(sorted(clusters.items()))


def url_of_address(address: str, *, tls: bool = False) -> str:
    """Return the URL of a sidecar at `host:port`; a URL stays as it is."""
    scheme = "https" if tls else "http"
    return address.rstrip("/") if "://" in address else f"{scheme}://{address}"


def _query_string(query: PartitionQuery) -> str:
    fields: dict[str, str | int] = {"offset": 0, "limit": query.limit, "sort": query.sort}
    if query.topic is not None:
        fields["topic"] = query.topic
    if query.states:
        fields["state"] = ",".join(sorted(query.states))
    return urlencode(fields)


def _answered(address: str, answer: Fields) -> FleetSidecar:
    """Return a sidecar that has answered.

    Raises:
        UnknownPageError: The answer lacks a field, or has one of a wrong type: the other sidecars
            are shown without it.
    """
    try:
        unmet = [f"{c['name']}: {c['reason']}" for c in answer["conditions"] if not c["holds"]]
        reason = answer["death"] or "; ".join(unmet)
        sidecar = FleetSidecar(address, answer, reason or ("" if answer["ready"] else "starting"))
        _check(sidecar)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnknownPageError(
            f"the answer of {address} is not a page of a sidecar of version {__version__}: "
            f"{error!r:.200}"
        ) from error
    return sidecar


def _check(sidecar: FleetSidecar) -> None:
    """Use each field of the answer as the page will; raises what that raises."""
    sidecar.as_json()
    _merged([sidecar])
    totals = sidecar.totals
    optional = [totals["oldest_age_seconds"], totals["seconds_until_local_deletion"]]
    numbers = [sidecar.matching]
    if sidecar.answer is not None and sidecar.answer["last_drill"]:
        numbers.append(sidecar.answer["last_drill"]["finished_ms"])
    for row in sidecar.rows:
        topic, number, _state, age, until_deletion, *counts = _key_of_row(row)
        if not isinstance(topic, str):
            raise TypeError(f"topic {topic!r}")
        numbers += [number, *counts]
        optional += [age, until_deletion]
    for value in (*numbers, *(value for value in optional if value is not None)):
        if not isinstance(value, int | float):
            raise TypeError(f"{value!r} is not a number")


def _first_rows(
    sidecars: Sequence[FleetSidecar], query: PartitionQuery, end: int
) -> list[tuple[str, Fields]]:
    """Merge the rows of the sidecars, which are sorted already; return the first `end` ones."""
    order = order_of(query.sort)
    lists = [[(sidecar.address, row) for row in sidecar.rows] for sidecar in sidecars]
    merged = heapq.merge(*lists, key=lambda pair: (*order(_key_of_row(pair[1])), pair[0]))
    return [pair for pair, _ in zip(merged, range(end), strict=False)]


def _key_of_row(row: Fields) -> PartitionKey:
    age = row["unarchived_age_seconds"]
    return PartitionKey(
        row["topic"],
        row["partition"],
        ShownState(row["shown_state"]),
        row["oldest_unstored_age_seconds"] if age is None else age,
        row["seconds_until_local_deletion"],
        row["unarchived_records"] or 0,
        row["unarchived_bytes"] or 0,
        row["unstored_segments"],
        row["unstored_bytes"],
    )


def _merged(sidecars: Sequence[FleetSidecar]) -> dict[str, Any]:
    """Return what concerns all sidecars together."""
    answers = [
        (sidecar.address, sidecar.answer) for sidecar in sidecars if sidecar.answer is not None
    ]
    drills = [answer["last_drill"] for _, answer in answers if answer["last_drill"]]
    clusters = by_cluster(sidecars)
    # Sums over two clusters would mean nothing: `fleet.clusters` has each cluster's sums.
    sums = _sums(sidecars) if len(clusters) <= 1 else dict.fromkeys(("totals", *_SUMS))
    return {
        "cluster": ", ".join(clusters),
        "broker_id": None,
        "started_ms": 0,
        "version": __version__,
        "alive": True,
        "death": None,
        "ready": bool(sidecars) and all(sidecar.ready for sidecar in sidecars),
        "conditions": [],
        "held_errors": [
            {**error, "subject": f"{address}: {error['subject']}"}
            for address, answer in answers
            for error in answer["held_errors"]
        ][:_MAX_PROBLEMS],
        "log_dir_problems": [
            f"{address}: {problem}"
            for address, answer in answers
            for problem in answer["log_dir_problems"]
        ][:_MAX_PROBLEMS],
        "warnings": [
            f"{address}: {warning}"
            for address, answer in answers
            for warning in answer.get("warnings", ())
        ][:_MAX_PROBLEMS],
        "cluster_snapshots": [],
        "last_drill": max(drills, key=lambda drill: drill["finished_ms"], default=None),
        **sums,
    }


def _sums(sidecars: Iterable[FleetSidecar]) -> dict[str, Any]:
    answers = [sidecar.answer for sidecar in sidecars if sidecar.answer is not None]
    return {
        "totals": _sum_of_totals([answer["totals"] for answer in answers]),
        **{name: sum(answer.get(name) or 0 for answer in answers) for name in _SUMS},
    }


def _sum_of_totals(totals: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    def values(name: str) -> list[Any]:
        return [fields[name] for fields in totals if fields[name] is not None]

    names = (
        "partitions",
        "unarchived_records",
        "unarchived_bytes",
        "unstored_segments",
        "unstored_bytes",
    )
    return {
        **{name: sum(values(name)) for name in names},
        "states": {
            state: sum(fields["states"].get(state, 0) for fields in totals) for state in ShownState
        },
        "oldest_age_seconds": max(values("oldest_age_seconds"), default=None),
        "seconds_until_local_deletion": min(values("seconds_until_local_deletion"), default=None),
    }

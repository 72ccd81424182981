"""One page of the partitions, the most severe first: filters, order and totals, without I/O."""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs

from sidetier.telemetry.status import PartitionState, PartitionStatus, StatusSnapshot

NEAR_DELETION_SECONDS: Final = 600.0
"""As in the alert SidetierNearLocalDeletion."""
DEFAULT_LIMIT: Final = 100
MOST_ROWS: Final = 1000
"""Maximum of `limit`. A page of 1,000 partitions has about 1 MB before compression."""
_LONGEST_TOPIC: Final = 512
_NEVER: Final = float("inf")


class ShownState(StrEnum):
    """State of a partition in lists for people, the most severe first.

    It is `PartitionState`, except where an error, a gap or the broker's deletion matters more.
    """

    HALTED = "halted"
    NEAR_DELETION = "near_deletion"
    """The broker deletes records in less than 10 minutes, and they are not archived."""
    HELD = "held"
    """The partition waits after an error."""
    QUARANTINING = "quarantining"
    GAP = "gap"
    """The partition has gaps or quarantines that no operator has acknowledged."""
    STARTING = "starting"
    WAITING = "waiting"
    UPLOADING = "uploading"
    IDLE = "idle"

    @property
    def is_problem(self) -> bool:
        """Whether an operator must act, or look at it."""
        return _SEVERITY[self] < _SEVERITY[ShownState.STARTING]


_SEVERITY: Final[Mapping[ShownState, int]] = {
    ShownState.HALTED: 0,
    ShownState.NEAR_DELETION: 1,
    ShownState.HELD: 2,
    ShownState.QUARANTINING: 3,
    ShownState.GAP: 4,
    ShownState.STARTING: 5,
    ShownState.WAITING: 5,
    ShownState.UPLOADING: 5,
    ShownState.IDLE: 6,
}


class PartitionKey(NamedTuple):
    """The values by which partitions are filtered, ordered and added up.

    Attributes:
        age: age of the oldest record that is not archived, in seconds; None if all are.
        until_deletion: seconds until the broker deletes unarchived records; None for never.
    """

    topic: str
    partition: int
    state: ShownState
    age: float | None
    until_deletion: float | None
    unarchived_records: int
    unarchived_bytes: int
    unstored_segments: int
    unstored_bytes: int


_Order = Callable[[PartitionKey], tuple[Any, ...]]

_ORDERS: Final[Mapping[str, _Order]] = {
    "severity": lambda key: (
        _SEVERITY[key.state],
        -(key.age or 0.0),
        key.topic,
        key.partition,
    ),
    "name": lambda key: (key.topic, key.partition),
    "age": lambda key: (-(key.age or 0.0), key.topic, key.partition),
    "deletion": lambda key: (
        _NEVER if key.until_deletion is None else key.until_deletion,
        key.topic,
        key.partition,
    ),
    "bytes": lambda key: (-key.unarchived_bytes, key.topic, key.partition),
}


@dataclass(frozen=True, slots=True)
class PartitionQuery:
    """Which partitions a page has.

    Attributes:
        offset: number of matching partitions before the page.
        limit: maximum number of partitions on the page.
        sort: `severity` (most severe first, then longest unarchived), `name`, `age` (longest
            unarchived first), `deletion` (deleted soonest first) or `bytes` (most first).
        topic: exact name, or a pattern with `*`; None for all topics.
        states: only these states; empty for all.
    """

    offset: int = 0
    limit: int = DEFAULT_LIMIT
    sort: str = "severity"
    topic: str | None = None
    states: frozenset[ShownState] = frozenset()

    def matches_topic(self, topic: str) -> bool:
        """Return whether the topic passes the filter."""
        if self.topic is None or topic == self.topic:
            return True
        if "*" not in self.topic:
            return False
        # Not a regular expression of our own: with many `*`, it would take exponential time.
        return fnmatchcase(topic, self.topic.replace("[", "[[]").replace("?", "[?]"))


def order_of(sort: str) -> Callable[[PartitionKey], tuple[Any, ...]]:
    """Return the function that turns a partition's key into its sort key."""
    return _ORDERS[sort]


def parse_query(query_string: str) -> PartitionQuery | None:
    """Parse the query of `/api/partitions`. None if it asks for all partitions at once.

    `offset`, `limit`, `sort` or `state` asks for a page. `topic` alone does not: before there were
    pages, it selected a topic.

    Raises:
        ValueError: a parameter has a wrong value; the message names it.
    """
    given = parse_qs(query_string, keep_blank_values=True)
    if not given.keys() & {"offset", "limit", "sort", "state"}:
        return None
    sort = _last(given, "sort") or "severity"
    if sort not in _ORDERS:
        raise ValueError(f"sort={sort}: expected one of {', '.join(_ORDERS)}")
    topic = _last(given, "topic") or None
    if topic is not None and len(topic) > _LONGEST_TOPIC:
        raise ValueError(f"topic: longer than {_LONGEST_TOPIC} characters")
    names = [name for text in given.get("state", ()) for name in text.split(",") if name]
    try:
        states = frozenset(ShownState(name) for name in names)
    except ValueError:
        known = ", ".join(ShownState)
        raise ValueError(f"state={','.join(names)}: expected some of {known}") from None
    return PartitionQuery(
        _number(given, "offset", 0, least=0, most=None),
        _number(given, "limit", DEFAULT_LIMIT, least=1, most=MOST_ROWS),
        sort,
        topic,
        states,
    )


def _last(given: Mapping[str, Sequence[str]], name: str) -> str:
    return given.get(name, ("",))[-1]


def _number(
    given: Mapping[str, Sequence[str]], name: str, default: int, *, least: int, most: int | None
) -> int:
    text = _last(given, name)
    if not text:
        return default
    is_number = text.isascii() and text.isdecimal() and len(text) < 10  # noqa: PLR2004 -- no huge int
    if not is_number or int(text) < least or (most is not None and int(text) > most):
        bounds = f"from {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name}={text}: expected a number {bounds}")
    return int(text)


_SHOWN: Final = {state: ShownState(state.value) for state in PartitionState}
"""Faster than a call of the enumeration, for thousands of partitions."""


def shown_state(
    state: PartitionState,
    last_error: str | None,
    *,
    gap_records: int,
    quarantines: int,
    until_deletion: float | None,
) -> ShownState:
    """Return the most severe state that applies."""
    if state is PartitionState.HALTED:
        return ShownState.HALTED
    if until_deletion is not None and until_deletion < NEAR_DELETION_SECONDS:
        return ShownState.NEAR_DELETION
    if state is PartitionState.QUARANTINING:
        return ShownState.QUARANTINING
    if last_error is not None:
        return ShownState.HELD
    return ShownState.GAP if gap_records or quarantines else _SHOWN[state]


def key_of(status: PartitionStatus) -> PartitionKey:
    """Return the key of a partition's status."""
    since_start, unresolved = status.gap_records, status.unresolved_gap_records
    age = status.unarchived_age_seconds
    return PartitionKey(
        status.topic,
        status.partition,
        shown_state(
            status.state,
            status.last_error,
            gap_records=since_start if unresolved is None else unresolved,
            quarantines=status.unresolved_quarantines or 0,
            until_deletion=status.seconds_until_local_deletion,
        ),
        status.oldest_unstored_age_seconds if age is None else age,
        status.seconds_until_local_deletion,
        status.unarchived_records or 0,
        status.unarchived_bytes or 0,
        status.unstored_segments,
        status.unstored_bytes,
    )


@dataclass(frozen=True, slots=True)
class PartitionTotals:
    """Totals over the partitions of the topics that a query selects, in every state.

    Attributes:
        states: number of partitions by state; every state has a number.
        oldest_age_seconds: age of the oldest record that is not archived; None if all are.
        seconds_until_local_deletion: time until the broker deletes the first unarchived records;
            None for never.
    """

    partitions: int = 0
    states: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(ShownState, 0))
    unarchived_records: int = 0
    unarchived_bytes: int = 0
    unstored_segments: int = 0
    unstored_bytes: int = 0
    oldest_age_seconds: float | None = None
    seconds_until_local_deletion: float | None = None


def totals_of_keys(keys: Sequence[PartitionKey]) -> PartitionTotals:
    """Add up the keys."""
    states: dict[str, int] = dict.fromkeys(ShownState, 0)
    for key in keys:
        states[key.state] += 1
    return PartitionTotals(
        len(keys),
        states,
        sum(key.unarchived_records for key in keys),
        sum(key.unarchived_bytes for key in keys),
        sum(key.unstored_segments for key in keys),
        sum(key.unstored_bytes for key in keys),
        max((key.age for key in keys if key.age is not None), default=None),
        min((key.until_deletion for key in keys if key.until_deletion is not None), default=None),
    )


@dataclass(frozen=True, slots=True)
class Selection:
    """The page that a query selects.

    Attributes:
        rows: indexes of the selected keys, in order.
        matching: number of keys on all pages.
    """

    rows: tuple[int, ...]
    matching: int
    totals: PartitionTotals


def select(keys: Sequence[PartitionKey], query: PartitionQuery) -> Selection:
    """Return the page that the query selects."""
    order, states = order_of(query.sort), query.states
    if query.topic is None:
        selected = list(enumerate(keys))
    else:
        # Topics have many partitions: match each name once.
        passes = {topic: query.matches_topic(topic) for topic in {key.topic for key in keys}}
        selected = [(i, key) for i, key in enumerate(keys) if passes[key.topic]]
    totals = totals_of_keys([key for _, key in selected])
    if states:
        selected = [pair for pair in selected if pair[1].state in states]
    end = query.offset + query.limit
    first = heapq.nsmallest(end, selected, key=lambda pair: order(pair[1]))
    return Selection(tuple(i for i, _ in first[query.offset :]), len(selected), totals)


@dataclass(frozen=True, slots=True)
class StatusPage:
    """Status of the daemon with one page of its partitions.

    Attributes:
        snapshot: status; `partitions` has the page only, in order.
        states: shown state of each of these partitions.
        matching: number of partitions on all pages.
        totals: totals over the partitions of the selected topics.
    """

    query: PartitionQuery
    snapshot: StatusSnapshot
    states: tuple[ShownState, ...]
    matching: int
    totals: PartitionTotals


def page_of(snapshot: StatusSnapshot, query: PartitionQuery) -> StatusPage:
    """Return the page of a snapshot that has all partitions."""
    keys = [key_of(status) for status in snapshot.partitions]
    selection = select(keys, query)
    rows = selection.rows
    return StatusPage(
        query,
        replace(snapshot, partitions=tuple(snapshot.partitions[i] for i in rows)),
        tuple(keys[i].state for i in rows),
        selection.matching,
        selection.totals,
    )

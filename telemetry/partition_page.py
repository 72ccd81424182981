"""One page of the partitions, the most severe first: filters, order and totals, without I/O."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from operator import neg
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs

from sidetier.segments.offsets import TopicPartition
from sidetier.telemetry.status import PartitionState, PartitionStatus, StatusSnapshot

NEAR_DELETION_SECONDS: Final = 600.0
"""As in the alert SidetierNearLocalDeletion."""
DEFAULT_LIMIT: Final = 100
MAX_ROWS: Final = 1000
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
    ARCHIVED = "archived"

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
    ShownState.ARCHIVED: 6,
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


class PartitionKeys(NamedTuple):
    """The same values of many partitions, by column. Each column has one entry for each partition.

    Columns, because a tuple for each of 10,000 partitions would start the garbage collector, and
    Python adds up and sorts columns several times as fast.

    Attributes:
        names: in order of topic and partition.
    """

    names: Sequence[TopicPartition]
    state: Sequence[ShownState]
    age: Sequence[float | None]
    until_deletion: Sequence[float | None]
    unarchived_records: Sequence[int]
    unarchived_bytes: Sequence[int]
    unstored_segments: Sequence[int]
    unstored_bytes: Sequence[int]


def _oldest_first(age: float | None) -> float:
    return 0.0 if age is None else -age


def _soonest_first(until_deletion: float | None) -> float:
    return _NEVER if until_deletion is None else until_deletion


_BY_AGE: Final = ("age", _oldest_first)
_ORDERS: Final[Mapping[str, tuple[tuple[str, Callable[[Any], float]], ...]]] = {
    "severity": (("state", _SEVERITY.__getitem__), _BY_AGE),
    "name": (),
    "age": (_BY_AGE,),
    "deletion": (("until_deletion", _soonest_first),),
    "bytes": (("unarchived_bytes", neg),),
}
"""For each order, fields of the key and their ranks, the most significant first. Partitions of
equal ranks are in order of topic and partition.
"""


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

    def of_topic(self, names: Sequence[TopicPartition]) -> Sequence[TopicPartition]:
        """Return the partitions whose topic passes the filter."""
        if self.topic is None:
            return names
        if "*" not in self.topic:
            return [name for name in names if name.topic == self.topic]
        # Topics have many partitions: match each name once. Not by a regular expression of our own:
        # with many `*`, it would take exponential time.
        pattern = self.topic.replace("[", "[[]").replace("?", "[?]")
        passes = {topic: fnmatchcase(topic, pattern) for topic in {name.topic for name in names}}
        return [name for name in names if passes[name.topic]]


def order_of(sort: str) -> Callable[[PartitionKey], tuple[Any, ...]]:
    """Return the function that turns a partition's key into its sort key."""
    fields = _ORDERS[sort]
    return lambda key: (
        *(rank(getattr(key, name)) for name, rank in fields),
        key.topic,
        key.partition,
    )


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
        _number(given, "limit", DEFAULT_LIMIT, least=1, most=MAX_ROWS),
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


SHOWN_STATES: Final = {state: ShownState(state.value) for state in PartitionState}
"""The shown state of a partition without errors, gaps and deletions that are near. Faster than a
call of the enumeration, for thousands of partitions.
"""


def shown_state(
    state: PartitionState,
    last_error: str | None,
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
    return ShownState.GAP if gap_records or quarantines else SHOWN_STATES[state]


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
            since_start if unresolved is None else unresolved,
            status.unresolved_quarantines or 0,
            status.seconds_until_local_deletion,
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


def totals_of_keys(keys: PartitionKeys) -> PartitionTotals:
    """Add up the columns."""
    return PartitionTotals(
        len(keys.names),
        {**dict.fromkeys(ShownState, 0), **Counter(keys.state)},
        sum(keys.unarchived_records),
        sum(keys.unarchived_bytes),
        sum(keys.unstored_segments),
        sum(keys.unstored_bytes),
        max((age for age in keys.age if age is not None), default=None),
        min((left for left in keys.until_deletion if left is not None), default=None),
    )


def select(keys: PartitionKeys, query: PartitionQuery) -> tuple[Sequence[int], int]:
    """Return the page that the query selects among the partitions of its topics.

    Returns:
        The rows of the page, in order, and the number of rows on all pages.
    """
    rows: Sequence[int] = range(len(keys.names))
    if query.states:
        rows = [i for i, state in enumerate(keys.state) if state in query.states]
    # Stable sorts by one number each, the least significant first: faster than one sort by tuples.
    for name, rank in reversed(_ORDERS[query.sort]):
        ranks = list(map(rank, getattr(keys, name)))
        rows = sorted(rows, key=ranks.__getitem__)
    return rows[query.offset : query.offset + query.limit], len(rows)


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
    by_name = {status.topic_partition: status for status in snapshot.partitions}
    names = query.of_topic(sorted(by_name))
    columns = zip(*(key_of(by_name[name])[2:] for name in names), strict=True)
    keys = PartitionKeys(names, *(columns if names else [()] * (len(PartitionKeys._fields) - 1)))
    rows, matching = select(keys, query)
    return StatusPage(
        query,
        replace(snapshot, partitions=tuple(by_name[names[i]] for i in rows)),
        tuple(keys.state[i] for i in rows),
        matching,
        totals_of_keys(keys),
    )

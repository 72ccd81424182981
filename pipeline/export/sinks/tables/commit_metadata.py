"""The state that a table's commit stores: the next offsets of the export, as text properties.

Both formats store strings by name with a commit (Hudi's extra metadata, Iceberg's snapshot
summary). The names here begin with `sidetier.`; offsets have the JSON form of Spark's Kafka source.

A commit has the whole state (version 1). For a table of many partitions, it can have only the
changes since an earlier commit with the whole state (version 2). Changes accumulate since that
commit, so two commits are enough to know the state.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from typing import Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from sidetier.pipeline.export.epoch_history import (
    Rows,
    epoch_history_of,
    rows_of,
)
from sidetier.pipeline.export.errors import (
    BrokenProgressError,
    LostProgressError,
    OtherExportError,
    refuse_later,
)
from sidetier.pipeline.export.state import NO_TAIL, Exported, Offsets, Tail
from sidetier.pipeline.planning.offsets_json import numbers_json, parse_numbers
from sidetier.pipeline.planning.split import in_words
from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.errors import ConfigurationError, MalformedObjectError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.json_text import parse_json
from sidetier.segments.offsets import Offset, TopicPartition

PREFIX: Final = "sidetier."
VERSION_KEY: Final = f"{PREFIX}version"
OFFSETS_KEY: Final = f"{PREFIX}offsets"
SINCE_KEY: Final = f"{PREFIX}since"
CLUSTER_KEY: Final = f"{PREFIX}cluster"
ISOLATION_KEY: Final = f"{PREFIX}isolation"
COMMIT_KEY: Final = f"{PREFIX}commit"
TAIL_KEY: Final = f"{PREFIX}tail"
EPOCHS_KEY: Final = f"{PREFIX}epochs"
TOPICS_KEY: Final = f"{PREFIX}topics"
PREVIOUS_KEY: Final = f"{PREFIX}previous"
WHOLE_KEY: Final = f"{PREFIX}whole-state"
SINCE_WHOLE_KEY: Final = f"{PREFIX}commits-since-whole-state"
STATE_TAG: Final = "sidetier_state"
"""Name of the tag that keeps the Iceberg snapshot with the whole state."""
WHOLE_VERSION: Final = 1
CHANGES_VERSION: Final = 2
SMALL_STATE: Final = 32 * 1024
"""Size of the properties, in bytes, up to which each commit has the whole state: about 300
partitions.
"""
WHOLE_STATE_EVERY: Final = 50
"""At least one of this many consecutive commits has the whole state."""
_EPOCHS: Final = TypeAdapter(dict[str, dict[int, Rows]])
_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class WholeState:
    """An earlier commit with the whole state.

    Attributes:
        commit: the commit's name.
        offsets: the offsets that it stores.
        tail: the tail that it stores.
        age: number of this export's commits since then.
    """

    commit: str
    offsets: Offsets
    tail: Tail
    age: int


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a table after one commit.

    Attributes:
        cluster: name of the cluster of the records.
        isolation: isolation level with which records were read.
        offsets: next offset of every partition that was ever exported to the table.
        since: the offsets before the commit; empty for the first commit.
        commit: unique name of the commit.
        tail: which records came from the brokers.
        previous: name of the commit before; None for the first commit, and for commits of earlier
            versions.
        whole: the commit to which this one stores changes; None if it stores the whole state.
    """

    cluster: str
    isolation: IsolationLevel
    offsets: Offsets
    since: Offsets
    commit: str
    tail: Tail = NO_TAIL
    previous: str | None = None
    whole: WholeState | None = None

    @property
    def exported(self) -> Exported:
        """The state of the export after the commit."""
        return Exported(self.offsets, self.tail)


@dataclass(frozen=True, slots=True)
class Changes:
    """The content of a commit that does not have the whole state.

    Attributes:
        commit: see `Progress`.
        previous: name of the commit before.
        whole_commit: name of the commit with the whole state, to which the changes apply.
        age: number of this export's commits since that one.
        offsets: changed offsets.
        tail: changed parts of the tail.
    """

    cluster: str
    isolation: IsolationLevel
    commit: str
    previous: str
    whole_commit: str
    age: int
    offsets: Offsets
    tail: Tail

    def on(self, whole: Progress) -> Progress:
        """Apply the changes to the whole state; return the resulting state."""
        before = WholeState(whole.commit, whole.offsets, whole.tail, self.age)
        return Progress(
            self.cluster,
            self.isolation,
            {**whole.offsets, **self.offsets},
            {},
            self.commit,
            Tail(
                {**whole.tail.offsets, **self.tail.offsets},
                {**whole.tail.topic_ids, **self.tail.topic_ids},
                {**whole.tail.epoch_histories, **self.tail.epoch_histories},
            ),
            self.previous,
            before,
        )


def following(progress: Progress, earlier: Progress | None, every: int) -> Progress:
    """Return the state of a commit that follows `earlier`, with the whole state or with changes.

    The commit stores only changes if the state is large, the changes are less than half of it, and
    fewer than `every` commits have passed since the last whole state.
    """
    if earlier is None:
        return progress
    progress = replace(progress, previous=earlier.commit, whole=None)
    whole = earlier.whole or WholeState(earlier.commit, earlier.offsets, earlier.tail, 0)
    if whole.age + 1 >= every or _has_lost(whole, progress):
        return progress  # otherwise the whole state could expire from the table's history
    size = _size(to_properties(progress))
    changed = replace(progress, whole=replace(whole, age=whole.age + 1))
    is_worth_it = size > SMALL_STATE and 2 * _size(to_properties(changed)) < size
    return changed if is_worth_it else progress


def _has_lost(before: WholeState, now: Progress) -> bool:
    """Return whether a part of the state was removed, which changes cannot express."""
    return not (
        before.offsets.keys() <= now.offsets.keys()
        and before.tail.offsets.keys() <= now.tail.offsets.keys()
        and before.tail.topic_ids.keys() <= now.tail.topic_ids.keys()
        and before.tail.epoch_histories.keys() <= now.tail.epoch_histories.keys()
    )


def _size(properties: Mapping[str, str]) -> int:
    return sum(len(name) + len(value) for name, value in properties.items())


def _changed(before: Mapping[_K, _V], now: Mapping[_K, _V]) -> dict[_K, _V]:
    return {key: value for key, value in now.items() if before.get(key) != value}


def to_properties(progress: Progress) -> dict[str, str]:
    """Return the properties to store with a commit."""
    offsets, tail, whole = progress.offsets, progress.tail, progress.whole
    own = {VERSION_KEY: str(WHOLE_VERSION), SINCE_KEY: numbers_json(progress.since)}
    if whole is not None:
        offsets = _changed(whole.offsets, offsets)
        tail = Tail(
            _changed(whole.tail.offsets, tail.offsets),
            _changed(whole.tail.topic_ids, tail.topic_ids),
            _changed(whole.tail.epoch_histories, tail.epoch_histories),
        )
        own = {
            VERSION_KEY: str(CHANGES_VERSION),
            WHOLE_KEY: whole.commit,
            SINCE_WHOLE_KEY: str(whole.age),
        }
    more = {TAIL_KEY: numbers_json(tail.offsets)} if tail.offsets else {}
    if tail.topic_ids:
        more[TOPICS_KEY] = json.dumps(dict(sorted(tail.topic_ids.items())), separators=(",", ":"))
    if tail.epoch_histories:
        more[EPOCHS_KEY] = epochs_json(tail.epoch_histories)
    if progress.previous is not None:
        more[PREVIOUS_KEY] = progress.previous
    return {
        **own,
        CLUSTER_KEY: progress.cluster,
        ISOLATION_KEY: progress.isolation.value,
        OFFSETS_KEY: numbers_json(offsets),
        COMMIT_KEY: progress.commit,
        **more,
    }


def from_properties(properties: Mapping[str, str], where: str) -> Progress | Changes | None:
    """Parse the properties of a commit; return None for a commit of another program.

    Args:
        properties: the properties of the commit.
        where: name of the commit, for errors.

    Raises:
        NewerStateError: a later version of Sidetier has written it.
        MalformedObjectError: a part is missing or invalid.
    """
    version = properties.get(VERSION_KEY)
    if version is None:
        return None
    try:
        if _known(version, where) == CHANGES_VERSION:
            return Changes(
                cluster=properties[CLUSTER_KEY],
                isolation=IsolationLevel(properties[ISOLATION_KEY]),
                commit=properties[COMMIT_KEY],
                previous=properties[PREVIOUS_KEY],
                whole_commit=properties[WHOLE_KEY],
                age=int(properties[SINCE_WHOLE_KEY]),
                offsets=_offsets(properties, OFFSETS_KEY),
                tail=_tail(properties),
            )
        return Progress(
            cluster=properties[CLUSTER_KEY],
            isolation=IsolationLevel(properties[ISOLATION_KEY]),
            offsets=_offsets(properties, OFFSETS_KEY),
            since=_offsets(properties, SINCE_KEY),
            commit=properties[COMMIT_KEY],
            tail=_tail(properties),
            previous=properties.get(PREVIOUS_KEY),
        )
    except KeyError as error:
        raise MalformedObjectError(f"{where} does not say {error.args[0]}") from None
    except (ValueError, ConfigurationError) as error:
        raise MalformedObjectError(f"{where}: {error}") from None


def epochs_json(epoch_histories: Mapping[TopicPartition, EpochHistory]) -> str:
    """Return leader epochs with their start offsets as JSON: `{"orders":{"0":[[3,0],[5,120]]}}`."""
    rows_by_topic: dict[str, dict[str, Rows]] = {}
    for tp, epoch_history in sorted(epoch_histories.items()):
        rows_by_topic.setdefault(tp.topic, {})[str(tp.partition)] = rows_of(epoch_history)
    return json.dumps(rows_by_topic, separators=(",", ":"))


def parse_epochs(text: str) -> dict[TopicPartition, EpochHistory]:
    """Parse the JSON of `epochs_json`; raise ConfigurationError if it is invalid."""
    try:
        rows_by_topic = _EPOCHS.validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigurationError(f"{EPOCHS_KEY}: {place}: {first['msg']}") from None
    return {
        TopicPartition(topic, partition): epoch_history_of(rows)
        for topic, partitions in rows_by_topic.items()
        for partition, rows in partitions.items()
    }


def _known(version: str, where: str) -> int:
    if not version.isdecimal():
        raise MalformedObjectError(f"{where}: {VERSION_KEY} is {version!r}, not a number")
    refuse_later(int(version), CHANGES_VERSION, "an export's offsets", where)
    return int(version)


def _tail(properties: Mapping[str, str]) -> Tail:
    offsets = _offsets(properties, TAIL_KEY) if TAIL_KEY in properties else {}
    topics = parse_json(properties.get(TOPICS_KEY, "{}"))
    if not isinstance(topics, dict) or not all(
        isinstance(topic_id, str) for topic_id in topics.values()
    ):
        raise ConfigurationError(f"{TOPICS_KEY}: {topics!r}: must be the ids of topics by name")
    epoch_histories = parse_epochs(properties[EPOCHS_KEY]) if EPOCHS_KEY in properties else {}
    return Tail(offsets, topics, epoch_histories)


def _offsets(properties: Mapping[str, str], name: str) -> dict[TopicPartition, Offset]:
    numbers = parse_numbers(properties[name], name)
    for tp, number in numbers.items():
        if number < 0:
            raise ConfigurationError(f"{name}: offset {number} of {in_words(tp)} is below 0")
    return {tp: Offset(number) for tp, number in numbers.items()}


_CHECKED: Final = 5
"""Number of commits that are compared. A writer that comes back late is one or two commits
behind.
"""


def last_progress(
    newest_first: Iterable[Progress | Changes | None],
    kept: Callable[[str], Progress | None] = lambda _commit: None,
) -> Progress | None:
    """Return the state after the last commit of an export; None if there is none.

    If that commit has only changes, older commits are read up to the one with the whole state. Its
    age is stored in the last commit.

    Args:
        newest_first: the table's commits; None for commits of others.
        kept: returns the state of a commit by its name, if it was kept although the commits behind
            it are gone.

    Raises:
        BrokenProgressError: the last commits do not follow each other.
        LostProgressError: the commit with the whole state no longer exists.
    """
    ours: Iterator[Progress | Changes] = (
        progress for progress in newest_first if progress is not None
    )
    last = list(islice(ours, _CHECKED))
    for later, earlier in pairwise(last):
        _require_follows(later, earlier)
    if not last:
        return None
    newest = last[0]
    if isinstance(newest, Progress):
        return newest
    # `ours` continues behind the commits that were compared above.
    # It leaves out commits of others, which `age` does not count.
    for progress in islice(chain(last, ours), 1, newest.age + 1):
        if isinstance(progress, Progress) and progress.commit == newest.whole_commit:
            return newest.on(progress)
    whole = kept(newest.whole_commit)
    if whole is not None:
        return newest.on(whole)
    raise LostProgressError(
        f"the last commit of the export, {newest.commit}, says what has changed since the commit "
        f"{newest.whole_commit}, which has the whole state, and is not in the table's history any "
        "more: it has expired. Roll the table back to a commit that has the whole state "
        f"({VERSION_KEY} is {WHOLE_VERSION}), or set --starting-offsets. --whole-state-every 1 "
        "writes the whole state with each commit"
    )


def _require_follows(later: Progress | Changes, earlier: Progress | Changes) -> None:
    if isinstance(later, Changes) or later.previous is not None:
        follows = later.previous == earlier.commit
    else:  # written by an earlier version of Sidetier, as is the commit before it
        follows = isinstance(earlier, Progress) and dict(later.since) == dict(earlier.offsets)
    if follows:
        return
    raise BrokenProgressError(
        f"the commit {later.commit} does not begin where the one before it, {earlier.commit}, "
        "ended: two exports wrote to this table at once, and it holds records twice. Restore the "
        "table to a commit before both, and run the export again"
    )


def require_same(progress: Progress, cluster: str, isolation: IsolationLevel, table: str) -> None:
    """Check that the table belongs to an export of the same cluster and isolation level.

    Raises:
        OtherExportError: it does not.
    """
    if progress.cluster != cluster:
        raise OtherExportError(
            f"{table} holds records of the cluster {progress.cluster!r}, not of {cluster!r}: "
            "offsets of two clusters do not go into one table"
        )
    if progress.isolation is not isolation:
        raise OtherExportError(
            f"{table} was made with kafka.isolation.level {progress.isolation}, not {isolation}"
        )


def is_at(read: Callable[[], Progress | None], since: Offsets) -> bool:
    """Return whether the table's offsets are those at which a commit starts.

    A run that ignores lost offsets of the table starts without any. So lost offsets match an empty
    `since`.

    Raises:
        LostProgressError: the offsets are lost, and `since` is not empty.
    """
    try:
        held = read()
    except LostProgressError:
        if since:
            raise
        return True
    return (held.offsets if held else {}) == since

"""What a commit says of the offsets that its table holds: plain text under plain names.

Both formats keep strings by name beside a commit (Hudi's extra metadata, Iceberg's snapshot
summary). Ours begin with `sidetier.`; the offsets have the JSON form of Spark's Kafka source.

A commit has the whole state (version 1), or, of a table of many partitions, only what has changed
since an earlier commit that has the whole state (version 2). Changes add up since that commit, so
two commits are enough to know the state.
"""

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from sidetier.pipeline.export.epoch_history import (
    Position,
    Rows,
    epoch_history_of,
    followed,
    rows_of,
)
from sidetier.pipeline.export.errors import refuse_later
from sidetier.pipeline.planning.names import in_words
from sidetier.pipeline.planning.offsets_json import numbers_json, parse_numbers
from sidetier.segments.epoch_history import NO_EPOCHS, EpochHistory
from sidetier.segments.errors import ConfigurationError, MalformedObjectError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

Offsets = Mapping[TopicPartition, Offset]
"""Next offsets: the records below are in the table."""

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
WHOLE_VERSION: Final = 1
CHANGES_VERSION: Final = 2
SMALL_STATE: Final = 32 * 1024
"""Bytes of properties up to which each commit has the whole state: about 300 partitions."""
WHOLE_STATE_EVERY: Final = 50
"""Commits, the one with the whole state included."""
_EPOCHS: Final = TypeAdapter(dict[str, dict[int, Rows]])
_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class Tail:
    """What of a table came from the brokers, and of which topics and history it is.

    Attributes:
        offsets: of each partition, up to where it was last read from them: the archive may end
            below.
        topic_ids: of the topics, where the archive or the brokers give them.
        epoch_histories: of each partition, the newest leader epochs below its next offset; none
            where nobody knows.
    """

    offsets: Offsets = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    epoch_histories: Mapping[TopicPartition, EpochHistory] = field(default_factory=dict)

    def and_then(
        self, later: "Tail", held: Offsets, ranges: Mapping[TopicPartition, OffsetRange]
    ) -> "Tail":
        """Once these ranges were read, too, of which the `later` one tells. What is known already
        is of what lies below `held`: a range without records may have been passed over since.
        """
        kept = {
            tp: followed(
                Position(held.get(tp, span.start), self.epoch_histories.get(tp, NO_EPOCHS)),
                Position(span.end, later.epoch_histories.get(tp, NO_EPOCHS)),
            )
            for tp, span in ranges.items()
        }
        known = {tp: epoch_history for tp, epoch_history in kept.items() if epoch_history.entries}
        return Tail(
            {**self.offsets, **later.offsets},
            {**self.topic_ids, **later.topic_ids},
            {**self.without(ranges).epoch_histories, **known},
        )

    def without(self, tps: Container[TopicPartition]) -> "Tail":
        """What is known of other partitions' offsets."""
        return Tail(
            {tp: offset for tp, offset in self.offsets.items() if tp not in tps},
            self.topic_ids,
            {
                tp: epoch_history
                for tp, epoch_history in self.epoch_histories.items()
                if tp not in tps
            },
        )


NO_TAIL: Final = Tail()


@dataclass(frozen=True, slots=True)
class WholeState:
    """An earlier commit that has the whole state.

    Attributes:
        commit: its name.
        offsets: what it says.
        tail: what it says.
        age: how many commits of ours ago it was made.
    """

    commit: str
    offsets: Offsets
    tail: Tail
    age: int


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a table after one commit.

    Attributes:
        cluster: the name of the cluster whose records these are.
        isolation: which records were taken of those offsets.
        offsets: of every partition that was ever exported into the table, the next offset.
        since: the same before the commit; empty at the first one.
        commit: a name for the commit that no other has.
        tail: what of the table came from the brokers.
        previous: the name of the commit before; None at the first, and of earlier versions.
        whole: the commit since which this one says the changes; None where it has the whole state.
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
    def offsets_without_epoch(self) -> Offsets:
        """Those of the next offsets below which no epoch history is known: a fork there is not
        seen.
        """
        known = self.tail.epoch_histories
        return {tp: offset for tp, offset in self.offsets.items() if tp not in known}


@dataclass(frozen=True, slots=True)
class Changes:
    """What a commit says that has not the whole state.

    Attributes:
        commit: as in `Progress`.
        previous: the name of the commit before.
        whole_commit: the name of the commit since which these are the changes.
        age: how many commits of ours ago that one was made.
        offsets: those that have changed.
        tail: what of it has changed.
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
        """The whole state."""
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
    """A commit as it is to be written behind another one: with its changes alone where the state is
    large, the changes are less than half of it, and fewer than `every` commits have passed since
    the last one with the whole state.
    """
    if earlier is None:
        return progress
    progress = replace(progress, previous=earlier.commit, whole=None)
    whole = earlier.whole or WholeState(earlier.commit, earlier.offsets, earlier.tail, 0)
    if whole.age + 1 >= every or _has_lost(whole, progress):
        return progress
    size = _size(to_properties(progress))
    changed = replace(progress, whole=replace(whole, age=whole.age + 1))
    is_worth_it = size > SMALL_STATE and 2 * _size(to_properties(changed)) < size
    return changed if is_worth_it else progress


def _has_lost(before: WholeState, now: Progress) -> bool:
    """Whether something is known no more: changes cannot say that."""
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
    """What is kept beside the commit."""
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
    """What a commit says; None where it is not one of ours. `where` names it, for errors.

    Raises:
        NewerStateError: a later version has written it.
        MalformedObjectError: a part is missing, or is not what it should be.
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
    """Rows of leader epochs, each with its first offset: `{"orders":{"0":[[3,0],[5,120]]}}`."""
    found: dict[str, dict[str, Rows]] = {}
    for tp, epoch_history in sorted(epoch_histories.items()):
        found.setdefault(tp.topic, {})[str(tp.partition)] = rows_of(epoch_history)
    return json.dumps(found, separators=(",", ":"))


def parse_epochs(text: str) -> dict[TopicPartition, EpochHistory]:
    """What `epochs_json` has written; raises ConfigurationError."""
    try:
        found = _EPOCHS.validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigurationError(f"{EPOCHS_KEY}: {place}: {first['msg']}") from None
    return {
        TopicPartition(topic, partition): epoch_history_of(rows)
        for topic, partitions in found.items()
        for partition, rows in partitions.items()
    }


def _known(version: str, where: str) -> int:
    if not version.isdecimal():
        raise MalformedObjectError(f"{where}: {VERSION_KEY} is {version!r}, and no number")
    refuse_later(int(version), CHANGES_VERSION, "an export's offsets", where)
    return int(version)


def _tail(properties: Mapping[str, str]) -> Tail:
    offsets = _offsets(properties, TAIL_KEY) if TAIL_KEY in properties else {}
    topics = json.loads(properties.get(TOPICS_KEY, "{}"))
    if not isinstance(topics, dict) or not all(isinstance(one, str) for one in topics.values()):
        raise ConfigurationError(f"{TOPICS_KEY}: {topics!r}: must be the ids of topics by name")
    epoch_histories = parse_epochs(properties[EPOCHS_KEY]) if EPOCHS_KEY in properties else {}
    return Tail(offsets, topics, epoch_histories)


def _offsets(properties: Mapping[str, str], name: str) -> dict[TopicPartition, Offset]:
    numbers = parse_numbers(properties[name], name)
    for tp, number in numbers.items():
        if number < 0:
            raise ConfigurationError(f"{name}: offset {number} of {in_words(tp)} is below 0")
    return {tp: Offset(number) for tp, number in numbers.items()}

"""What a commit says of the offsets that its table holds: plain text under plain names.

Both formats keep strings by name beside a commit (Hudi's extra metadata, Iceberg's snapshot
summary). Ours begin with `sidetier.`; the offsets have the JSON form of Spark's Kafka source.
"""

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import TypeAdapter, ValidationError

from sidetier.pipeline.export.errors import refuse_later
from sidetier.pipeline.export.lineage import Position, Rows, followed, lineage_of, rows_of
from sidetier.pipeline.planning.names import in_words
from sidetier.pipeline.planning.offsets_json import numbers_json, parse_numbers
from sidetier.pipeline.planning.split import OffsetRange
from sidetier.segments.errors import ConfigurationError, MalformedObjectError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.lineage import NO_LINEAGE, Lineage
from sidetier.segments.offsets import Offset, TopicPartition

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
VERSION: Final = 1
_EPOCHS: Final = TypeAdapter(dict[str, dict[int, Rows]])


@dataclass(frozen=True, slots=True)
class Tail:
    """What of a table came from the brokers, and of which topics and history it is.

    Attributes:
        offsets: of each partition, up to where it was last read from them: the archive may end
            below.
        topic_ids: of the topics, where the archive or the brokers give them.
        lineages: of each partition, the newest leader epochs below its next offset; none where
            nobody knows.
    """

    offsets: Offsets = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    lineages: Mapping[TopicPartition, Lineage] = field(default_factory=dict)

    def and_then(
        self, later: "Tail", held: Offsets, ranges: Mapping[TopicPartition, OffsetRange]
    ) -> "Tail":
        """Once these ranges were read, too, of which the `later` one tells. What is known already
        is of what lies below `held`: a range without records may have been passed over since.
        """
        kept = {
            tp: followed(
                Position(held.get(tp, span.first), self.lineages.get(tp, NO_LINEAGE)),
                Position(span.until, later.lineages.get(tp, NO_LINEAGE)),
            )
            for tp, span in ranges.items()
        }
        known = {tp: lineage for tp, lineage in kept.items() if lineage.entries}
        return Tail(
            {**self.offsets, **later.offsets},
            {**self.topic_ids, **later.topic_ids},
            {**self.without(ranges).lineages, **known},
        )

    def without(self, tps: Container[TopicPartition]) -> "Tail":
        """What is known of other partitions' offsets."""
        return Tail(
            {tp: offset for tp, offset in self.offsets.items() if tp not in tps},
            self.topic_ids,
            {tp: lineage for tp, lineage in self.lineages.items() if tp not in tps},
        )


NO_TAIL: Final = Tail()


@dataclass(frozen=True, slots=True)
class Progress:
    """What one commit says.

    Attributes:
        cluster: the name of the cluster whose records these are.
        isolation: which records were taken of those offsets.
        offsets: of every partition that was ever exported into the table, the next offset.
        since: the same before the commit; empty at the first one.
        commit: a name for the commit that no other has.
        tail: what of the table came from the brokers.
    """

    cluster: str
    isolation: IsolationLevel
    offsets: Offsets
    since: Offsets
    commit: str
    tail: Tail = NO_TAIL

    @property
    def exported_blindly(self) -> Offsets:
        """Those of the next offsets below which no lineage is known: a fork there is not seen."""
        known = self.tail.lineages
        return {tp: offset for tp, offset in self.offsets.items() if tp not in known}


def to_properties(progress: Progress) -> dict[str, str]:
    """What is kept beside the commit."""
    tail = progress.tail
    more = {TAIL_KEY: numbers_json(tail.offsets)} if tail.offsets else {}
    if tail.topic_ids:
        more[TOPICS_KEY] = json.dumps(dict(sorted(tail.topic_ids.items())), separators=(",", ":"))
    if tail.lineages:
        more[EPOCHS_KEY] = epochs_json(tail.lineages)
    return {
        VERSION_KEY: str(VERSION),
        CLUSTER_KEY: progress.cluster,
        ISOLATION_KEY: progress.isolation.value,
        OFFSETS_KEY: numbers_json(progress.offsets),
        SINCE_KEY: numbers_json(progress.since),
        COMMIT_KEY: progress.commit,
        **more,
    }


def from_properties(properties: Mapping[str, str], where: str) -> Progress | None:
    """What a commit says; None where it is not one of ours. `where` names it, for errors.

    Raises:
        NewerStateError: a later version has written it.
        MalformedObjectError: a part is missing, or is not what it should be.
    """
    version = properties.get(VERSION_KEY)
    if version is None:
        return None
    _require_known(version, where)
    try:
        return Progress(
            cluster=properties[CLUSTER_KEY],
            isolation=IsolationLevel(properties[ISOLATION_KEY]),
            offsets=_offsets(properties, OFFSETS_KEY),
            since=_offsets(properties, SINCE_KEY),
            commit=properties[COMMIT_KEY],
            tail=_tail(properties),
        )
    except KeyError as error:
        raise MalformedObjectError(f"{where} does not say {error.args[0]}") from None
    except (ValueError, ConfigurationError) as error:
        raise MalformedObjectError(f"{where}: {error}") from None


def epochs_json(lineages: Mapping[TopicPartition, Lineage]) -> str:
    """Rows of leader epochs, each with its first offset: `{"orders":{"0":[[3,0],[5,120]]}}`."""
    found: dict[str, dict[str, Rows]] = {}
    for tp, lineage in sorted(lineages.items()):
        found.setdefault(tp.topic, {})[str(tp.partition)] = rows_of(lineage)
    return json.dumps(found, separators=(",", ":"))


def parse_epochs(text: str) -> dict[TopicPartition, Lineage]:
    """What `epochs_json` has written; raises ConfigurationError."""
    try:
        found = _EPOCHS.validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigurationError(f"{EPOCHS_KEY}: {place}: {first['msg']}") from None
    return {
        TopicPartition(topic, partition): lineage_of(rows)
        for topic, partitions in found.items()
        for partition, rows in partitions.items()
    }


def _require_known(version: str, where: str) -> None:
    if not version.isdecimal():
        raise MalformedObjectError(f"{where}: {VERSION_KEY} is {version!r}, and no number")
    refuse_later(int(version), VERSION, "an export's offsets", where)


def _tail(properties: Mapping[str, str]) -> Tail:
    offsets = _offsets(properties, TAIL_KEY) if TAIL_KEY in properties else {}
    topics = json.loads(properties.get(TOPICS_KEY, "{}"))
    if not isinstance(topics, dict) or not all(isinstance(one, str) for one in topics.values()):
        raise ConfigurationError(f"{TOPICS_KEY}: {topics!r}: must be the ids of topics by name")
    lineages = parse_epochs(properties[EPOCHS_KEY]) if EPOCHS_KEY in properties else {}
    return Tail(offsets, topics, lineages)


def _offsets(properties: Mapping[str, str], name: str) -> dict[TopicPartition, Offset]:
    numbers = parse_numbers(properties[name], name)
    for tp, number in numbers.items():
        if number < 0:
            raise ConfigurationError(f"{name}: offset {number} of {in_words(tp)} is below 0")
    return {tp: Offset(number) for tp, number in numbers.items()}

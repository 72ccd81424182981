"""What a commit says of the offsets that its table holds: plain text under plain names.

Both formats keep strings by name beside a commit (Hudi's extra metadata, Iceberg's snapshot
summary). Ours begin with `sidetier.`; the offsets have the JSON form of Spark's Kafka source.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sidetier.pipeline.export.errors import NewerStateError
from sidetier.segments.errors import MalformedObjectError
from sidetier.segments.isolation import IsolationLevel
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
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Progress:
    """What one commit says.

    Attributes:
        cluster: the name of the cluster whose records these are.
        isolation: which records were taken of those offsets.
        offsets: of every partition that was ever exported into the table, the next offset.
        since: the same before the commit; empty at the first one.
        commit: a name for the commit that no other has.
    """

    cluster: str
    isolation: IsolationLevel
    offsets: Offsets
    since: Offsets
    commit: str


def to_properties(progress: Progress) -> dict[str, str]:
    """What is kept beside the commit."""
    return {
        VERSION_KEY: str(VERSION),
        CLUSTER_KEY: progress.cluster,
        ISOLATION_KEY: progress.isolation.value,
        OFFSETS_KEY: offsets_to_json(progress.offsets),
        SINCE_KEY: offsets_to_json(progress.since),
        COMMIT_KEY: progress.commit,
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
            offsets=offsets_from_json(properties[OFFSETS_KEY]),
            since=offsets_from_json(properties[SINCE_KEY]),
            commit=properties[COMMIT_KEY],
        )
    except KeyError as error:
        raise MalformedObjectError(f"{where} does not say {error.args[0]}") from None
    except ValueError as error:
        raise MalformedObjectError(f"{where}: {error}") from None


def _require_known(version: str, where: str) -> None:
    if not version.isdecimal():
        raise MalformedObjectError(f"{where}: {VERSION_KEY} is {version!r}, and no number")
    if int(version) > VERSION:
        raise NewerStateError(
            f"{where} was written by a later version of Sidetier ({VERSION_KEY} {version}; up to "
            f"{VERSION} is known here). Go on with that version"
        )


def offsets_to_json(offsets: Offsets) -> str:
    """By topic and partition, in order: `{"orders":{"0":12,"1":7}}`."""
    tree: dict[str, dict[str, int]] = {}
    for tp in sorted(offsets):
        tree.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return json.dumps(tree, separators=(",", ":"), ensure_ascii=True)


def offsets_from_json(text: str) -> dict[TopicPartition, Offset]:
    """What `offsets_to_json` has made.

    Raises:
        ValueError: it is not of that form, or has an offset below 0.
    """
    tree = json.loads(text)
    if not isinstance(tree, dict):
        raise ValueError(f"no offsets by topic and partition: {text!r}")  # noqa: TRY004 - a text
    return dict(_entries(tree))


def _entries(tree: Mapping[str, object]) -> Iterable[tuple[TopicPartition, Offset]]:
    for topic, partitions in tree.items():
        if not isinstance(partitions, dict):
            raise ValueError(f"no offsets by partition under {topic!r}")  # noqa: TRY004 - a text
        for number, offset in partitions.items():
            if not number.isdecimal() or type(offset) is not int or offset < 0:
                raise ValueError(f"no offset of a partition: {topic} {number!r}: {offset!r}")
            yield TopicPartition(topic, int(number)), Offset(offset)

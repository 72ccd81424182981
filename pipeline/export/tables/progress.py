"""What a commit says of the offsets that its table holds: plain text under plain names.

Both formats keep strings by name beside a commit (Hudi's extra metadata, Iceberg's snapshot
summary). Ours begin with `sidetier.`; the offsets have the JSON form of Spark's Kafka source.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sidetier.pipeline.export.errors import NewerStateError
from sidetier.pipeline.planning.names import in_words
from sidetier.pipeline.planning.offsets_json import numbers_json, parse_numbers
from sidetier.segments.errors import ConfigurationError, MalformedObjectError
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
        OFFSETS_KEY: numbers_json(progress.offsets),
        SINCE_KEY: numbers_json(progress.since),
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
            offsets=_offsets(properties, OFFSETS_KEY),
            since=_offsets(properties, SINCE_KEY),
            commit=properties[COMMIT_KEY],
        )
    except KeyError as error:
        raise MalformedObjectError(f"{where} does not say {error.args[0]}") from None
    except (ValueError, ConfigurationError) as error:
        raise MalformedObjectError(f"{where}: {error}") from None


def _require_known(version: str, where: str) -> None:
    if not version.isdecimal():
        raise MalformedObjectError(f"{where}: {VERSION_KEY} is {version!r}, and no number")
    if int(version) > VERSION:
        raise NewerStateError(
            f"{where} was written by a later version of Sidetier ({VERSION_KEY} {version}; up to "
            f"{VERSION} is known here). Go on with that version"
        )


def _offsets(properties: Mapping[str, str], name: str) -> dict[TopicPartition, Offset]:
    numbers = parse_numbers(properties[name], name)
    for tp, number in numbers.items():
        if number < 0:
            raise ConfigurationError(f"{name}: offset {number} of {in_words(tp)} is below 0")
    return {tp: Offset(number) for tp, number in numbers.items()}

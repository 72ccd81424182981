"""Decide which source topics are copied, under which names, and which are refused. Pure, no I/O.

The refusals protect the guarantee that each source record is on the target once, in its partition,
with its timestamp.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sidetier.segments.errors import ConfigurationError
from sidetier.segments.json_text import parse_json
from sidetier.segments.names import is_legal_topic
from sidetier.segments.offsets import TopicPartition

GROUP_PREFIX: Final = "sidetier-mirror-"
"""Prefix of the progress groups of all mirrors; the mirror's name follows."""
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
_INTERNAL: Final = re.compile(r"__.*|sidetier-(drill|mirror|restore)-.*")
APPEND_TIME: Final = "LogAppendTime"
CREATE_TIME: Final = "CreateTime"
MAX_MESSAGE_BYTES: Final = "max.message.bytes"
SEGMENT_BYTES: Final = "segment.bytes"
TIMESTAMP_TYPE: Final = "message.timestamp.type"
NOT_COPIED: Final = frozenset(
    {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "local.retention.bytes",
        "local.retention.ms",
        "message.format.version",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.difference.max.ms",
        "min.insync.replicas",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
        "unclean.leader.election.enable",
    }
)
"""Topic settings that are not copied, because they depend on the brokers of their own cluster, are
unknown to new brokers, or would make the target's brokers refuse old records.
"""


@dataclass(frozen=True, slots=True)
class MirrorNames:
    """Names of the group, the topics and the transactional ids of a mirror on the target.

    Attributes:
        name: The mirror's name.
        kind: `mirror`, `restore` or `drill`; the last two copy as a mirror does.

    Raises:
        ConfigurationError: No topic or group could have the name.
    """

    name: str
    kind: str = "mirror"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"{self.kind} name {self.name!r}: use 1 to 100 letters, digits, '.', '_' and '-'"
            )

    @property
    def _prefix(self) -> str:
        return f"sidetier-{self.kind}-{self.name}"

    @property
    def group(self) -> str:
        """The target's consumer group whose offsets are the progress."""
        return self._prefix

    @property
    def offsets_topic(self) -> str:
        """The target's compacted topic that keeps the offset map."""
        return f"{self._prefix}-offsets"

    def transactional_id(self, worker: str = "0") -> str:
        """Return the id that fences an earlier process of the same worker.

        Raises:
            ConfigurationError: The worker's name has other characters or is too long.
        """
        if not _NAME.fullmatch(worker):
            raise ConfigurationError(
                f"--worker {worker!r}: use 1 to 100 letters, digits, '.', '_' and '-'"
            )
        return f"{self._prefix}-{worker}"

    def partition_transactional_id(self, target: TopicPartition) -> str:
        """Return the id of an attempt that copies only this partition.

        The colon keeps it from being equal to a worker's id.

        Args:
            target: The partition on the target.
        """
        return f"{self._prefix}:{target}"


@dataclass(frozen=True, slots=True)
class TopicRules:
    r"""Patterns that select source topics, and rules for the names of their copies.

    Attributes:
        include: Regular expressions; a topic is copied if one matches its whole name.
        exclude: Regular expressions; a topic is not copied if one matches its whole name.
        rename: Pairs of a regular expression and its replacement (`\1` for a group). The first that
            matches the whole name gives the target's name; if none matches, the name is kept.
    """

    include: tuple[re.Pattern[str], ...]
    exclude: tuple[re.Pattern[str], ...] = ()
    rename: tuple[tuple[re.Pattern[str], str], ...] = ()

    def selects(self, topic: str) -> bool:
        """Whether the topic is copied. Internal topics and the mirrors' own topics are not."""
        return (
            not _INTERNAL.fullmatch(topic)
            and any(pattern.fullmatch(topic) for pattern in self.include)
            and not any(pattern.fullmatch(topic) for pattern in self.exclude)
        )

    def target_of(self, topic: str) -> str:
        """Return the copy's name, which may be illegal; see `name_problems`."""
        for pattern, replacement in self.rename:
            matched = pattern.fullmatch(topic)
            if matched is not None:
                return matched.expand(replacement)
        return topic

    def targets(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the copy's name of each selected topic."""
        return {topic: self.target_of(topic) for topic in sorted(topics) if self.selects(topic)}


def name_problems(targets: Mapping[str, str], owners: Mapping[str, str]) -> dict[str, str]:
    """Return why topics cannot be copied under the names of their copies.

    Args:
        targets: The copy's name of each source topic.
        owners: The source topic of each target topic that has progress. It keeps the name when a
            rule gives another topic the same one.
    """
    by_target: dict[str, list[str]] = {}
    for source, target in targets.items():
        by_target.setdefault(target, []).append(source)
    problems = {}
    for target, sources in by_target.items():
        for source in sources:
            if not is_legal_topic(target):
                problems[source] = (
                    f"--rename gives topic {source} the name {target!r}, which no topic can have"
                )
            elif len(sources) > 1 and owners.get(target) != source:
                problems[source] = (
                    f"--rename gives topics {' and '.join(sources)} the same name {target}: their "
                    "records and offsets would mix; change the rule"
                )
    return problems


def compiled(pattern: str, option: str) -> re.Pattern[str]:
    """Compile a pattern of the command line; raise ConfigurationError if it is not valid."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigurationError(f"{option} {pattern!r}: {error}") from None


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where the records of a mirrored topic come from; stored as metadata of the progress.

    Attributes:
        topic: The source topic.
        clusters: The ids of the Kafka clusters that the records have passed through, in order.
        source_id: Id of the source topic (KIP-516); None if a broker before 2.8 has none. It
            changes if the topic is deleted and created again.
        target_id: Id of the target topic, likewise.
        partitions: Number of partitions of the source topic when the copy of this partition began.
    """

    topic: str
    clusters: tuple[str, ...]
    source_id: str | None = None
    target_id: str | None = None
    partitions: int | None = None

    def encoded(self) -> str:
        """Encode the lineage as JSON text."""
        value: dict[str, object] = {"source_topic": self.topic, "clusters": list(self.clusters)}
        others = {
            "source_id": self.source_id,
            "target_id": self.target_id,
            "partitions": self.partitions,
        }
        value.update({name: other for name, other in others.items() if other is not None})
        return json.dumps(value, separators=(",", ":"))


def decode_lineage(metadata: str | None) -> Lineage | None:
    """Decode what `Lineage.encoded` has made; None for any other text."""
    try:
        value = parse_json(metadata or "")
        return Lineage(
            str(value["source_topic"]),
            tuple(map(str, value["clusters"])),
            value.get("source_id"),
            value.get("target_id"),
            value.get("partitions"),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def lineage_of_copy(
    topic: str, source_cluster: str, mirrored_there: Mapping[str, Lineage]
) -> Lineage:
    """Return the lineage of a topic's copy.

    Args:
        topic: The source topic.
        source_cluster: Id of the source cluster.
        mirrored_there: The lineages of the source's topics that are copies themselves.
    """
    before = mirrored_there.get(topic)
    return Lineage(topic, (*(before.clusters if before else ()), source_cluster))


def loop_problem(lineage: Lineage, target: str, target_cluster: str) -> str | None:
    """Return why copying a topic would feed a cluster its own records; None if it would not.

    A raw batch cannot take another header, so records cannot be marked. The progress of each mirror
    names the clusters that its records came from, and a mirror reads that on its source.
    """
    if target_cluster not in lineage.clusters:
        return None
    if lineage.clusters[-1] == target_cluster and len(lineage.clusters) == 1:
        if lineage.topic != target:
            return None  # one cluster: a copy under another name
        return (
            f"topic {lineage.topic}: source and target are the same cluster {target_cluster}, and "
            "the copy would have the same name; give a --rename rule"
        )
    path = " → ".join((*lineage.clusters, target_cluster))
    return (
        f"topic {lineage.topic}: its records came from the target cluster ({path}), so a copy "
        "would send them in a loop; exclude the topic with --exclude, or stop the other mirror and "
        "delete its consumer group on the source"
    )


def was_recreated(now: Lineage, kept: Lineage) -> bool:
    """Whether the source topic was deleted and created again since the copy began.

    Args:
        now: The lineage with the current ids of the topics.
        kept: The lineage stored with the progress.
    """
    return None not in (now.source_id, kept.source_id) and now.source_id != kept.source_id


def may_restart(now: Lineage, kept: Iterable[Lineage]) -> bool:
    """Whether a copy may be deleted and begun again because its source topic was recreated.

    The target topic must be the one to which this mirror has copied the former source topic: its id
    is the one stored with the progress. Brokers before 2.8 have no ids.

    Args:
        now: The lineage with the current ids of the topics.
        kept: The lineages stored with the progress of the copy's partitions.
    """
    former = [noted for noted in kept if was_recreated(now, noted)]
    return bool(former) and all(
        noted.topic == now.topic
        and noted.clusters[-1:] == now.clusters[-1:]
        and noted.target_id is not None
        and noted.target_id == now.target_id
        for noted in former
    )


def progress_problem(now: Lineage, kept: Lineage, target: str) -> str | None:
    """Return why a copy cannot continue with the current topics; None if it can.

    Args:
        now: The lineage with the current ids of the topics.
        kept: The lineage stored with the progress; without ids if an older release stored it.
        target: The target topic.
    """
    if now.topic != kept.topic or (
        now.clusters[-1] and kept.clusters and now.clusters[-1] != kept.clusters[-1]
    ):
        return (
            f"topic {target} on the target is the copy of topic {kept.topic} of cluster "
            f"{kept.clusters[-1] if kept.clusters else '?'}, not of {now.topic} of cluster "
            f"{now.clusters[-1]}: the offsets do not fit. Use another --name and a --rename rule"
        )
    if was_recreated(now, kept):
        return (
            f"topic {now.topic}: it was deleted and created again on the source (topic id "
            f"{now.source_id}, the copied topic had {kept.source_id}), so its offsets name other "
            "records. Copy it under another name (another --name with a --rename rule), or delete "
            f"topic {target} on the target, which also deletes its progress, to copy the new topic "
            "from its start; --on-recreate restart does so"
        )
    if None not in (now.target_id, kept.target_id) and now.target_id != kept.target_id:
        return (
            f"topic {target} was deleted and created again on the target (topic id "
            f"{now.target_id}, the former copy had {kept.target_id}): the copied records are gone. "
            f"To copy all of {now.topic} again, stop the mirror and delete topic {target}, which "
            "also deletes its progress"
        )
    return None


def was_added(partition: int, kept: Iterable[Lineage]) -> bool:
    """Whether a partition was added to a source topic after its copy began.

    Args:
        partition: The number of a partition that has no progress.
        kept: The lineages stored with the progress of the topic's other partitions.
    """
    return any(
        lineage.partitions is not None and lineage.partitions <= partition for lineage in kept
    )


def records_problem(source: str, target: str) -> str:
    """Return why a target topic that has records but no progress is refused."""
    return (
        f"topic {target} on the target has records, and this mirror has no progress of it: a copy "
        f"could write records of {source} a second time. Without members a group's offsets "
        "expire (offsets.retention.minutes, default 7 days). Delete the topic, copy under another "
        "name (--rename), or accept the records (--accept-target-records)"
    )


def partition_problem(topic: str, target: str, source_count: int, target_count: int) -> str | None:
    """Return why the target's partition count does not fit; None if it does."""
    if source_count == target_count:
        return None
    return (
        f"topic {topic} has {source_count} partitions and {target} on the target {target_count}: "
        "records would change their partition; use a --rename rule, or create the target topic "
        f"with {source_count} partitions"
    )


def timestamp_problem(target: str, settings: Mapping[str, str | None]) -> str | None:
    """Return why the target's topic would change timestamps; None if it would not."""
    if settings.get(TIMESTAMP_TYPE) != APPEND_TIME:
        return None
    return (
        f"topic {target} on the target has {TIMESTAMP_TYPE}={APPEND_TIME}, which replaces each "
        "record's timestamp; set it to CreateTime, or accept that with --accept-log-append-time"
    )


def topic_rules(
    topics: tuple[str, ...], exclude: tuple[str, ...], rename: tuple[str, ...]
) -> TopicRules:
    """Return the rules for patterns of topic names.

    Args:
        topics: Patterns of the topics; at least one.
        exclude: Patterns of the topics to leave out.
        rename: `PATTERN=NAME`: names of copies; the first pattern that matches counts.

    Raises:
        ConfigurationError: A pattern is invalid, or there is no topic.
    """
    if not topics:
        raise ConfigurationError(
            "--topic is missing: name a topic, or a pattern such as 'orders.*'"
        )
    pairs = []
    for text in rename:
        pattern, separator, replacement = text.rpartition("=")
        if not separator:
            raise ConfigurationError(f"--rename {text!r}: give PATTERN=NAME")
        pairs.append((compiled(pattern, "--rename"), replacement))
    return TopicRules(
        tuple(compiled(text, "--topic") for text in topics),
        tuple(compiled(text, "--exclude") for text in exclude),
        tuple(pairs),
    )

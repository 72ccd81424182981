"""Checks of the topics' configurations. Pure."""

from collections.abc import Callable, Iterator
from typing import Final

from sidetier.cli.arguments import age_text, size_text
from sidetier.cli.cluster_facts import number
from sidetier.cli.doctor.facts import DoctorFacts, TopicFacts
from sidetier.cli.doctor.findings import Finding, advice, ok, problem, some
from sidetier.leadership.topic_configs import topic_config
from sidetier.uploader.gates.topic_rules import refusal_of

_SHORT_DELAY_MS: Final = 300_000
_LONG_WAIT_MS: Final = 86_400_000
_SHORT_RETENTION: Final = 3600.0
_MARGIN: Final = 4
_FEW_SEGMENTS: Final = 4


def check_topics(facts: DoctorFacts) -> Iterator[Finding]:
    """Run all checks of topics, if the brokers have returned the configurations."""
    if not facts.topics_known:
        why = facts.problems.get("cluster", "broker.bootstrap_servers is not set")
        yield advice(
            "topics",
            f"their settings are not known: {why}",
            "give the broker's address, and Describe and DescribeConfigs on the topics",
            "broker.bootstrap_servers: localhost:9092",
        )
        return
    for check in _TOPIC_CHECKS:
        yield from check(facts)


def refused(facts: DoctorFacts) -> Iterator[Finding]:
    """Check for topics that are selected, but not archived."""
    compacted = facts.config.topics.compacted == "refuse"
    names: dict[bool, list[str]] = {True: [], False: []}
    for topic in facts.topics:
        config = topic_config(topic.settings)
        if refusal_of(topic.name, config, refuse_compacted=compacted) is not None:
            names[config.native_tiering].append(topic.name)
    if names[True]:
        yield problem(
            "native tiering",
            f"not archived, the broker tiers them itself: {some(names[True])}",
            "leave them out, or switch the broker's own tiering off",
            f"topics.exclude: [{names[True][0]}]",
        )
    if names[False]:
        yield problem(
            "compacted topics",
            f"refused, so not archived: {some(names[False])}",
            "leave them out, or archive each segment as it closes, before compaction",
            f"topics.exclude: [{names[False][0]}], or topics.compacted: as_closed",
        )
    if not any(names.values()):
        yield ok("refused topics", f"none of {len(facts.topics)} topics")


def delete_delay(facts: DoctorFacts) -> Iterator[Finding]:
    """Check how long a sidecar that was away can still find `.deleted` files."""
    short = _below(facts.topics, "file.delete.delay.ms", _SHORT_DELAY_MS)
    if not short:
        yield ok("file.delete.delay.ms", "five minutes or more on every topic")
        return
    least = min(short.values())
    yield advice(
        "file.delete.delay.ms",
        f"{age_text(least / 1000)} on {some(short)}: a sidecar that is away for longer finds "
        "nothing of what was deleted meanwhile",
        "make it longer than the longest restart of the sidecar; costs disk for as long",
        "file.delete.delay.ms=3600000",
    )


def _below(topics: tuple[TopicFacts, ...], name: str, limit: int) -> dict[str, int]:
    values = {topic.name: number(topic.settings, name) for topic in topics}
    return {topic: value for topic, value in values.items() if value is not None and value < limit}


def retention_by_time(facts: DoctorFacts) -> Iterator[Finding]:
    """Compare `retention.ms` with the largest age of records that are not stored."""
    late, near = [], []
    for topic in facts.topics:
        retention = topic_config(topic.settings).retention
        if retention is None:
            continue
        lag = _worst(facts, topic.name, "oldest_unstored_age_seconds")
        if lag >= retention:
            late.append(topic.name)
        elif retention < max(_SHORT_RETENTION, _MARGIN * lag):
            near.append(topic.name)
    yield from _retention(
        "retention.ms",
        late,
        near,
        ("at or below the age of records that are not stored", "an hour, or four times the lag"),
        "retention.ms=86400000",
    )


def _worst(facts: DoctorFacts, topic: str, field: str) -> float:
    rows = facts.sidecar.of_topic(topic) if facts.sidecar is not None else []
    return max((float(row[field] or 0) for row in rows), default=0.0)


def _retention(
    name: str, late: list[str], near: list[str], words: tuple[str, str], setting: str
) -> Iterator[Finding]:
    too_low, margin = words
    if late:
        yield problem(
            name,
            f"{too_low}: {some(late)}",
            "raise it until the sidecar has caught up: what is deleted is held by pins alone",
            setting,
        )
    if near:
        yield advice(
            name,
            f"below {margin}: {some(near)}",
            "let it outlast the worst time that store or sidecar may be away",
            setting,
        )
    if not late and not near:
        yield ok(name, "leaves time to store")


def retention_by_size(facts: DoctorFacts) -> Iterator[Finding]:
    """Compare `retention.bytes`, which applies to each partition, with what is not stored."""
    late, near = [], []
    for topic in facts.topics:
        limit = number(topic.settings, "retention.bytes")
        if limit is None or limit < 0:
            continue
        segment = segment_bytes(topic) or 0
        if _worst(facts, topic.name, "unstored_bytes") >= limit:
            late.append(topic.name)
        elif limit < _FEW_SEGMENTS * segment:
            near.append(topic.name)
    yield from _retention(
        "retention.bytes",
        late,
        near,
        ("at or below what a partition has unstored", "four segments (segment.bytes)"),
        "retention.bytes=10737418240",
    )


def segment_bytes(topic: TopicFacts) -> int | None:
    """Return the size at which the broker closes a segment of the topic."""
    internal = number(topic.settings, "internal.segment.bytes")
    return internal or number(topic.settings, "segment.bytes")


def closing(facts: DoctorFacts) -> Iterator[Finding]:
    """Check how long records wait in an active segment that does not fill."""
    slow = {
        topic.name: value
        for topic in facts.topics
        if (value := number(topic.settings, "segment.ms")) is not None and value >= _LONG_WAIT_MS
    }
    if not slow:
        yield ok("segment.ms", "segments close within a day")
        return
    longest = max(slow, key=lambda name: slow[name])
    size = next(segment_bytes(topic) for topic in facts.topics if topic.name == longest)
    yield advice(
        "segment.ms",
        f"where {size_text(size) or 'segment.bytes'} is not reached, records wait up to "
        f"{age_text(slow[longest] / 1000)} before their segment closes: {some(slow)}",
        "close segments more often: what is in an active segment is on the brokers alone",
        "segment.ms=3600000",
    )


def durability(facts: DoctorFacts) -> Iterator[Finding]:
    """Check settings that let a cluster discard archived records, or lose them before."""
    unclean = _with(facts, "unclean.leader.election.enable", "true")
    if unclean:
        yield problem(
            "unclean election",
            f"allowed on {some(unclean)}: records that are stored may be thrown away by the "
            "cluster, and the archive forks",
            "forbid it",
            "unclean.leader.election.enable=false",
        )
    else:
        yield ok("unclean election", "forbidden on every topic")
    weak = [
        topic.name
        for topic in facts.topics
        if (topic.replicas or 0) > 1 and (number(topic.settings, "min.insync.replicas") or 1) < 2  # noqa: PLR2004
    ]
    if weak:
        yield advice(
            "min.insync.replicas",
            f"1 on {some(weak)}: acks=all may mean one broker's disk",
            "ask for two",
            "min.insync.replicas=2",
        )
    alone = [topic.name for topic in facts.topics if topic.replicas == 1]
    if alone:
        yield advice(
            "replicas",
            f"one only: {some(alone)}; until stored, a record is on one disk",
            "add replicas, or close segments more often",
        )
    if not weak and not alone:
        yield ok("min.insync.replicas", "two or more, where there are replicas")


def _with(facts: DoctorFacts, name: str, value: str) -> list[str]:
    return [topic.name for topic in facts.topics if topic.settings.get(name) == value]


_TOPIC_CHECKS: Final[tuple[Callable[[DoctorFacts], Iterator[Finding]], ...]] = (
    refused,
    retention_by_time,
    retention_by_size,
    delete_delay,
    closing,
    durability,
)

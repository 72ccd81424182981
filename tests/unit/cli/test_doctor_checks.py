"""Each check of `doctor`, with given facts."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from sidetier.archive.objects.layout import LayoutNote
from sidetier.cli import exits
from sidetier.cli.commands.doctor import DoctorResult
from sidetier.cli.inspect.doctor import (
    Finding,
    Level,
    check_encryption,
    check_host,
    check_sidecar,
    check_stores,
    check_topics,
    first_names,
)
from sidetier.cli.inspect.encryption import KeyFacts
from sidetier.cli.inspect.facts import DoctorFacts, TopicFacts
from sidetier.cli.inspect.host import HostFacts, LogDirFacts, SpoolFacts
from sidetier.cli.inspect.sidecar import SidecarState
from sidetier.cli.inspect.store import StoreFacts, ignored_conditions, refused_condition
from sidetier.config.model import Config
from sidetier.segments.errors import (
    AccessDeniedError,
    ConfigurationError,
    PreconditionFailedError,
)
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import NO_OPTIONS, Body, IfMatch, PutOptions, StoredObject
from sidetier.storage.retrying import RetryingStorage
from sidetier.telemetry import status
from sidetier.telemetry.status import PartitionState, PartitionStatus, StatusSnapshot

GIB = 1024**3
SOUND_TOPIC = {
    "cleanup.policy": "delete",
    "remote.storage.enable": "false",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "file.delete.delay.ms": "3600000",
    "segment.ms": "3600000",
    "segment.bytes": "1073741824",
    "unclean.leader.election.enable": "false",
    "min.insync.replicas": "2",
}
DISK = LogDirFacts("/kafka", free=500 * GIB, total=1000 * GIB, device=7)


def config(**parts: object) -> Config:
    settings: dict[str, Any] = {
        "cluster": {"name": "prod-a"},
        "log_dirs": ["/kafka"],
        "storage": {"url": "s3://bucket", "prefix_entropy_bits": 5},
    }
    return Config.model_validate({**settings, **parts}, strict=False)


def topic(name: str = "orders", replicas: int = 3, **settings: str) -> TopicFacts:
    """A valid topic with other settings; underscores in names stand for dots."""
    changed = {key.replace("_", "."): value for key, value in settings.items()}
    return TopicFacts(name, {**SOUND_TOPIC, **changed}, replicas)


def row(**fields: Any) -> PartitionStatus:  # noqa: ANN401 -- fields
    return replace(PartitionStatus("orders", 0, PartitionState.ARCHIVED), **fields)


def sidecar(*rows: PartitionStatus) -> SidecarState:
    return SidecarState("http://here", StatusSnapshot("prod-a", partitions=rows), ready=True)


EARLY_OVERRIDDEN = config(
    uploader={"early": {"topics": ["ord.*"], "overrides": [{"topics": "clicks", "age": "1h"}]}},
    broker={"bootstrap_servers": "localhost:9092"},
)
SOUND = DoctorFacts(
    config(),
    HostFacts(100_000, 100_000, 128, 20, (DISK,), kafka_cluster_id="K"),
    topics=(topic(),),
    topics_known=True,
    cluster_topics=frozenset({"orders", "clicks"}),
    broker_settings={"log.dirs": "/kafka"},
    stores=(StoreFacts("s3://bucket", note=LayoutNote(5, "K"), skew_seconds=1.0),),
    sidecar=sidecar(row()),
    partitions=(TopicPartition("orders", 0),),
)


def findings(facts: DoctorFacts) -> Iterator[Finding]:
    for check in (check_topics, check_host, check_stores, check_encryption, check_sidecar):
        yield from check(facts)


def faults(facts: DoctorFacts) -> list[tuple[str, str]]:
    return [(one.level.value, one.check) for one in findings(facts) if one.level is not Level.OK]


def with_topic(*topics: TopicFacts, **row_fields: Any) -> DoctorFacts:  # noqa: ANN401 -- fields
    return replace(SOUND, topics=topics, sidecar=sidecar(row(**row_fields)))


def with_host(**changes: object) -> DoctorFacts:
    return replace(SOUND, host=replace(SOUND.host, **changes))  # type: ignore[arg-type]


def with_store(**changes: object) -> DoctorFacts:
    return replace(SOUND, stores=(replace(SOUND.stores[0], **changes),))  # type: ignore[arg-type]


def with_retention(
    *topics: TopicFacts,
    selected: str = "orders",
    without_topic_id: tuple[TopicPartition, ...] = (),
) -> DoctorFacts:
    local = {"topics": [selected], "bytes": 0}
    settings = config(retention={"local": local}, broker={"bootstrap_servers": "localhost:9092"})
    return replace(SOUND, config=settings, topics=topics, without_topic_id=without_topic_id)


def with_keys(*keys: KeyFacts, active: str | None = "k2", **changes: object) -> DoctorFacts:
    places = {"k1": {"env": "A"}, "k2": {"env": "B"}}
    encryption = {"topics": [".*"] if active else [], "key": active, "keys": places}
    storage = {"url": "s3://bucket", "prefix_entropy_bits": 5, "encryption": encryption}
    return replace(SOUND, config=config(storage=storage), keys=keys, **changes)  # type: ignore[arg-type]


REFUSED = AccessDeniedError("KMS GenerateDataKey: AccessDeniedException")


@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        (with_keys(KeyFacts("k1"), KeyFacts("k2")), "ok", "'k1', 'k2'; 'k2' encrypts new"),
        (with_keys(KeyFacts("k1"), active=None), "ok", "no key is set to encrypt"),
        (
            with_keys(KeyFacts("k1", error=ConfigurationError("file /a is empty"))),
            "problem",
            "key 'k1': file /a is empty. `sidetier run` does not start",
        ),
        (
            with_keys(KeyFacts("k2", encrypts=True, error=REFUSED)),
            "problem",
            "key 'k2': KMS GenerateDataKey: AccessDeniedException. New segments",
        ),
        (with_keys(KeyFacts("k1", error=REFUSED)), "advice", "may not be readable"),
        (
            with_keys(KeyFacts("k1"), other_fingerprints=("the key 'k1' has the fingerprint a",)),
            "problem",
            "the key 'k1' has the fingerprint a. `sidetier run` does not start",
        ),
        (
            with_keys(KeyFacts("k1"), undecryptable=("a.log: not the key", "b.log: same")),
            "problem",
            "cannot be decrypted: a.log: not the key; b.log: same",
        ),
    ],
)
def test_encryption(facts: DoctorFacts, level: str, words: str) -> None:
    [finding] = [one for one in findings(facts) if one.check == "encryption"]
    assert (finding.level.value, words in finding.found) == (level, True), finding.found
    assert (finding.todo is None) == (level == "ok")


def test_without_encryption_there_is_no_finding() -> None:
    assert "encryption" not in {one.check for one in findings(SOUND)}


MAY_DELETE = frozenset({"DESCRIBE", "DELETE"})


@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        (with_retention(replace(topic(), operations=MAY_DELETE)), "ok", "may delete"),
        (with_retention(replace(topic(), operations=frozenset({"ALL"}))), "ok", "may delete"),
        (
            with_retention(replace(topic(), operations=frozenset({"DESCRIBE"}))),
            "advice",
            "may not delete records of orders",
        ),
        (with_retention(topic()), "advice", "unknown whether"),
        (
            with_retention(replace(topic(cleanup_policy="compact"), operations=MAY_DELETE)),
            "advice",
            "of orders: the topic's cleanup.policy is not delete alone",
        ),
        (
            with_retention(replace(topic(remote_storage_enable="true"), operations=MAY_DELETE)),
            "advice",
            "remote.storage.enable=true",
        ),
        (
            with_retention(
                replace(topic(), operations=MAY_DELETE),
                without_topic_id=(TopicPartition("orders", 0),),
            ),
            "advice",
            "orders-0: the log has no topic id",
        ),
        (with_retention(replace(topic("other"), operations=None)), "ok", "0 topics"),
    ],
)
def test_local_retention(facts: DoctorFacts, level: str, words: str) -> None:
    [finding] = [one for one in findings(facts) if one.check == "local retention"]
    assert (finding.level.value, words in finding.found) == (level, True), finding.found


def test_topics_without_local_retention_are_grouped_by_reason() -> None:
    topics = (
        topic("compacted-1", cleanup_policy="compact"),
        topic("compacted-2", cleanup_policy="compact,delete"),
        topic("tiered", remote_storage_enable="true"),
        topic("__internal"),
    )
    allowed = (replace(each, operations=MAY_DELETE) for each in topics)
    facts = with_retention(*allowed, selected=".*")
    assert [one.found for one in findings(facts) if one.check == "local retention"] == [
        f"never deletes records of {reason}"
        for reason in (
            "tiered: the topic has remote.storage.enable=true",
            "__internal: the topic is internal",
            "compacted-1, compacted-2: the topic's cleanup.policy is not delete alone",
        )
    ]


def test_correct_setup_has_no_findings() -> None:
    assert faults(SOUND) == []
    assert len(list(findings(SOUND))) > 12


@pytest.mark.parametrize(
    ("facts", "level", "check", "words"),
    [
        (with_topic(topic(remote_storage_enable="true")), "problem", "native tiering", "orders"),
        (
            with_topic(topic(cleanup_policy="compact")),
            "problem",
            "compacted topics",
            "they are compacted: orders",
        ),
        (
            with_topic(topic(file_delete_delay_ms="60000")),
            "advice",
            "file.delete.delay.ms",
            "1 min on orders",
        ),
        (
            with_topic(topic(retention_ms="7200000"), oldest_unstored_age_seconds=7200.0),
            "problem",
            "retention.ms",
            "not archived: orders",
        ),
        (
            with_topic(topic(retention_ms="7200000"), oldest_unstored_age_seconds=1900.0),
            "advice",
            "retention.ms",
            "four times the lag: orders",
        ),
        (with_topic(topic(retention_ms="3599000")), "advice", "retention.ms", "an hour"),
        (
            with_topic(topic(retention_bytes=str(10 * GIB)), unstored_bytes=10 * GIB),
            "problem",
            "retention.bytes",
            "bytes of a partition: orders",
        ),
        (
            with_topic(topic(retention_bytes=str(3 * GIB))),
            "advice",
            "retention.bytes",
            "four segments",
        ),
        (
            with_topic(topic(segment_ms="604800000")),
            "advice",
            "segment.ms",
            "up to 7 d 0 h before their segment closes: orders",
        ),
        (
            with_topic(topic(unclean_leader_election_enable="true")),
            "problem",
            "unclean election",
            "diverges from the log",
        ),
        (
            with_topic(topic(message_format_version="0.10.2-IV0")),
            "problem",
            "message format",
            "v0 or v1, which cannot be archived: orders",
        ),
        (
            replace(SOUND, old_formats={TopicPartition("orders", 0): 7}),
            "problem",
            "message format",
            "7 segments begin with message format v0 or v1",
        ),
        (with_topic(topic(min_insync_replicas="1")), "advice", "min.insync.replicas", "orders"),
        (with_topic(topic(replicas=1)), "advice", "replicas", "only one: orders"),
        (
            replace(SOUND, topics_known=False, problems={"cluster": "refused"}),
            "advice",
            "topics",
            "not known: refused",
        ),
        (
            replace(
                SOUND,
                topics_known=False,
                cluster_topics=None,
                problems={"cluster": "kafka:9092 returns no metadata: Connection refused"},
            ),
            "problem",
            "broker",
            "kafka:9092 returns no metadata: Connection refused. The topics were not checked",
        ),
        (
            replace(SOUND, topics_known=False, cluster_topics=None),
            "advice",
            "topics",
            "broker.bootstrap_servers is not set",
        ),
        (
            replace(SOUND, config=config(topics={"include": ["ordrs"]})),
            "problem",
            "patterns",
            "topics.include: 'ordrs' matches no topic of the cluster; did you mean orders?",
        ),
        (
            replace(SOUND, config=config(topics={"exclude": ["pay.*"]})),
            "advice",
            "patterns",
            "topics.exclude: 'pay.*' matches no topic",
        ),
        (
            replace(SOUND, config=EARLY_OVERRIDDEN),
            "advice",
            "patterns",
            "uploader.early.overrides[0].topics: 'clicks' matches no topic that uploader.early",
        ),
        (with_host(problems=("/kafka does not exist",)), "problem", "log dirs", "not exist"),
        (
            with_host(log_dirs=(replace(DISK, unreadable="/kafka/t-0"),)),
            "problem",
            "log dirs",
            "/kafka/t-0 cannot be read",
        ),
        (
            replace(SOUND, broker_settings={"log.dirs": "/kafka,/more"}),
            "problem",
            "log dirs",
            "lacks /more",
        ),
        (with_host(max_open_files=20_000), "advice", "open files", "20000 at most"),
        (
            with_host(max_open_files=514),
            "problem",
            "open files",
            "too few to hold one closed segment",
        ),
        (with_host(max_watches=20), "advice", "inotify", "max_user_watches is 20, and 21"),
        (with_host(max_instances=2), "advice", "inotify", "max_user_instances is 2, and 3"),
        (
            replace(with_host(max_watches=20), config=config(uploader={"watch": "inotify"})),
            "problem",
            "inotify",
            "does not start",
        ),
        (
            with_host(log_dirs=(replace(DISK, free=50 * GIB),)),
            "problem",
            "room for pins",
            "at or below the floor",
        ),
        (
            with_host(log_dirs=(replace(DISK, free=55 * GIB),)),
            "advice",
            "room for pins",
            "less than the",
        ),
        (
            with_host(log_dirs=(replace(DISK, cache_problem="not permitted"),)),
            "advice",
            "page cache",
            "does not report cached pages (not permitted)",
        ),
        (
            with_host(spools=(SpoolFacts("/spool", None),)),
            "problem",
            "spool",
            "no spool is on the file",
        ),
        (
            with_host(spools=(SpoolFacts("/spool", 7, writable=False),)),
            "problem",
            "spool",
            "/spool cannot be written",
        ),
        (
            with_host(spools=(SpoolFacts("/spool", 7),), log_dirs=(replace(DISK, may_link=False),)),
            "problem",
            "spool",
            "the files of /kafka may not be linked",
        ),
        (with_store(error="403"), "problem", "store", "s3://bucket: 403"),
        (with_store(error="refused", may_recover=True), "problem", "store", "s3://bucket: refused"),
        (with_store(note=LayoutNote(4, "K")), "problem", "layout", "has keys with 4"),
        (
            with_store(other_archives=("prod",)),
            "advice",
            "layout",
            "another archive of this Kafka cluster, 'prod', beside 'prod-a'",
        ),
        (with_store(note=LayoutNote(5, "other")), "problem", "layout", "Kafka cluster other"),
        (
            with_store(ignored_conditions=("If-None-Match", "If-Match")),
            "problem",
            "conditional writes",
            "ignores If-None-Match and If-Match",
        ),
        (with_store(declares_conditions=False), "problem", "conditional writes", "has none"),
        (with_store(skew_seconds=-61.0), "advice", "clock", "1 min behind"),
        (with_store(skew_seconds=700.0), "problem", "clock", "ahead of this host"),
        (replace(SOUND, sidecar=None), "advice", "sidecar", "not asked"),
        (
            replace(
                SOUND,
                sidecar=SidecarState(
                    "u",
                    StatusSnapshot(
                        "c", conditions=(status.Condition("a", holds=False, reason="b"),)
                    ),
                    ready=False,
                ),
            ),
            "problem",
            "sidecar",
            "not ready: a: b",
        ),
        (with_topic(topic(), state=PartitionState.HALTED), "problem", "halted", "orders-0"),
        (
            with_topic(topic(), seconds_until_local_deletion=-3.0),
            "problem",
            "deletion",
            "before they are archived: orders-0",
        ),
    ],
)
def test_each_fault_is_found_with_its_level(
    facts: DoctorFacts, level: str, check: str, words: str
) -> None:
    [fault] = [one for one in findings(facts) if one.level is not Level.OK]
    assert (fault.level.value, fault.check) == (level, check)
    assert words in fault.found
    assert fault.todo


@pytest.mark.parametrize(
    "facts",
    [
        replace(
            with_topic(topic(cleanup_policy="compact")),
            config=config(topics={"compacted": "as_closed"}),
        ),
        with_topic(topic(retention_ms="-1"), oldest_unstored_age_seconds=1e9),
        with_topic(topic(name="other", retention_ms="7200000"), oldest_unstored_age_seconds=7200.0),
        with_topic(topic(internal_segment_bytes="1000", retention_bytes="5000")),
        with_topic(topic(replicas=2)),
        with_host(spools=(SpoolFacts("/other", 8), SpoolFacts("/spool", 7))),
        with_host(log_dirs=(replace(DISK, may_link=False),)),
        replace(SOUND, broker_settings={"log.dirs": "/named/in/another/container"}),
        replace(with_host(max_watches=1), config=config(uploader={"watch": "polling"})),
        replace(
            with_host(log_dirs=(replace(DISK, cache_problem="not permitted"),)),
            config=config(uploader={"page_cache": "leave"}),
        ),
        with_host(max_open_files=None, max_watches=None, max_instances=None),
        with_store(note=None, skew_seconds=None, ignored_conditions=()),
    ],
)
def test_acceptable_settings_are_no_fault(facts: DoctorFacts) -> None:
    assert faults(facts) == []


def test_acknowledged_store_without_conditional_writes_is_advice() -> None:
    storage = {"url": "s3://bucket", "fencing": "unfenced_acknowledged"}
    facts = replace(with_store(declares_conditions=False), config=config(storage=storage))
    assert ("advice", "conditional writes") in faults(facts)


def test_worst_finding_comes_first_and_decides_the_verdict() -> None:
    advised = DoctorResult.of(with_topic(topic(segment_ms="604800000")))
    assert advised.exit_code == exits.OK
    worse = DoctorResult.of(with_topic(topic(segment_ms="604800000", cleanup_policy="compact")))
    assert worse.exit_code == exits.FINDINGS
    assert [one.level for one in worse.findings[:2]] == [Level.PROBLEM, Level.ADVICE]
    summary, table = worse.as_tables()
    assert summary.footer is not None
    assert summary.footer.startswith("1 problem, 1 to consider, ")
    assert table.rows[1][2] == (
        "where 1.1 GB is not reached, records wait up to 7 d 0 h before their segment closes: "
        "orders\n-> archive their records before the segment closes, or close segments more often: "
        "records in the active segment are only on the brokers\n"
        "   uploader.early.topics: [orders], or segment.ms=3600000"
    )


@pytest.mark.parametrize(
    ("early", "policy", "advised"),
    [
        ({"topics": ["orders"]}, "delete", False),
        ({"topics": ["orders"], "age": "2d"}, "delete", True),
        ({"topics": [".*"], "overrides": [{"topics": "orders", "age": "2d"}]}, "delete", True),
        ({"topics": ["other"]}, "delete", True),
        ({"topics": ["orders"]}, "compact,delete", True),
    ],
)
def test_topics_that_are_archived_early_need_not_close_segments(
    early: dict[str, Any], policy: str, *, advised: bool
) -> None:
    slow = with_topic(topic(segment_ms="604800000", cleanup_policy=policy))
    facts = replace(
        slow,
        config=config(uploader={"early": early}, broker={"bootstrap_servers": "localhost:9092"}),
    )
    assert (("advice", "segment.ms") in faults(facts)) == advised


def test_cost_of_early_archiving_is_named() -> None:
    def about(**early: object) -> list[tuple[str, str]]:
        parts = {"uploader": {"early": early}, "broker": {"bootstrap_servers": "localhost:9092"}}
        tps = tuple(TopicPartition("orders", number) for number in range(100))
        found = findings(replace(SOUND, config=config(**parts), partitions=tps))
        return [
            (one.level.value, one.found.removesuffix(" (15m)"))
            for one in found
            if one.check == "early archive"
        ]

    assert about() == []
    assert about(topics=["orders"], age="15m") == [
        ("ok", "100 partitions on this host cost up to 57,600 requests a day by uploader.early.age")
    ]
    costs = about(topics=["orders"], age="1s", bytes="1KiB")
    assert [level for level, _ in costs] == ["advice", "advice", "advice"]
    assert "6,291,456 requests" in costs[0][1]
    assert "up to 100 segments a second, and uploader.threads (8)" in costs[2][1]
    assert len(about(topics=["orders"], age="13s")) == 1, "8 a second"
    slow = about(topics=["orders"], age="1s", overrides=[{"topics": "orders", "age": "15m"}])
    assert ["uploader.early.age 1s:" in text for _, text in slow] == [True], "not 100 a second"
    fast = about(topics=["orders", "x"], overrides=[{"topics": "orders", "age": "1s"}])
    assert fast[0][1].startswith("uploader.early.overrides[0].age 1s (orders): each partition")
    assert fast[1][1].startswith("uploader.early.age 1s: 100 partitions on this host become up to")


@pytest.mark.parametrize("version", ["0.11.0-IV2", "1.0", "3.0-IV1"])
def test_message_format_v2_is_sound(version: str) -> None:
    assert faults(with_topic(topic(message_format_version=version))) == []


def test_message_format_is_ignored_by_newer_brokers() -> None:
    facts = with_topic(topic(message_format_version="0.10.2-IV0"))
    settings = {**SOUND.broker_settings, "inter.broker.protocol.version": "3.9-IV0"}
    assert faults(replace(facts, broker_settings=settings)) == []


def test_long_lists_of_names_are_shortened() -> None:
    assert first_names(["b", "a"]) == "a, b"
    assert first_names("fedcba") == "a, b, c, d and 2 more"


@pytest.mark.parametrize("ignored", [(), ("If-None-Match",), ("If-Match",)])
def test_ignored_conditions_are_found(ignored: tuple[str, ...]) -> None:
    class Ignoring(FakeStorage):
        def put_object(self, key: str, body: Body, options: PutOptions = NO_OPTIONS) -> str:
            name = "If-Match" if isinstance(options.condition, IfMatch) else "If-None-Match"
            kept = replace(options, condition=None) if name in ignored else options
            return super().put_object(key, body, kept)

    store = Ignoring()
    store.put_object("layout.json", BytesBody(b"{}"))
    assert ignored_conditions(store, "layout.json") == ignored
    assert refused_condition(store, "layout.json") is None
    assert store.contents() == {"layout.json": b"{}"}


def test_weak_etags_are_found() -> None:
    class Weak(FakeStorage):
        def get_object(self, key: str) -> StoredObject:
            stored = super().get_object(key)
            return replace(stored, head=replace(stored.head, etag=f'W/"{stored.head.etag}"'))

    store = Weak()
    store.put_object("layout.json", BytesBody(b"{}"))
    assert "weak etags (W/" in (refused_condition(store, "layout.json") or "")


def test_store_that_refuses_a_condition_that_holds_is_found() -> None:
    fake = FakeStorage()
    fake.put_object("layout.json", BytesBody(b"{}"), PutOptions(metadata={"a": "b"}))
    store = RetryingStorage(fake, url="s3://archive")
    assert refused_condition(store, "layout.json") is None
    assert fake.head_object("layout.json").metadata == {"a": "b"}
    fake.refuse("layout.json", PreconditionFailedError("412"))
    assert ignored_conditions(store, "layout.json") == ()
    found = refused_condition(store, "layout.json")
    assert found is not None
    assert "s3://archive refuses a condition that holds: put layout.json with If-Match" in found
    facts = with_store(ignored_conditions=(), refused_condition=found)
    assert ("problem", "conditional writes") in faults(facts)

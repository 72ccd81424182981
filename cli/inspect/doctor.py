"""Check settings, host, stores and sidecar for causes of lost records. Pure functions."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from sidetier.archive.objects.layout import check_note, second_archive
from sidetier.cli.arguments import age_text, size_text
from sidetier.cli.inspect.consumer_groups import GroupFacts
from sidetier.cli.inspect.encryption import KeyFacts
from sidetier.cli.inspect.facts import DoctorFacts, TopicFacts, roll_rules
from sidetier.cli.inspect.host import LogDirFacts
from sidetier.cli.inspect.sidecar import SidecarState
from sidetier.cli.inspect.store import StoreFacts
from sidetier.config.contradictions import early_costs
from sidetier.config.problems import dotted, first_of
from sidetier.config.topic_patterns import selections
from sidetier.config.units import format_duration
from sidetier.config.uploader import daily_requests
from sidetier.leadership.cluster import topic_config
from sidetier.leadership.cluster_map import number
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.keys import ArchiveLayout
from sidetier.telemetry.status import PartitionState, PartitionStatus
from sidetier.uploader.gates.topic_rules import refusal_of
from sidetier.uploader.trim.decision import topic_hindrance, topic_id_hindrance
from sidetier.uploader.trim.groups_behind import CATCH_UP, READ_THE_ARCHIVE, GroupInTopic

_MAX_NAMES: Final = 4
_MAX_GROUPS: Final = 20
_MAY_DELETE: Final = frozenset({"DELETE", "ALL"})
"""Operations on a topic, one of which DeleteRecords needs."""


class Level(StrEnum):
    """Severity of a finding; the worst comes first."""

    PROBLEM = "problem"
    """Records are lost, will be lost, or are not archived."""
    ADVICE = "advice"
    """The safety margin is smaller than it could be."""
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check; `setting` is the exact setting to write."""

    level: Level
    check: str
    found: str
    todo: str | None = None
    setting: str | None = None


def ok(check: str, found: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(Level.OK, check, found)


def advice(check: str, found: str, todo: str, setting: str | None = None) -> Finding:
    """Return a finding about a small safety margin."""
    return Finding(Level.ADVICE, check, found, todo, setting)


def problem(check: str, found: str, todo: str, setting: str | None = None) -> Finding:
    """Return a finding that costs records."""
    return Finding(Level.PROBLEM, check, found, todo, setting)


def first_names(names: Iterable[str]) -> str:
    """Return a few names, and the number of the others."""
    return first_of(sorted(names), _MAX_NAMES)


_OTHER_FILES: Final = 512
_FILES_PER_SEGMENT: Final = 3
_OTHER_INSTANCES: Final = 2
"""One for the metadata log, one for a short time at the start."""


def check_host(facts: DoctorFacts) -> Iterator[Finding]:
    """Run all checks of this host."""
    for check in _HOST_CHECKS:
        yield from check(facts)


def log_dirs(facts: DoctorFacts) -> Iterator[Finding]:
    """Check that the log dirs are readable, belong to one broker, and are all that it has."""
    problems = [*facts.host.problems]
    problems += [
        f"{log_dir.unreadable} cannot be read"
        for log_dir in facts.host.log_dirs
        if log_dir.unreadable
    ]
    if problems:
        yield problem(
            "log dirs",
            "; ".join(problems),
            "set log_dirs to the broker's log.dirs, and run as the broker's user or in its group",
            "log_dirs: [/var/lib/kafka/data]",
        )
    missing = _missing_log_dirs(facts)
    if missing:
        yield problem(
            "log dirs",
            f"log_dirs lacks {first_names(missing)}, so nothing in these directories is archived",
            "add every log dir of the broker (log.dirs)",
            f"log_dirs: [..., {missing[0]}]",
        )
    if not problems and not missing:
        yield ok(
            "log dirs", f"all {len(facts.host.log_dirs)} are readable and belong to one broker"
        )


def _missing_log_dirs(facts: DoctorFacts) -> list[str]:
    """Return the broker's log dirs that are not configured.

    Empty if no path matches: in this container the same directories may have other paths.
    """
    broker_log_dirs = (
        facts.broker_settings.get("log.dirs") or facts.broker_settings.get("log.dir") or ""
    )
    broker = {str(Path(name.strip())) for name in broker_log_dirs.split(",") if name.strip()}
    ours = set(map(str, facts.config.log_dirs))
    return sorted(broker - ours) if broker & ours else []


def open_files(facts: DoctorFacts) -> Iterator[Finding]:
    """Compare the hard limit of open files (`ulimit -n`) with what pins need."""
    limit, wanted = facts.host.max_open_files, facts.config.uploader.pins.max_files
    if limit is None or limit >= wanted + _OTHER_FILES:
        shown_limit = "unlimited" if limit is None else str(limit)
        yield ok("open files", f"{shown_limit}, enough for uploader.pins.max_files {wanted}")
        return
    led = len(facts.partitions)
    setting = f"ulimit -n {wanted + _OTHER_FILES} (LimitNOFILE= in systemd)"
    limit_text = f"{limit} at most for this user"
    if limit - _OTHER_FILES < _FILES_PER_SEGMENT * led:
        text = f"{limit_text}: too few to hold one closed segment of each of {led} partitions open"
        yield problem("open files", text, "raise the hard limit", setting)
    else:
        text = f"{limit_text}, less than uploader.pins.max_files {wanted} and {_OTHER_FILES} more"
        yield advice(
            "open files", text, "raise the hard limit, or lower uploader.pins.max_files", setting
        )


def inotify(facts: DoctorFacts) -> Iterator[Finding]:
    """Check the limits of inotify watches and instances.

    If they are too low, the sidecar polls, or does not start.
    """
    if facts.config.uploader.watch == "polling":
        yield ok("inotify", "not used: uploader.watch is polling")
        return
    dirs = len(facts.config.log_dirs)
    wants = (
        ("max_user_watches", facts.host.max_watches, facts.host.partition_directories + dirs),
        ("max_user_instances", facts.host.max_instances, dirs + _OTHER_INSTANCES),
    )
    short = [_short_of(facts, *want) for want in wants if want[1] is not None and want[1] < want[2]]
    yield from short
    if not short:
        yield ok("inotify", f"room for {wants[0][2]} watches and {wants[1][2]} instances")


def _short_of(facts: DoctorFacts, name: str, limit: int | None, wanted: int) -> Finding:
    setting = f"sysctl fs.inotify.{name}={4 * wanted}"
    shortage = f"{name} is {limit}, and {wanted} are needed"
    if facts.config.uploader.watch == "inotify":
        text = f"{shortage}: with uploader.watch: inotify the sidecar does not start"
        return problem("inotify", text, "raise it", setting)
    return advice(
        "inotify", f"{shortage}: the sidecar polls the directories instead", "raise it", setting
    )


def room_for_pins(facts: DoctorFacts) -> Iterator[Finding]:
    """Check the free disk above the floor, for segments that are deleted and not stored yet."""
    findings = [_room(facts, log_dir) for log_dir in facts.host.log_dirs]
    yield from (finding for finding in findings if finding is not None)
    if findings and not any(findings):
        yield ok("room for pins", "uploader.pins.max_deleted_bytes fits above the floor")


def _room(facts: DoctorFacts, log_dir: LogDirFacts) -> Finding | None:
    pins = facts.config.uploader.pins
    floor = pins.min_free_disk.of(log_dir.total)
    room = log_dir.free - floor
    free_text = f"{log_dir.path}: {size_text(log_dir.free)} of {size_text(log_dir.total)} free"
    if room <= 0:
        return problem(
            "room for pins",
            f"{free_text}, at or below the floor of {size_text(floor)}: segments that the "
            "broker deletes before they are archived are lost",
            "free disk space, or lower the floor",
            "uploader.pins.min_free_disk",
        )
    if room < pins.max_deleted_bytes:
        return advice(
            "room for pins",
            f"{free_text}: {size_text(room)} above the floor, less than the "
            f"{size_text(pins.max_deleted_bytes)} that pins may hold",
            "free disk space; until then the sidecar may release pins early",
            "uploader.pins.max_deleted_bytes",
        )
    return None


def spool(facts: DoctorFacts) -> Iterator[Finding]:
    """Check whether the spool allows hard links; only `sidetier run` makes one to find out."""
    if not facts.host.spools:
        yield ok(
            "spool",
            "none (uploader.pins.spool): after a restart the sidecar finds only files that the "
            "broker has not unlinked",
        )
        return
    faults = [fault for log_dir in facts.host.log_dirs if (fault := _spool_fault(facts, log_dir))]
    if not faults:
        yield ok("spool", "one on the file system of each log dir, and hard links are allowed")
        return
    yield problem(
        "spool",
        "; ".join(faults),
        "give one writable directory for each file system, and run as the broker's user "
        "(fs.protected_hardlinks)",
        "uploader.pins.spool",
    )


def _spool_fault(facts: DoctorFacts, log_dir: LogDirFacts) -> str | None:
    same_device = [
        candidate for candidate in facts.host.spools if candidate.device == log_dir.device
    ]
    if not same_device:
        return f"no spool is on the file system of {log_dir.path}"
    if not same_device[0].writable:
        return f"{same_device[0].path} cannot be written"
    return None if log_dir.may_link else f"the files of {log_dir.path} may not be linked"


def page_cache(facts: DoctorFacts) -> Iterator[Finding]:
    """Check whether uploads can restore the state of the page cache."""
    if facts.config.uploader.page_cache == "leave":
        yield ok("page cache", "not managed: uploader.page_cache is leave")
        return
    blind = [log_dir for log_dir in facts.host.log_dirs if log_dir.cache_problem is not None]
    if not blind:
        yield ok("page cache", "the kernel reports which pages of the broker's files are cached")
        return
    yield advice(
        "page cache",
        f"{blind[0].path}: the kernel does not report cached pages ({blind[0].cache_problem}), so "
        "uploads may fill the page cache with data that no consumer reads",
        "run as the broker's user, on Linux 6.5 or newer",
    )


def early_archive(facts: DoctorFacts) -> Iterator[Finding]:
    """Say what early archiving costs, where it is on."""
    early = facts.config.uploader.early
    if not early.enabled:
        return
    found = [early.limits(tp.topic) for tp in facts.partitions]
    ages = [limits.age for limits in found if limits is not None]
    threads, costs = facts.config.uploader.threads, list(early_costs(early))
    ends = {min(ages, default=early.age), max(ages, default=early.age)}
    of_ages = " to ".join(map(format_duration, sorted(ends)))
    rate = sum(1 / age for age in ages)
    if rate > threads:
        costs.append(
            f"uploader.early.age {of_ages}: {len(ages)} partitions on this host become up to "
            f"{rate:.0f} segments a second, and uploader.threads ({threads}) upload about one "
            "each in a second"
        )
    for cost in costs:
        yield advice(
            "early archive",
            cost,
            "raise it to the time or the bytes that you can lose with a broker",
            "uploader.early.bytes: 64MiB, uploader.early.age: 15m",
        )
    if not costs:
        yield ok(
            "early archive",
            f"{len(ages)} partitions on this host cost up to {sum(map(daily_requests, ages)):,} "
            f"requests a day by uploader.early.age ({of_ages})",
        )


def way_back(facts: DoctorFacts) -> Iterator[Finding]:
    """Check that Pinterest's uploader would continue each archive.

    It skips each segment whose base offset is at or below the one in `offset.wm`.
    """
    if facts.within_segments is None:
        return
    check = "way back to Pinterest's uploader"
    if facts.within_segments:
        yield problem(
            check,
            f"{len(facts.within_segments)} archives end within a segment, and Pinterest's uploader "
            f"would never store the rest of it: {first_names(map(str, facts.within_segments))}",
            "remove uploader.early.topics, restart the sidecar, and let it run until these "
            "segments are closed and archived",
        )
    else:
        yield ok(check, "every archive ends where a segment of the log begins or ends")


def message_format(facts: DoctorFacts) -> Iterator[Finding]:
    """Check that the log dirs have no segment of message format v0 or v1."""
    if facts.old_formats:
        segments = sum(facts.old_formats.values())
        yield problem(
            "message format",
            f"{segments} segments begin with message format v0 or v1, which cannot be archived, "
            f"and hold what follows them: {first_names(map(str, facts.old_formats))}",
            "copy the records to a new topic, or accept their loss: `sidetier backfill --dry-run` "
            "shows the offsets, and `sidetier ack-gap --unarchivable` accepts it",
        )


def new_messages(facts: DoctorFacts) -> Iterator[Finding]:
    """Check that brokers before 4.0 write message format v2 to every topic."""
    # From this version on, brokers ignore `message.format.version` (KIP-724).
    protocol = _version(facts.broker_settings.get("inter.broker.protocol.version"))
    ignored = protocol is not None and protocol >= _FORMAT_IS_IGNORED
    written = {
        topic.name: _version(topic.settings.get("message.format.version")) for topic in facts.topics
    }
    old = [name for name, version in written.items() if version and version < _FIRST_WITH_V2]
    if old and not ignored:
        yield problem(
            "message format",
            f"the broker writes message format v0 or v1, which cannot be archived: "
            f"{first_names(old)}",
            "remove log.message.format.version (broker) and message.format.version (topic), or "
            "set them to 0.11.0 or higher",
            "message.format.version=0.11.0",
        )
    elif not facts.old_formats:  # else `message_format` has a finding
        yield ok("message format", "v2")


def _version(text: str | None) -> tuple[int, int] | None:
    """Return major and minor version of a Kafka setting such as `0.10.2-IV0`; None if absent."""
    parts = re.match(r"(\d+)\.(\d+)", text or "")
    return None if parts is None else (int(parts[1]), int(parts[2]))


_FIRST_WITH_V2: Final = (0, 11)
_FORMAT_IS_IGNORED: Final = (3, 0)


_HOST_CHECKS: Final[tuple[Callable[[DoctorFacts], Iterator[Finding]], ...]] = (
    log_dirs,
    open_files,
    inotify,
    room_for_pins,
    spool,
    page_cache,
    early_archive,
    way_back,
    message_format,
)


_SKEW_ADVICE: Final = 60.0
_SKEW_PROBLEM: Final = 600.0
"""S3 refuses requests whose signature is 15 minutes off."""


def check_stores(facts: DoctorFacts) -> Iterator[Finding]:
    """Check each configured store."""
    for store in facts.stores:
        if store.error is not None:
            todo = (
                "bring the store back, or correct storage.url or the endpoint_url below storage"
                if store.may_recover
                else "correct the setting that the text names; all are below storage"
            )
            yield problem("store", f"{store.url}: {store.error}", todo)
            continue
        yield ok("store", f"{store.url} answers")
        yield _layout(facts, store)
        for other in store.other_archives:
            yield advice(
                "layout",
                second_archive(facts.config.cluster.name, other, store.url),
                "give all sidecars of a Kafka cluster the same cluster.name",
                "cluster.name",
            )
        yield _conditions(facts, store)
        yield from _clock(store)


def check_encryption(facts: DoctorFacts) -> Iterator[Finding]:
    """Check each key of `storage.encryption`, that it is the one that the other sidecars have, and
    that the keys decrypt what is stored.
    """
    if facts.config.storage.encryption is None:
        return
    failed = [key for key in facts.keys if key.error is not None]
    yield from map(_failed_key, failed)
    for text in facts.other_fingerprints:
        yield problem(
            "encryption",
            f"{text}. `sidetier run` does not start",
            "copy the file of another broker (docs/encryption.md)",
            "storage.encryption.keys",
        )
    if facts.undecryptable:
        yield problem(
            "encryption",
            f"stored segments cannot be decrypted: {'; '.join(facts.undecryptable)}",
            "give each key the name that it had when it encrypted, and a new key a new name "
            "(docs/encryption.md)",
            "storage.encryption.keys",
        )
    if not (failed or facts.other_fingerprints or facts.undecryptable):
        active = facts.config.storage.encryption.key
        use = "no key is set to encrypt" if active is None else f"{active!r} encrypts new segments"
        names = ", ".join(repr(key.name) for key in facts.keys)
        yield ok("encryption", f"each key can wrap and unwrap a data key: {names}; {use}")


def _failed_key(key: KeyFacts) -> Finding:
    found, setting = f"key {key.name!r}: {key.error}", f"storage.encryption.keys.{key.name}"
    if isinstance(key.error, ConfigurationError):
        return problem(
            "encryption",
            f"{found}. `sidetier run` does not start",
            "correct the file, the variable or the reference; remove a key only if no stored "
            "segment needs it",
            setting,
        )
    if key.encrypts:
        return problem(
            "encryption",
            f"{found}. New segments of storage.encryption.topics cannot be archived",
            "make the key usable, or let another key encrypt (storage.encryption.key)",
            setting,
        )
    return advice(
        "encryption",
        f"{found}. If it has encrypted stored segments, they may not be readable with this "
        "configuration",
        "make the key usable; a key that only decrypts needs kms:Decrypt only, and this check also "
        "asks for kms:GenerateDataKey",
        setting,
    )


def _layout(facts: DoctorFacts, store: StoreFacts) -> Finding:
    config = facts.config
    layout = ArchiveLayout(config.cluster.name, config.storage.prefix_entropy_bits)
    if store.note is None:
        return ok("layout", f"no layout note yet: nothing is archived of cluster {layout.cluster}")
    try:
        check_note(store.note, layout, facts.host.kafka_cluster_id)
    except ConfigurationError as error:
        setting = f"storage.prefix_entropy_bits: {store.note.bits}"
        differs = max(store.note.bits, 0) != max(layout.bits, 0)
        todo = (
            "make the setting equal to the note: until then archives are neither found nor written"
        )
        return problem("layout", str(error), todo, setting if differs else "cluster.name")
    return ok("layout", f"{layout.bits} entropy bits, as the note on the store says")


def _conditions(facts: DoctorFacts, store: StoreFacts) -> Finding:
    name, required = "conditional writes", facts.config.storage.fencing == "required"
    if store.ignored_conditions:
        return problem(
            name,
            f"{store.url} ignores {' and '.join(store.ignored_conditions)}: two sidecars that both "
            "believe they lead would overwrite each other",
            "use a store that honours If-None-Match and If-Match on PUT",
        )
    if store.refused_condition is not None:
        return problem(
            name,
            store.refused_condition,
            "update the store, or the gateway before it: no sidecar can commit a segment on it",
        )
    if not store.declares_conditions:
        text = f"{store.url} has none, so two sidecars that run at once can overwrite each other"
        todo = "use another store, or make sure that a second sidecar never runs"
        setting = "storage.fencing: unfenced_acknowledged"
        return problem(name, text, todo, setting) if required else advice(name, text, todo)
    if store.ignored_conditions is not None:
        return ok(name, "honoured: the store refused two writes, and accepted one, as it had to")
    when = ", once a sidecar has stored layout.json" if store.note is None else ""
    return ok(name, f"expected of this kind of store; --try-conditions tests it{when}")


def _clock(store: StoreFacts) -> Iterator[Finding]:
    skew = store.skew_seconds
    if skew is None:
        return
    skew_text = (
        f"{store.url} is {age_text(abs(skew))} {'ahead of' if skew > 0 else 'behind'} this host"
    )
    todo = "set this host's clock (NTP)"
    if abs(skew) >= _SKEW_PROBLEM:
        yield problem("clock", f"{skew_text}: S3 refuses requests that are 15 minutes off", todo)
    elif abs(skew) >= _SKEW_ADVICE:
        yield advice("clock", skew_text, todo)
    else:
        yield ok("clock", "within a minute of the store's clock")


def check_sidecar(facts: DoctorFacts) -> Iterator[Finding]:
    """Check whether the sidecar runs, and what it reports."""
    if facts.sidecar is None:
        why = facts.problems.get("sidecar", "it was not asked")
        yield advice("sidecar", why, "start it: until then no sidecar holds deleted segments open")
        return
    yield _readiness(facts.sidecar)
    yield from _partitions(facts.sidecar)


def _readiness(sidecar: SidecarState) -> Finding:
    if sidecar.ready:
        return ok("sidecar", f"ready, {len(sidecar.status.partitions)} partitions")
    return problem("sidecar", f"not ready: {sidecar.unmet_conditions}", "read its log")


def _partitions(sidecar: SidecarState) -> Iterator[Finding]:
    rows = sidecar.status.partitions
    halted = [str(row.topic_partition) for row in rows if row.state is PartitionState.HALTED]
    if halted:
        yield problem(
            "halted", f"partitions: {first_names(halted)}", "see the reason in `sidetier status`"
        )
    late = [str(row.topic_partition) for row in rows if _overdue(row)]
    if late:
        yield problem(
            "deletion",
            f"the broker deletes segments before they are archived: {first_names(late)}",
            "raise the topic's retention now; `sidetier status` shows what the uploads wait for",
        )


def _overdue(row: PartitionStatus) -> bool:
    left = row.seconds_until_local_deletion
    return left is not None and left <= 0


_SHORT_DELAY_MS: Final = 300_000
_LONG_WAIT_MS: Final = 86_400_000
_SHORT_RETENTION: Final = 3600.0
_MARGIN: Final = 4
_FEW_SEGMENTS: Final = 4
_ESSENTIAL_PATTERNS: Final = frozenset(
    {
        ("topics", "include"),
        ("storage", "encryption", "topics"),
        ("storage", "encryption", "refuse_plain"),
    }
)
"""Settings of patterns whose topics would be archived, or encrypted, if the name were right."""


def check_topics(facts: DoctorFacts) -> Iterator[Finding]:
    """Check the patterns of topics, and the topics' configurations, if the brokers answer."""
    yield from _patterns(facts)
    if not facts.topics_known:
        yield _unknown_topics(facts)
        return
    for check in _TOPIC_CHECKS:
        yield from check(facts)


def _unknown_topics(facts: DoctorFacts) -> Finding:
    why = facts.problems.get("cluster")
    if why is None:
        return advice(
            "topics",
            "their settings are not known: broker.bootstrap_servers is not set",
            "set the broker's address, and allow Describe and DescribeConfigs on the topics",
            "broker.bootstrap_servers: localhost:9092",
        )
    if facts.cluster_topics is None:
        return problem(
            "broker",
            f"{why}. The topics were not checked",
            "start the broker, or correct its address, security settings and permissions",
            "broker.bootstrap_servers, broker.client",
        )
    return advice(
        "topics",
        f"their settings are not known: {why}",
        "allow Describe and DescribeConfigs on the topics, and DescribeConfigs on the cluster",
    )


def _patterns(facts: DoctorFacts) -> Iterator[Finding]:
    """Check that each pattern of topics in the configuration matches a topic of the cluster."""
    known = facts.cluster_topics
    if not known:
        return
    unmatched = [one for one in selections(facts.config, known) if not one.topics]
    for one in unmatched:
        setting = dotted(one.setting)
        yield Finding(
            Level.PROBLEM if one.setting in _ESSENTIAL_PATTERNS else Level.ADVICE,
            "patterns",
            f"{setting}: {one.unmatched()}",
            "correct the pattern, or remove it; a pattern matches the whole name of a topic",
            setting,
        )
    if not unmatched:
        yield ok("patterns", "each pattern of topics matches a topic of the cluster")


def local_retention(facts: DoctorFacts) -> Iterator[Finding]:
    """Check whether the sidecar can delete records of the topics with local retention."""
    local, name = facts.config.retention.local, "local retention"
    if not local.enabled:
        return
    selected = [topic for topic in facts.topics if local.selects(topic.name)]
    findings = [
        *_never_trimmed(selected),
        *_without_topic_ids(facts),
        *_without_permission(selected),
    ]
    if not findings:
        topics = f"{len(selected)} topic{'' if len(selected) == 1 else 's'}"
        findings = [ok(name, f"{topics}: the sidecar may delete archived records")]
    yield from findings


def _never_trimmed(selected: Iterable[TopicFacts]) -> Iterator[Finding]:
    names: dict[str, list[str]] = {}
    for topic in selected:
        held = topic_hindrance(topic.name, topic_config(topic.settings))
        if held is not None:
            names.setdefault(held.text, []).append(topic.name)
    for reason in sorted(names):
        yield advice(
            "local retention",
            f"never deletes records of {first_names(names[reason])}: {reason}",
            "leave these topics out of retention.local.topics, or change them",
        )


def _without_topic_ids(facts: DoctorFacts) -> Iterator[Finding]:
    held = topic_id_hindrance(None)
    if facts.without_topic_id and held is not None:
        names = first_names(map(str, facts.without_topic_id))
        yield advice(
            "local retention",
            f"never deletes records of {names}: {held.text}",
            "raise inter.broker.protocol.version to 2.8 or higher: the brokers then give ids",
        )


def _without_permission(selected: Iterable[TopicFacts]) -> Iterator[Finding]:
    unknown = [topic.name for topic in selected if topic.operations is None]
    refused = [
        topic.name
        for topic in selected
        if topic.operations is not None and not topic.operations & _MAY_DELETE
    ]
    if refused:
        yield advice(
            "local retention",
            f"the principal may not delete records of {first_names(refused)}",
            "allow Delete on the topics, for DeleteRecords; records stay until then",
        )
    if unknown:
        yield advice(
            "local retention",
            f"unknown whether the principal may delete records of {first_names(unknown)}: the "
            "brokers do not say it",
            "make sure that it has Delete on the topics (DeleteRecords)",
        )


def consumer_groups(facts: DoctorFacts) -> Iterator[Finding]:
    """Check for consumer groups that skip records if they read from the brokers.

    They are never a problem: the brokers do not show whether a group reads from them.
    """
    name, groups = "consumer groups", facts.groups
    if groups is None:
        return
    if groups.problems:
        yield advice(
            name,
            f"groups may be missing here: {first_of(groups.problems, _MAX_NAMES)}",
            "allow Describe on the cluster, the groups and the topics, if the principal lacks it",
        )
    yield from _groups_behind(
        groups.below_log_start,
        "below the brokers' log start, of which the archive has all or some",
        READ_THE_ARCHIVE,
        None,
    )
    yield from _groups_behind(
        groups.within_reach,
        "that local retention deletes as soon as they are archived",
        f"{READ_THE_ARCHIVE}, or {CATCH_UP}",
        "retention.local.protect_groups",
    )
    if groups == GroupFacts():
        yield ok(name, "none has to read records that only the archive has, or soon has")


def _groups_behind(
    rows: Sequence[GroupInTopic], which: str, todo: str, setting: str | None
) -> Iterator[Finding]:
    for row in rows[:_MAX_GROUPS]:
        partitions = f"{row.partitions} partition{'' if row.partitions == 1 else 's'}"
        yield advice(
            "consumer groups",
            f"group {row.group} (members: {row.members_text}) has not committed {row.skipped} "
            f"offsets in {partitions} of {row.topic} {which}: if it reads from the brokers, it "
            "skips them",
            todo,
            setting,
        )
    more = len(rows) - _MAX_GROUPS
    if more > 0:
        yield advice("consumer groups", f"{more} more with fewer offsets {which}", todo, setting)


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
            f"not archived, because the broker tiers them itself: {first_names(names[True])}",
            "exclude them, or switch the broker's own tiering off",
            f"topics.exclude: [{names[True][0]}]",
        )
    if names[False]:
        yield problem(
            "compacted topics",
            f"not archived, because they are compacted: {first_names(names[False])}",
            "exclude them, or archive each segment as it closes, before compaction",
            f"topics.exclude: [{names[False][0]}], or topics.compacted: as_closed",
        )
    if not any(names.values()):
        count = len(facts.topics)
        text = "no topic is selected"
        if count:
            text = f"none of {count} topic{'' if count == 1 else 's'}"
        yield ok("refused topics", text)


def delete_delay(facts: DoctorFacts) -> Iterator[Finding]:
    """Check how long a sidecar that was away can still find `.deleted` files."""
    short = _below(facts.topics, "file.delete.delay.ms", _SHORT_DELAY_MS)
    if not short:
        yield ok("file.delete.delay.ms", "five minutes or more on every topic")
        return
    least = min(short.values())
    yield advice(
        "file.delete.delay.ms",
        f"{age_text(least / 1000)} on {first_names(short)}: a sidecar that is down for longer "
        "finds none of the segments that were deleted meanwhile",
        "set it above the longest restart of the sidecar; deleted segments use disk that long",
        "file.delete.delay.ms=3600000",
    )


def _below(topics: tuple[TopicFacts, ...], name: str, limit: int) -> dict[str, int]:
    values = {topic.name: number(topic.settings, name) for topic in topics}
    return {topic: value for topic, value in values.items() if value is not None and value < limit}


def retention_by_time(facts: DoctorFacts) -> Iterator[Finding]:
    """Compare `retention.ms` with the largest age of records that are not stored."""
    limits = {}
    for topic in facts.topics:
        retention = topic_config(topic.settings).retention
        if retention is not None:
            lag = _worst(facts, topic.name, lambda row: row.oldest_unstored_age_seconds)
            limits[topic.name] = _Limit(retention, lag, max(_SHORT_RETENTION, _MARGIN * lag))
    yield from _retention(
        "retention.ms",
        limits,
        ("at or below the age of records that are not archived", "an hour, or four times the lag"),
        "retention.ms=86400000",
    )


class _Limit(NamedTuple):
    """A topic's retention, what it needs at least, and what it should have."""

    retention: float
    needed: float
    wanted: float


def _worst(
    facts: DoctorFacts, topic: str, value: Callable[[PartitionStatus], float | None]
) -> float:
    rows = facts.sidecar.status.partitions if facts.sidecar is not None else ()
    return max((value(row) or 0.0 for row in rows if row.topic == topic), default=0.0)


def _retention(
    name: str, limits: Mapping[str, _Limit], words: tuple[str, str], setting: str
) -> Iterator[Finding]:
    too_low, margin = words
    late = [topic for topic, limit in limits.items() if limit.retention <= limit.needed]
    near = [
        topic for topic, limit in limits.items() if limit.needed < limit.retention < limit.wanted
    ]
    if late:
        yield problem(
            name,
            f"{too_low}: {first_names(late)}",
            "raise it until the sidecar has caught up: only pins still hold deleted segments",
            setting,
        )
    if near:
        yield advice(
            name,
            f"below {margin}: {first_names(near)}",
            "set it above the longest time that the store or the sidecar may be down",
            setting,
        )
    if not late and not near:
        yield ok(name, "leaves time to archive")


def retention_by_size(facts: DoctorFacts) -> Iterator[Finding]:
    """Compare `retention.bytes`, which applies to each partition, with the bytes that are not
    stored.
    """
    limits = {}
    for topic in facts.topics:
        limit = number(topic.settings, "retention.bytes")
        if limit is not None and limit >= 0:
            few = _FEW_SEGMENTS * (roll_rules(topic.settings).segment_bytes or 0)
            unstored = _worst(facts, topic.name, lambda row: row.unstored_bytes)
            limits[topic.name] = _Limit(limit, unstored, few)
    yield from _retention(
        "retention.bytes",
        limits,
        ("at or below the unarchived bytes of a partition", "four segments (segment.bytes)"),
        "retention.bytes=10737418240",
    )


def closing(facts: DoctorFacts) -> Iterator[Finding]:
    """Check how long records wait in an active segment that does not fill."""
    early = facts.config.uploader.early
    slow = {
        topic.name: value
        for topic in facts.topics
        if (value := number(topic.settings, "segment.ms")) is not None
        and value >= _LONG_WAIT_MS
        and not (
            (limits := early.limits(topic.name)) is not None
            and limits.age * 1000 <= _LONG_WAIT_MS
            and not topic_config(topic.settings).compacted
        )
    }
    if not slow:
        yield ok("segment.ms", "records are archived, or segments close, within a day")
        return
    longest = max(slow, key=lambda name: slow[name])
    settings = next(topic.settings for topic in facts.topics if topic.name == longest)
    size = roll_rules(settings).segment_bytes
    yield advice(
        "segment.ms",
        f"where {size_text(size) or 'segment.bytes'} is not reached, records wait up to "
        f"{age_text(slow[longest] / 1000)} before their segment closes: {first_names(slow)}",
        "archive their records before the segment closes, or close segments more often: records in "
        "the active segment are only on the brokers",
        f"uploader.early.topics: [{re.escape(longest)}], or segment.ms=3600000",
    )


def durability(facts: DoctorFacts) -> Iterator[Finding]:
    """Check settings that let a cluster discard archived records, or lose them before."""
    unclean = _with(facts, "unclean.leader.election.enable", "true")
    if unclean:
        yield problem(
            "unclean election",
            f"allowed on {first_names(unclean)}: the cluster may discard archived records, and the "
            "archive then diverges from the log",
            "disable it",
            "unclean.leader.election.enable=false",
        )
    else:
        yield ok("unclean election", "disabled on every topic")
    weak = [
        topic.name
        for topic in facts.topics
        if (topic.replicas or 0) > 1 and (number(topic.settings, "min.insync.replicas") or 1) < 2  # noqa: PLR2004
    ]
    if weak:
        yield advice(
            "min.insync.replicas",
            f"1 on {first_names(weak)}: with acks=all a record may be on one broker's disk only",
            "set it to 2",
            "min.insync.replicas=2",
        )
    alone = [topic.name for topic in facts.topics if topic.replicas == 1]
    if alone:
        yield advice(
            "replicas",
            f"only one: {first_names(alone)}; until it is archived, a record is on one disk",
            "add replicas, or close segments more often",
        )
    if not weak and not alone:
        yield ok("min.insync.replicas", "two or more on every replicated topic")


def _with(facts: DoctorFacts, name: str, value: str) -> list[str]:
    return [topic.name for topic in facts.topics if topic.settings.get(name) == value]


_TOPIC_CHECKS: Final[tuple[Callable[[DoctorFacts], Iterator[Finding]], ...]] = (
    refused,
    new_messages,
    retention_by_time,
    retention_by_size,
    delete_delay,
    closing,
    durability,
    local_retention,
    consumer_groups,
)

"""Checks for settings that are valid alone and wrong together. Pure functions, one per rule."""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Final
from urllib.parse import urlsplit

from sidetier.config.model import INTERNAL_TOPICS, Config
from sidetier.config.problems import Problem, SettingPath
from sidetier.config.retention import INTERNAL_PREFIX
from sidetier.config.storage import S3Config, StorageConfig
from sidetier.config.storage_urls import file_root
from sidetier.config.types import matches_any
from sidetier.config.units import format_duration, format_size
from sidetier.config.uploader import REQUESTS_PER_SEGMENT, EarlyConfig, daily_requests
from sidetier.segments.names import is_legal_topic

Problems = Iterator[Problem]


def contradictions(config: Config) -> tuple[Problem, ...]:
    """Return every contradiction in the configuration."""
    return tuple(problem for rule in _RULES for problem in rule(config))


def warnings(config: Config) -> tuple[str, ...]:
    """Return warnings for settings that are allowed but are probably a mistake."""
    return tuple(_warnings(config))


def _log_dirs(config: Config) -> Problems:
    for (_, first), (i, second) in combinations(enumerate(config.log_dirs), 2):
        if first == second:
            yield Problem(("log_dirs", i), f"{second} is listed twice")
        elif first.is_relative_to(second) or second.is_relative_to(first):
            yield Problem(("log_dirs", i), f"one of {first} and {second} is inside the other")


def _store_beside_log_dirs(config: Config) -> Problems:
    for path, url in _urls(config.storage):
        root = file_root(url)
        if root is None:
            continue
        for log_dir in config.log_dirs:
            if root.is_relative_to(log_dir):
                message = (
                    f"{root} is inside the log dir {log_dir}: with a directory there that is not a "
                    "partition, the broker does not start"
                )
                yield Problem(path, message)
            elif log_dir.is_relative_to(root):
                yield Problem(path, f"{root} contains the log dir {log_dir}: use another directory")


def _spool_beside_log_dirs(config: Config) -> Problems:
    for i, spool in enumerate(config.uploader.pins.spool):
        path: SettingPath = ("uploader", "pins", "spool", i)
        for log_dir in config.log_dirs:
            if spool.is_relative_to(log_dir):
                message = (
                    f"{spool} is inside the log dir {log_dir}: with a directory there that is not "
                    "a partition, the broker does not start"
                )
                yield Problem(path, message)
            elif log_dir.is_relative_to(spool):
                yield Problem(
                    path, f"{spool} contains the log dir {log_dir}: use another directory"
                )


def _urls(storage: StorageConfig) -> Iterator[tuple[SettingPath, str]]:
    yield ("storage", "url"), storage.url
    for i, override in enumerate(storage.overrides):
        yield ("storage", "overrides", i, "url"), override.url


def _leadership(config: Config) -> Problems:
    leadership, servers = config.leadership, config.broker.bootstrap_servers
    if leadership.source in ("auto", "kraft") and not leadership.kraft.metadata_log and not servers:
        yield Problem(
            ("leadership", "kraft", "metadata_log"),
            "is false, and broker.bootstrap_servers is not set: there is no source of leadership",
        )
    if leadership.source == "zookeeper" and leadership.zookeeper.connect is None:
        yield Problem(
            ("leadership", "zookeeper", "connect"),
            "is required when leadership.source is zookeeper",
        )
    if leadership.static.partitions and leadership.source != "static":
        yield Problem(
            ("leadership", "static", "partitions"),
            f"has no effect: leadership.source is {leadership.source}, not static",
        )


def _zookeeper_security(config: Config) -> Problems:
    path: SettingPath = ("leadership", "zookeeper")
    sasl, tls = config.leadership.zookeeper.sasl, config.leadership.zookeeper.tls
    if sasl is not None and sasl.mechanism == "DIGEST-MD5":
        for name in ("username", "password"):
            if getattr(sasl, name) is None:
                yield Problem((*path, "sasl", name), "is required for DIGEST-MD5")
    if tls is not None and (tls.cert_file is None) != (tls.key_file is None):
        yield Problem((*path, "tls"), "cert_file needs key_file, and the reverse")


def _high_watermark(config: Config) -> Problems:
    gate = config.uploader.high_watermark
    asks = gate.list_offsets and config.broker.bootstrap_servers is not None
    if not gate.checkpoint and not asks:
        yield Problem(
            ("uploader", "high_watermark", "checkpoint"),
            "is false, and the other source of high watermarks, list_offsets together with "
            "broker.bootstrap_servers, is off too",
        )


def _active_segments(config: Config) -> Problems:
    """Check what the settings need that store records of active segments."""
    if config.uploader.early.enabled:
        yield from _asks_own_broker(config, ("uploader", "early", "topics"))
    if config.uploader.tail.enabled:
        yield from _asks_own_broker(config, ("uploader", "tail", "interval"))


def _asks_own_broker(config: Config, path: SettingPath) -> Problems:
    if config.broker.bootstrap_servers is None:
        yield Problem(
            path,
            "needs broker.bootstrap_servers: the broker is asked which records of an active "
            "segment are committed",
        )
    if config.leadership.source == "static":
        yield Problem(
            path,
            "needs leader epochs, by which the broker is asked which records of an active segment "
            "are committed: leadership.source is static",
        )


def _topics(config: Config) -> Problems:
    topics = config.topics
    for i, pattern in enumerate(topics.include):
        if pattern in INTERNAL_TOPICS and not topics.internal:
            yield Problem(
                ("topics", "include", i), f"{pattern} is internal, and topics.internal is false"
            )
    if any(_matches_all(pattern) for pattern in topics.exclude):
        yield Problem(("topics", "exclude"), "excludes every topic: one pattern matches all names")
    elif set(topics.include) <= set(topics.exclude):
        yield Problem(
            ("topics", "exclude"),
            "excludes every topic: it has every pattern of topics.include",
        )


def _local_retention(config: Config) -> Problems:
    local = config.retention.local
    path: SettingPath = ("retention", "local")
    if not local.enabled:
        return
    if local.age is None and local.bytes is None:
        yield Problem((*path, "topics"), "needs age or bytes, or both")
    if config.broker.bootstrap_servers is None:
        yield Problem(
            (*path, "topics"),
            "needs broker.bootstrap_servers: records are deleted by requests to the broker",
        )
    for i, pattern in enumerate(local.topics):
        if pattern.startswith(INTERNAL_PREFIX):
            yield Problem(
                (*path, "topics", i), f"{pattern} names internal topics, which are never trimmed"
            )
        limit = _shorter_on_the_store(config, pattern)
        if limit is not None:
            yield Problem(
                (*path, "topics", i),
                f"{pattern} has the same or a shorter retention on the store ({limit} in "
                "retention.store). Records that the store no longer has are never trimmed, so "
                "local retention would delete nothing",
            )


def _shorter_on_the_store(config: Config, pattern: str) -> str | None:
    """Return the limit of `retention.store` that local retention can never be ahead of.

    A guess for patterns: rules of the store are compared by the text of the pattern alone.
    """
    local, rules = config.retention.local, config.retention.store
    rule = next((r for r in rules if pattern in r.topics or r.selects(pattern)), None)
    if rule is None:
        return None
    if local.bytes is None and _is_at_most(rule.age, local.age):
        return "age"
    if local.age is None and _is_at_most(rule.bytes, local.bytes):
        return "bytes"
    return None


def _is_at_most(limit: float | None, other: float | None) -> bool:
    return limit is not None and other is not None and limit <= other


def _matches_all(pattern: str) -> bool:
    """Whether the pattern matches four unrelated names: a good guess, not a proof."""
    return all(re.fullmatch(pattern, name) for name in ("a", "Z.9", "__q_-x", "0" * 249))


def _delays(config: Config) -> Problems:
    retry = config.storage.retry
    if retry.max_delay < retry.first_delay:
        yield Problem(("storage", "retry", "max_delay"), "is shorter than first_delay")


_OPTIONS: Final = {"s3": "s3", "gcs": "gs", "azure": "abfs", "hdfs": "hdfs"}
"""URL scheme for each model of store options."""


def _store_options(config: Config) -> Problems:
    """Find options of a store that no URL uses. The URLs of a plug-in are unknown here."""
    storage = config.storage
    schemes = {urlsplit(url).scheme for _, url in _urls(storage)}
    for name, scheme in _OPTIONS.items():
        given = sorted(getattr(storage, name).model_fields_set)
        if given and scheme not in schemes and storage.provider is None:
            yield Problem(
                ("storage", name),
                f"has options for {scheme}:// ({', '.join(given)}), but no url begins with {scheme}://",
            )
        for i, override in enumerate(storage.overrides):
            if getattr(override, name) is not None and urlsplit(override.url).scheme != scheme:
                path: SettingPath = ("storage", "overrides", i, name)
                yield Problem(path, f"has options for {scheme}://, but the url is {override.url}")


def _encryption(config: Config) -> Problems:
    storage = config.storage
    if (
        storage.encryption is not None
        and storage.encryption.topics
        and storage.fencing != "required"
    ):
        # Without fencing, the marker of one writer could describe the segment of another.
        yield Problem(
            ("storage", "encryption", "topics"),
            f"needs storage.fencing: required, and it is {storage.fencing}",
        )


def _s3_places(config: Config) -> Problems:
    """Check S3 options, for an override after it is merged with the defaults."""
    storage = config.storage
    if _is_s3(storage.url):
        yield from _s3_rules(storage.s3, ("storage", "s3"))
    for i, override in enumerate(storage.overrides):
        if _is_s3(override.url) and override.s3 is not None:
            options = storage.overridden(override).s3
            yield from _s3_rules(options, ("storage", "overrides", i, "s3"))


def _s3_rules(s3: S3Config, path: SettingPath) -> Problems:
    yield from _s3_credentials(s3, path)
    if s3.sse_kms_key_id is not None and s3.sse not in ("aws:kms", "aws:kms:dsse"):
        yield Problem((*path, "sse_kms_key_id"), "needs sse: aws:kms or aws:kms:dsse")
    if s3.part_size > s3.multipart_threshold:
        yield Problem(
            (*path, "part_size"),
            "is larger than multipart_threshold: a multipart upload would have only one part",
        )
    if s3.ca_bundle is not None and (s3.endpoint_url or "").startswith("http://"):
        yield Problem((*path, "ca_bundle"), "has no effect with an endpoint_url over http://")


def _s3_credentials(s3: S3Config, path: SettingPath) -> Problems:
    if (s3.access_key_id is None) != (s3.secret_access_key is None):
        yield Problem(path, "access_key_id needs secret_access_key, and the reverse")
    if s3.session_token is not None and s3.access_key_id is None:
        yield Problem((*path, "session_token"), "needs access_key_id and secret_access_key")
    if s3.profile is not None and s3.access_key_id is not None:
        yield Problem((*path, "profile"), "and access_key_id are two sources of credentials")


def _is_s3(url: str) -> bool:
    return url.startswith("s3://")


def _warnings(config: Config) -> Iterator[str]:
    for path, url in _urls(config.storage):
        if url.startswith("memory://"):
            yield f"{path[-1]} {url}: everything stored is lost when the process ends"
    early = config.uploader.early
    yield from _hidden("storage.overrides", [one.topics for one in config.storage.overrides])
    yield from _hidden("uploader.early.overrides", [one.topics for one in early.overrides])
    if config.broker.client and config.broker.bootstrap_servers is None:
        yield "broker.client has no effect, because broker.bootstrap_servers is not set"
    for i, override in enumerate(early.overrides if early.enabled else ()):
        if not _may_match_one(override.topics, early.topics):
            yield (
                f"uploader.early.overrides[{i}] has no effect: {override.topics} matches no topic "
                "that uploader.early.topics selects"
            )
    yield from early_costs(early)


def _hidden(setting: str, patterns: Sequence[str]) -> Iterator[str]:
    for i, pattern in enumerate(patterns[:-1]):
        if _matches_all(pattern):
            yield f"{setting}[{i}] matches every topic: those after it have no effect"
            return


def _may_match_one(pattern: str, others: Sequence[str]) -> bool:
    """Whether one topic may match the pattern and one of the others. Unknown, so true, for two
    patterns of which none is the name of a topic.
    """
    name, *names = (re.sub(r"\\([.-])", r"\1", one) for one in (pattern, *others))
    return any(
        matches_any([other], name)
        or matches_any([pattern], other_name)
        or not (is_legal_topic(name) or is_legal_topic(other_name))
        for other, other_name in zip(others, names, strict=True)
    )


_SMALL_PART: Final = 1024**2
"""Since 4.0, Kafka refuses a smaller `segment.bytes`."""
_SHORT_AGE: Final = 60.0


def early_costs(early: EarlyConfig) -> Iterator[str]:
    """Return what early archiving costs, for each limit that makes very many small segments."""
    if not early.enabled:
        return
    yield from _costs("uploader.early", "", early.bytes, early.age)
    for i, one in enumerate(early.overrides):
        yield from _costs(f"uploader.early.overrides[{i}]", f" ({one.topics})", one.bytes, one.age)


def _costs(setting: str, topics: str, size: int | None, age: float | None) -> Iterator[str]:
    if size is not None and size < _SMALL_PART:
        parts = 1024**3 // size
        yield (
            f"{setting}.bytes {format_size(size)}{topics}: each GiB of records becomes "
            f"{parts:,} segments, which cost about {parts * REQUESTS_PER_SEGMENT:,} requests, and "
            "readers, verify and gc as many more"
        )
    if age is not None and age < _SHORT_AGE:
        requests = daily_requests(age)
        yield (
            f"{setting}.age {format_duration(age)}{topics}: each partition that is written all "
            f"the time becomes {round(requests / REQUESTS_PER_SEGMENT):,} segments a "
            f"day, which cost about {requests:,} requests"
        )


_RULES: Final[tuple[Callable[[Config], Problems], ...]] = (
    _log_dirs,
    _store_beside_log_dirs,
    _spool_beside_log_dirs,
    _leadership,
    _zookeeper_security,
    _high_watermark,
    _active_segments,
    _topics,
    _local_retention,
    _delays,
    _store_options,
    _encryption,
    _s3_places,
)

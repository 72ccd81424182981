"""Pinterest's `<cluster>.properties` as a layer, and the table of its keys.

The table also generates the docs page. Source: `SegmentUploaderConfiguration`,
`MetricsConfiguration` and the dead letter queue handlers of their open-source release.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from sidetier.config.problems import Problem, suggestion
from sidetier.config.properties_file import Property, parse_properties
from sidetier.config.sources import Layer, read_config_text
from sidetier.segments.json_text import parse_json

PREFIX: Final = "ts.segment.uploader."
Fate = Literal["taken", "ignored", "refused"]


@dataclass(frozen=True, slots=True)
class PinterestKey:
    """One key of Pinterest's uploader.

    Attributes:
        key: its name; may contain `<topic>`.
        fate: whether the value is used (`taken`), ignored with a warning, or refused.
        setting: the Sidetier setting that gets the value.
    """

    key: str
    fate: Fate
    note: str
    setting: str = ""
    their_default: str = ""
    our_default: str = ""


KEYS: Final[tuple[PinterestKey, ...]] = (
    PinterestKey(
        f"{PREFIX}kafka.topics.include",
        "taken",
        "Comma-separated regular expressions that match the whole name; blanks are removed.",
        "topics.include",
        "none, required",
        "every topic but the internal ones",
    ),
    PinterestKey(
        f"{PREFIX}kafka.topics.exclude",
        "taken",
        "The same form; overrides include.",
        "topics.exclude",
        "none, required",
        "none",
    ),
    PinterestKey(
        f"{PREFIX}offset.reset.strategy",
        "taken",
        "EARLIEST or LATEST, in upper or lower case.",
        "uploader.offset_reset",
        "EARLIEST",
        "earliest",
    ),
    PinterestKey(f"{PREFIX}upload.thread.count", "taken", "", "uploader.threads", "3", "8"),
    PinterestKey(
        f"{PREFIX}upload.timeout.ms",
        "taken",
        "Deadline of one attempt, which grows with the size.",
        "storage.deadline.base",
        "60000",
        "30s, and 1 s more for every MiB",
    ),
    PinterestKey(
        f"{PREFIX}s3.prefix.entropy.bits",
        "taken",
        "Without the key, Pinterest's default applies, because the number is part of the keys of "
        "an existing archive.",
        "storage.prefix_entropy_bits",
        "-1 (no prefix)",
        "5",
    ),
    PinterestKey(
        f"{PREFIX}upload.max.retries",
        "ignored",
        "The upload of a segment is repeated as long as its bytes exist; storage.retry limits the "
        "attempts of one request.",
        their_default="3, then the segment is skipped",
        our_default="as long as the bytes exist",
    ),
    PinterestKey(
        f"{PREFIX}manager.gc.retention.seconds",
        "taken",
        "Enforced by `sidetier gc`, which you have to schedule. Without the key, nothing is "
        "deleted.",
        "retention.store",
        "259200 (3 days)",
        "no deletion",
    ),
    PinterestKey(
        f"{PREFIX}manager.gc.<topic>.retention.seconds",
        "taken",
        "The same for one topic.",
        "retention.store",
        "the value of the key without a topic",
        "no deletion",
    ),
    PinterestKey(
        f"{PREFIX}segment.manager.gc.retention.seconds",
        "taken",
        "Another spelling of the key above.",
        "retention.store",
        "",
        "no deletion",
    ),
    PinterestKey(
        f"{PREFIX}segment.manager.gc.<topic>.retention.seconds",
        "taken",
        "Another spelling of the key above.",
        "retention.store",
        "",
        "no deletion",
    ),
    PinterestKey(
        f"{PREFIX}manager.gc.interval.seconds",
        "ignored",
        "Schedule `sidetier gc` instead.",
        their_default="3600",
        our_default="no schedule",
    ),
    PinterestKey(
        f"{PREFIX}leadership.watcher.class",
        "ignored",
        "leadership.source replaces it; auto reads the mode from meta.properties.",
        their_default="none, required",
        our_default="auto",
    ),
    PinterestKey(
        f"{PREFIX}leadership.watcher.poll.interval.seconds",
        "ignored",
        "Sidetier watches leadership instead of polling it.",
        their_default="60",
        our_default="watched",
    ),
    PinterestKey(
        f"{PREFIX}zk.watcher.poll.interval.seconds",
        "ignored",
        "The older name of the key above.",
        their_default="60",
        our_default="watched",
    ),
    PinterestKey(
        "metrics.reporter.class",
        "ignored",
        "Prometheus scrapes the metrics: see http.port.",
        their_default="NoOpMetricsReporter",
        our_default="port 9108",
    ),
    PinterestKey("metrics.reporter.host", "ignored", "See metrics.reporter.class."),
    PinterestKey("metrics.reporter.port", "ignored", "See metrics.reporter.class."),
    PinterestKey(
        "storage.service.endpoint.provider.class",
        "ignored",
        "Sidetier cannot run a Java class. It reads a file <cluster>.json beside the .properties "
        "in one of the forms below; otherwise set storage.url and storage.overrides.",
        their_default="none, required",
        our_default="none, storage.url is required",
    ),
    PinterestKey(
        f"{PREFIX}dlq.handler.class",
        "refused",
        "Sidetier has no dead letter queue: a segment that fails holds back offset.wm, is "
        "reported, and is tried again. Remove the key.",
        their_default="none",
    ),
    PinterestKey(f"{PREFIX}dlq.send.timeout.ms", "refused", "See dlq.handler.class.", "", "10000"),
    PinterestKey(f"{PREFIX}dlq.localfile.path", "refused", "See dlq.handler.class."),
    PinterestKey(f"{PREFIX}dlq.s3localexecutable.path", "refused", "See dlq.handler.class."),
)


def endpoint_layer(layer: Layer, path: Path) -> None:
    """Add URL and overrides of `<cluster>.json` to the layer, if the file exists.

    Forms: `{"ts_bucket", "ts_base_prefix", "overrides": {topic: {the same two}}}`, and
    `{"bucket_public", "bucket_pii", "prefix", "topics": {topic: {"pii": bool}}}`.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    if not path.is_file():
        return
    try:
        url, overrides = _places(parse_json(read_config_text(path)))
    except (ValueError, KeyError, TypeError, AttributeError):
        message = "is neither of the two JSON forms that are known; set storage.url instead"
        layer.problems.append(Problem((str(path),), message))
        return
    layer.put(("storage", "url"), url, str(path))
    if overrides:
        layer.put(("storage", "overrides"), overrides, str(path))


def _places(document: Any) -> tuple[str, list[dict[str, str]]]:  # noqa: ANN401 -- JSON
    if "ts_bucket" in document:
        others = document.get("overrides") or {}
        return _url(document, "ts_bucket", "ts_base_prefix"), [
            _override(topic, _url(place, "ts_bucket", "ts_base_prefix"))
            for topic, place in others.items()
        ]
    private = _url(document, "bucket_pii", "prefix")
    return _url(document, "bucket_public", "prefix"), [
        _override(topic, private) for topic, place in document["topics"].items() if place["pii"]
    ]


def _url(place: dict[str, object], bucket: str, prefix: str) -> str:
    parts = (place[bucket], place[prefix])
    if not all(isinstance(part, str) and part for part in parts):
        raise ValueError("bucket and prefix must be text")
    return f"s3://{parts[0]}/{parts[1]}"


def _override(topic: str, url: str) -> dict[str, str]:
    return {"topics": re.escape(topic), "url": url}


_ENTROPY_BITS: Final = f"{PREFIX}s3.prefix.entropy.bits"


def properties_layer(text: str, path: Path) -> Layer:
    """Return the settings of Pinterest's file, with a warning for each ignored key.

    The cluster's name is the name of the file, as in Pinterest's uploader. `<cluster>.json` beside
    it is read if it has one of the known forms.

    Raises:
        ConfigurationError: the text is not in the format of Java properties.
    """
    properties = parse_properties(text, str(path))
    layer = Layer()
    layer.put(("cluster", "name"), path.stem, f"name of {path}")
    layer.put(("storage", "prefix_entropy_bits"), -1, f"Pinterest's default, {path}")
    lines: dict[str, int] = {}
    for item in properties:
        if item.key in lines:
            message = f"occurs twice, on lines {lines[item.key]} and {item.line}"
            _complain(layer, item, path, message)
        lines.setdefault(item.key, item.line)
        _take(layer, item, path)
    endpoint_layer(layer, path.with_suffix(".json"))
    return layer


def _take(layer: Layer, item: Property, path: Path) -> None:
    known = known_key(item.key)
    if known is None:
        near = suggestion(item.key, [key.key for key in KEYS])
        _complain(layer, item, path, f"no key has this name{near}")
    elif known.fate == "refused":
        _complain(layer, item, path, known.note)
    elif known.fate == "ignored":
        layer.warnings.append(f"{item.key} ({path}:{item.line}) is ignored: {known.note}")
    else:
        try:
            value = _READERS[known.setting](item.value)
        except ValueError as error:
            _complain(layer, item, path, str(error))
        else:
            setting = tuple(known.setting.split("."))
            if known.setting == _RETENTION:
                value = _with_retention(layer, item.key, value)
            layer.put(setting, value, f"{path}:{item.line}")


_RETENTION: Final = "retention.store"
_RETENTION_KEY: Final = re.compile(
    rf"{re.escape(PREFIX)}(?:segment\.)?manager\.gc\.(?:(?P<topic>.+)\.)?retention\.seconds"
)


def _with_retention(layer: Layer, key: str, age: object) -> list[dict[str, object]]:
    """Return the rules so far and one for this key. The rule for all other topics is the last."""
    match = _RETENTION_KEY.fullmatch(key)
    topic = match["topic"] if match else None
    pattern = ".*" if topic is None else re.escape(topic)
    rules = [*layer.values.get("retention", {}).get("store", ()), {"topics": [pattern], "age": age}]
    return sorted(rules, key=lambda rule: rule["topics"] == [".*"])


def _complain(layer: Layer, item: Property, path: Path, message: str) -> None:
    layer.problems.append(Problem((item.key,), message))
    layer.origins[(item.key,)] = f"{path}:{item.line}"


def known_key(key: str) -> PinterestKey | None:
    """Return the table's row for a key, which may contain a topic; None for an unknown key."""
    for known in KEYS:
        pattern = re.escape(known.key).replace("<topic>", "[A-Za-z0-9._-]+")
        if re.fullmatch(pattern, key):
            return known
    return None


def _patterns(value: str) -> list[str]:
    return [pattern for pattern in value.replace(" ", "").split(",") if pattern]


def _strategy(value: str) -> str:
    if value.strip().lower() not in ("earliest", "latest"):
        raise ValueError(f"must be EARLIEST or LATEST, not {value!r}")
    return value.strip().lower()


def _integer(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"must be a whole number, not {value!r}") from None


def _entropy_bits(value: str) -> int:
    """Map any number below -1 to -1: Pinterest's uploader takes it as no prefix, too."""
    return max(_integer(value), -1)


def _milliseconds(value: str) -> str:
    return f"{_integer(value)}ms"


def _seconds(value: str) -> str:
    """Return a duration. 0 and negative numbers would delete everything that is archived."""
    if _integer(value) <= 0:
        raise ValueError(f"must be at least 1, not {value!r}")
    return f"{_integer(value)}s"


_READERS: Final[Mapping[str, Callable[[str], object]]] = {
    "topics.include": _patterns,
    "topics.exclude": _patterns,
    "uploader.offset_reset": _strategy,
    "uploader.threads": _integer,
    "storage.deadline.base": _milliseconds,
    "storage.prefix_entropy_bits": _entropy_bits,
    "retention.store": _seconds,
}

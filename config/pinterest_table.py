"""Table of the keys of Pinterest's segment uploader and how each is handled. The docs are made from
it.

Source: `SegmentUploaderConfiguration`, `MetricsConfiguration` and the dead letter queue handlers of
their open-source release.
"""

from dataclasses import dataclass
from typing import Final, Literal

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
        "As include; it wins over include.",
        "topics.exclude",
        "none, required",
        "none",
    ),
    PinterestKey(
        f"{PREFIX}offset.reset.strategy",
        "taken",
        "EARLIEST or LATEST, in any case.",
        "uploader.offset_reset",
        "EARLIEST",
        "earliest",
    ),
    PinterestKey(f"{PREFIX}upload.thread.count", "taken", "", "uploader.threads", "3", "8"),
    PinterestKey(
        f"{PREFIX}upload.timeout.ms",
        "taken",
        "Ours is for one attempt and grows with the size.",
        "storage.deadline.base",
        "60000",
        "30s, and 1 s more for every MiB",
    ),
    PinterestKey(
        f"{PREFIX}s3.prefix.entropy.bits",
        "taken",
        "Where the file does not have the key, their default is used, not ours: the number decides "
        "where an archive lies.",
        "storage.prefix_entropy_bits",
        "-1 (no prefix)",
        "5",
    ),
    PinterestKey(
        f"{PREFIX}upload.max.retries",
        "ignored",
        "A segment is tried for as long as its bytes exist; storage.retry has the tries of one "
        "request.",
        their_default="3, then the segment is given up",
        our_default="for as long as the bytes exist",
    ),
    PinterestKey(
        f"{PREFIX}manager.gc.retention.seconds",
        "ignored",
        "Nothing is deleted from the store, there is no gc yet: use the bucket's lifecycle rules.",
        their_default="259200 (3 days)",
        our_default="no deletion",
    ),
    PinterestKey(
        f"{PREFIX}manager.gc.<topic>.retention.seconds",
        "ignored",
        "As without a topic.",
        their_default="the one without a topic",
        our_default="no deletion",
    ),
    PinterestKey(
        f"{PREFIX}segment.manager.gc.retention.seconds",
        "ignored",
        "Another spelling of the key above.",
        our_default="no deletion",
    ),
    PinterestKey(
        f"{PREFIX}segment.manager.gc.<topic>.retention.seconds",
        "ignored",
        "Another spelling of the key above.",
        our_default="no deletion",
    ),
    PinterestKey(
        f"{PREFIX}manager.gc.interval.seconds",
        "ignored",
        "There is no gc yet.",
        their_default="3600",
        our_default="no deletion",
    ),
    PinterestKey(
        f"{PREFIX}leadership.watcher.class",
        "ignored",
        "leadership.source says it, and auto reads it from meta.properties.",
        their_default="none, required",
        our_default="auto",
    ),
    PinterestKey(
        f"{PREFIX}leadership.watcher.poll.interval.seconds",
        "ignored",
        "Leadership is watched, not polled.",
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
        "Metrics are for Prometheus to scrape: see http.port.",
        their_default="NoOpMetricsReporter",
        our_default="port 9108",
    ),
    PinterestKey("metrics.reporter.host", "ignored", "See metrics.reporter.class."),
    PinterestKey("metrics.reporter.port", "ignored", "See metrics.reporter.class."),
    PinterestKey(
        "storage.service.endpoint.provider.class",
        "ignored",
        "A Java class cannot be run here. A file <cluster>.json beside the .properties, in one of "
        "the forms below, is read; else set storage.url and storage.overrides.",
        their_default="none, required",
        our_default="none, storage.url is required",
    ),
    PinterestKey(
        f"{PREFIX}dlq.handler.class",
        "refused",
        "There is no dead letter queue: a segment that fails holds the watermark, is shown, and is "
        "tried again. Remove the key.",
        their_default="none",
    ),
    PinterestKey(f"{PREFIX}dlq.send.timeout.ms", "refused", "See dlq.handler.class.", "", "10000"),
    PinterestKey(f"{PREFIX}dlq.localfile.path", "refused", "See dlq.handler.class."),
    PinterestKey(f"{PREFIX}dlq.s3localexecutable.path", "refused", "See dlq.handler.class."),
)

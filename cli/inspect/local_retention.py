"""Facts about local retention of a partition: what the sidecar would delete of its log."""

from dataclasses import dataclass

from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.cli.stores import layout_of, open_every_store, with_short_timeouts
from sidetier.config.model import Config
from sidetier.segments.errors import ConfigurationError, MalformedObjectError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import UNKNOWN_EPOCH, TopicPartition
from sidetier.storage.port import RemoteStorage
from sidetier.uploader.clock import SYSTEM_CLOCK
from sidetier.uploader.led_partitions import latest_epoch, topic_id_in
from sidetier.uploader.trim.archive_check import LedPartition
from sidetier.uploader.trim.decision import Held, Hindrance, Trim
from sidetier.uploader.trim.trimmer import Trimmer
from sidetier.uploader.watching.disk import find_partitions


@dataclass(frozen=True, slots=True)
class ArchiveAt:
    """A store, and the layout of its keys."""

    store: RemoteStorage
    layout: ArchiveLayout


def led_partition(
    tp: TopicPartition, directory: str, store: RemoteStorage, layout: ArchiveLayout
) -> LedPartition:
    """Read what a pass needs to know of a partition that this host's broker leads.

    Raises:
        StorageError: The store does not answer.
    """
    held: Held | None = None
    mark = None
    try:
        mark = StoredPartition(store, layout, tp).watermark()
    except MalformedObjectError as error:
        held = Held(Hindrance.ARCHIVE_UNKNOWN, str(error))
    epoch = latest_epoch(directory)
    if epoch == UNKNOWN_EPOCH:
        held = Held(
            Hindrance.LEADERSHIP_UNCONFIRMED,
            f"{directory} has no leader-epoch-checkpoint with the broker's leader epoch",
        )
    return LedPartition(
        tp,
        directory,
        epoch,
        topic_id_in(directory),
        etag=None if mark is None else mark.etag,
        archived_to=None if mark is None else mark.watermark.next_offset,
        held=held,
        watermark=None if mark is None else mark.watermark,
    )


def trim_json(trim: Trim) -> dict[str, object]:
    """Return the decision about a partition as JSON object."""
    return {
        "topic": trim.topic_partition.topic,
        "partition": trim.topic_partition.partition,
        "start_offset": trim.start,
        "log_start_offset": trim.end,
        "retained_from": trim.retained_from,
        "bytes": trim.size,
        "excess_bytes": trim.excess,
        "reason": None if trim.held is None else trim.held.hindrance.value,
        "text": None if trim.held is None else trim.held.text,
    }


@dataclass(frozen=True, slots=True)
class PartitionRetention:
    """Local retention of a partition whose topic has it.

    Attributes:
        trim: What the next pass deletes if the store proves to have it; None if all of the log is
            within local retention.
    """

    trim: Trim | None


def gather_retention(config: Config, tp: TopicPartition) -> PartitionRetention | None:
    """Decide as a pass of local retention does, before it verifies the archive. Deletes nothing.

    Returns:
        None if the topic has no local retention, or the partition has no replica on this host.

    Raises:
        SidetierError: The store or the brokers do not answer.
    """
    if not config.retention.local.selects(tp.topic):
        return None
    found = find_partitions(map(str, config.log_dirs), lambda topic: topic == tp.topic)
    directory = found.directories.get(tp)
    if directory is None:
        return None
    # Loads the client that reads committed offsets: only where a topic has local retention.
    from sidetier.cli.wiring import identify, record_deleter, topic_config_source  # noqa: PLC0415

    deleter = record_deleter(config, identify(config))
    topic_configs = topic_config_source(config)
    if deleter is None or topic_configs is None:  # the configuration's check has refused this
        raise ConfigurationError("broker.bootstrap_servers is not set")
    with open_every_store(with_short_timeouts(config)) as stores:
        store, layout = stores.store(tp.topic), layout_of(config)
        led = led_partition(tp, directory, store, layout)
        trimmer = Trimmer(
            config.retention.local,
            deleter,
            topic_configs,
            lambda _: ArchiveAt(store, layout),
            SYSTEM_CLOCK.wall,
        )
        return PartitionRetention(next(iter(trimmer.survey([led]).trims), None))

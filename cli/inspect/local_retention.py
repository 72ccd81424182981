"""Facts about local retention of a partition: what the sidecar would delete of its log."""

from dataclasses import dataclass

from sidetier.cli.stores import open_every_store
from sidetier.config.model import Config
from sidetier.segments.offsets import TopicPartition
from sidetier.uploader.trim.decision import Trim
from sidetier.uploader.trim.groups_behind import GroupInTopic
from sidetier.uploader.trim.single_pass import ArchiveAt, led_partition
from sidetier.uploader.watching.disk import find_partitions


def trim_json(trim: Trim) -> dict[str, object]:
    """Return the decision about a partition as JSON object."""
    return {
        **trim.topic_partition._asdict(),
        "start_offset": trim.start,
        "log_start_offset": trim.end,
        "retained_from": trim.retained_from,
        "bytes": trim.size,
        "excess_bytes": trim.excess,
        "reason": None if trim.held is None else trim.held.hindrance.value,
        "text": None if trim.held is None else trim.held.text,
    }


def group_json(row: GroupInTopic) -> dict[str, object]:
    """Return a group that is behind in a topic as JSON object."""
    return {
        "group": row.group,
        "topic": row.topic,
        "partitions": row.partitions,
        "skipped_offsets": row.skipped,
        "members": None if row.members is None else [member._asdict() for member in row.members],
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
    from sidetier.uploader.wiring import identify, trimmer_maker  # noqa: PLC0415

    new_trimmer = trimmer_maker(config, identify(config))
    with open_every_store(config.with_short_timeouts()) as stores:
        place = ArchiveAt(stores.store(tp.topic), stores.layout)
        survey = new_trimmer(lambda _: place).survey([led_partition(tp, directory, place)])
        return PartitionRetention(next(iter(survey.trims), None))

"""A mirror as a consumer of the archive, for `archive.gc`."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final
from uuid import UUID

from sidetier.archive.gc.needs import Consumer, NextOffset, UnknownProgressError, ask_group
from sidetier.config.properties_file import read_properties
from sidetier.leadership.kraft.image import print_uuid
from sidetier.mirror.topics.rules import MirrorNames, decode_lineage
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import TopicPartition

if TYPE_CHECKING:
    from sidetier.config.retention import RetainedMirror

_BOOTSTRAP: Final = "bootstrap.servers"


def mirror_consumer(mirror: "RetainedMirror") -> Consumer:
    """Return a mirror, whose target cluster keeps its progress."""
    name = f"mirror {mirror.name}"
    return Consumer(name, lambda partitions: _next_offsets(mirror, partitions, name))


def _next_offsets(
    mirror: "RetainedMirror", partitions: Collection[TopicPartition], consumer: str
) -> Mapping[TopicPartition, NextOffset]:
    """Return the progress of a mirror: source offsets that its group on the target commits, with
    the id of the source topic in their metadata.
    """
    try:
        properties = read_properties(mirror.target_config, f"{consumer}: target_config")
    except ConfigurationError as error:
        raise UnknownProgressError(str(error)) from error
    if _BOOTSTRAP not in properties:
        raise UnknownProgressError(f"{consumer}: {mirror.target_config} has no {_BOOTSTRAP}")
    copies = {
        TopicPartition(mirror.topics.get(tp.topic, tp.topic), tp.partition): tp for tp in partitions
    }
    group = MirrorNames(mirror.name).group
    answer = ask_group(properties, group, copies, consumer)
    next_offsets = {}
    for tp, committed in answer.committed.items():
        if tp not in copies:
            continue
        lineage = decode_lineage(committed.metadata)
        target_id = _kafka_id(lineage.target_id if lineage else None, "target_id", tp, consumer)
        if target_id is not None and target_id != answer.identity.topic_id:
            raise UnknownProgressError(
                f"{consumer}: its progress in {tp} is of topic id {target_id} on the target, and "
                f"the target has {answer.identity.topic_id}: the copy was deleted or created again"
            )
        source_id = _kafka_id(lineage.source_id if lineage else None, "source_id", tp, consumer)
        next_offsets[copies[tp]] = NextOffset(committed.offset, source_id)
    return next_offsets


def _kafka_id(text: str | None, name: str, tp: TopicPartition, consumer: str) -> str | None:
    """Convert a topic id of a mirror's progress to Kafka's form."""
    if text is None:
        return None
    try:
        # The mirror writes the id as RFC 9562 does, the archive as Kafka does.
        return print_uuid(UUID(text).bytes)
    except (AttributeError, TypeError, ValueError):
        raise UnknownProgressError(
            f"{consumer}: the {name} beside its offset in {tp} is {text!r}, which is not a topic id"
        ) from None

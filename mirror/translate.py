"""A group's offsets of the source as offsets of the target, by the map that the mirror keeps."""

from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from sidetier.mirror.offset_map import OffsetMap, Run, decode_map_record
from sidetier.mirror.topics import decode_lineage
from sidetier.segments.errors import MirrorError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.wire.requests import CommittedOffset

_POLL_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class TranslatedOffset:
    """One partition of a group.

    Attributes:
        source: The source partition.
        target: Its copy.
        source_offset: What the group has committed on the source.
        target_offset: What it is on the target; None where nothing was copied.
        repeated: Source offsets below `source_offset` that were not copied yet: the group reads
            them on the target although it has read them on the source.
    """

    source: TopicPartition
    target: TopicPartition
    source_offset: Offset
    target_offset: Offset | None
    repeated: int


def read_offset_map(properties: Mapping[str, str], topic: str) -> dict[TopicPartition, OffsetMap]:
    """The map of each target partition, from the target's topic.

    Args:
        properties: Of the client, in librdkafka's names.
        topic: `MirrorNames.offsets_topic`.

    Raises:
        MirrorError: the topic does not exist, or cannot be read.
        MalformedObjectError: something else is in it.
    """
    consumer = Consumer(
        {
            **properties,
            "group.id": topic,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    chunks: dict[bytes, tuple[TopicPartition, tuple[Run, ...]]] = {}
    try:
        consumer.assign([KafkaPartition(topic, 0, 0)])
        while True:
            message = consumer.poll(_POLL_SECONDS)
            error = KafkaError(KafkaError._TIMED_OUT) if message is None else message.error()  # noqa: SLF001 -- librdkafka's own
            if error is not None and error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                break
            if message is None or error is not None:
                raise MirrorError(f"the offset map in topic {topic} cannot be read: {error}")
            key, value = message.key(), message.value()
            if key is not None and value is not None:
                chunks[key] = decode_map_record(key, value)
    except KafkaException as error:
        raise MirrorError(f"the offset map in topic {topic} cannot be read: {error}") from error
    finally:
        consumer.close()
    runs: dict[TopicPartition, list[Run]] = {}
    for tp, found in chunks.values():
        runs.setdefault(tp, []).extend(found)
    return {tp: OffsetMap(found) for tp, found in runs.items()}


def translate_offsets(
    committed: Mapping[TopicPartition, CommittedOffset],
    progress: Mapping[TopicPartition, CommittedOffset],
    maps: Mapping[TopicPartition, OffsetMap],
) -> list[TranslatedOffset]:
    """Every partition that the group has committed and the mirror copies.

    Args:
        committed: Of the group, by source partition.
        progress: Of the mirror, by target partition.
        maps: By target partition.
    """
    found = []
    for target, reached in sorted(progress.items()):
        lineage = decode_lineage(reached.metadata)
        if lineage is None:
            continue
        source = TopicPartition(lineage.topic, target.partition)
        if source not in committed:
            continue
        offset = committed[source].offset
        translation = maps[target].translate(offset, reached.offset) if target in maps else None
        found.append(
            TranslatedOffset(
                source,
                target,
                offset,
                None if translation is None else Offset(translation.offset),
                0 if translation is None or translation.is_exact else offset - reached.offset,
            )
        )
    return found

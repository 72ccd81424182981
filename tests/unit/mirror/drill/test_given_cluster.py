"""The topics of a given cluster that a drill recognises as its own."""

from dataclasses import replace
from uuid import UUID

import pytest

from sidetier.mirror.drill.given_cluster import (
    DrillTopic,
    drill_topic,
    is_of_drill,
    new_run,
    topic_of,
)
from sidetier.mirror.restore.plan import RestoreNote
from sidetier.mirror.topics.rules import Lineage, TopicRules, compiled
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.wire.cluster import TopicMetadata
from sidetier.wire.requests import CommittedOffset

NOW = 1_700_000_000.0
NAMES = new_run(NOW)
ID, OTHER_ID = UUID(int=1), UUID(int=2)
COPY = topic_of(NAMES, 0)


def described(name: str, topic_id: UUID | None = ID) -> TopicMetadata:
    return TopicMetadata(name, topic_id, is_internal=False, partitions={})


def topic(name: str = COPY) -> DrillTopic:
    result = drill_topic(described(name))
    assert result is not None
    return result


def progress(target_id: UUID) -> dict[TopicPartition, CommittedOffset]:
    note = RestoreNote(Lineage("orders", ("eu",), target_id=str(target_id)), Offset(0))
    return {TopicPartition(COPY, 0): CommittedOffset(Offset(7), metadata=note.encoded())}


def test_name_of_a_drills_topic_contains_its_group_and_start_time() -> None:
    assert topic() == DrillTopic(COPY, ID, NAMES.group, NOW, 0)
    assert not topic().is_offset_map
    assert topic(NAMES.offsets_topic).is_offset_map
    assert new_run(NOW).group != NAMES.group


@pytest.mark.parametrize(
    "name",
    [
        "orders",
        "sidetier-drill-orders",
        "sidetier-restore-20231114T221320Z-00000000-topic-0",
        "sidetier-drill-20231114T221320Z-00000000",
        "sidetier-drill-20231114T221320Z-00000000-topic-0-copy",
        "sidetier-drill-20231399T221320Z-00000000-topic-0",
    ],
)
def test_topic_with_another_name_is_ignored(name: str) -> None:
    assert drill_topic(described(name)) is None


def test_topic_without_an_id_cannot_be_deleted_safely() -> None:
    assert drill_topic(described(COPY, None)) is None


def test_empty_topic_belongs_to_a_drill() -> None:
    assert is_of_drill(topic(), [0, 0], {})
    assert is_of_drill(topic(NAMES.offsets_topic), [0], {})


def test_topic_with_records_belongs_to_a_drill_if_its_progress_names_the_topic_id() -> None:
    assert is_of_drill(topic(), [0, 7], progress(ID))
    assert not is_of_drill(topic(), [0, 7], progress(OTHER_ID))
    assert not is_of_drill(topic(), [0, 7], {})
    others = {TopicPartition(COPY, 0): CommittedOffset(Offset(7), metadata="of a consumer")}
    assert not is_of_drill(topic(), [0, 7], others)
    assert not is_of_drill(replace(topic(), name=topic_of(NAMES, 1)), [7], progress(ID))


def test_offset_map_topic_belongs_to_a_drill_while_any_progress_exists() -> None:
    assert is_of_drill(topic(NAMES.offsets_topic), [7], progress(ID))
    assert not is_of_drill(topic(NAMES.offsets_topic), [7], {})


def test_mirrors_do_not_copy_topics_of_drills() -> None:
    assert not TopicRules((compiled(".*", "--topic"),)).selects(COPY)

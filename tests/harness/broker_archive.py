"""A broker's own segments, stored as a sidecar would store them: an archive for readers."""

from sidetier.segments.crc import crc64nvme
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.notes import NEXT_OFFSET_KEY, NONE, NOTE_KEYS, object_note, records_note
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.port import RemoteStorage
from tests.harness.batches import facts_of
from tests.harness.broker_segments import BrokerSegment, closed_segments
from tests.harness.made_archive import MadeArchive


def store_broker_segments(
    store: RemoteStorage,
    layout: ArchiveLayout,
    directory: str,
    tp: TopicPartition | None = None,
    *,
    topic_id: str | None = None,
    first: int = 0,
) -> list[BrokerSegment]:
    """Store the closed segments of a fixture, such as `tx-0`, and return them.

    Args:
        store: The archive's store.
        layout: The archive's layout.
        directory: Name of the fixture.
        tp: The archived partition; None for the one that the fixture is named after.
        topic_id: Id of the topic, as Kafka writes it.
        first: Number of the first segment that is stored.
    """
    segments = [
        segment_fixture
        for segment_fixture in closed_segments()
        if segment_fixture.directory.name == directory
    ][first:]
    topic, _, partition = directory.rpartition("-")
    archive = MadeArchive(store, layout, tp or TopicPartition(topic, int(partition)))
    for segment in segments:
        for kind in (FileKind.INDEX, FileKind.TIMEINDEX):
            archive.put(archive.key(segment.base, kind), segment.read(kind))
        log = segment.read(FileKind.LOG)
        facts, key = facts_of(log, segment.base), archive.key(segment.base)
        is_to_end = facts.next_offset == segment.next_base
        notes = {
            NEXT_OFFSET_KEY: str(segment.next_base),
            **records_note(facts.plain_records if is_to_end else None),
            **object_note(key, len(log)),
            **_companions(archive, segment),
        }
        archive.put(key, log, notes)
    archive.mark(segments[-1].base, segments[-1].next_base, topic_id=topic_id)
    return segments


def _companions(archive: MadeArchive, segment: BrokerSegment) -> dict[str, str]:
    """Store the broker's optional files of a segment, and note which of them exist."""
    notes: dict[str, str] = {}
    for kind, name in NOTE_KEYS.items():
        notes[name] = NONE
        if segment.path(kind).exists():
            data = segment.read(kind)
            archive.put(archive.key(segment.base, kind), data)
            notes[name] = f"{crc64nvme(data):016x}"
    return notes

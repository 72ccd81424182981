import hashlib
import string
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from sidetier.segments.keys import ArchiveLayout, parse_gap_key, parse_object_key
from sidetier.segments.listing import read_listing
from sidetier.segments.names import (
    DirectoryState,
    FileKind,
    PartitionDirectory,
    SegmentFileName,
    parse_partition_directory,
    parse_segment_file_name,
    segment_file_name,
)
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition

LEGAL = string.ascii_letters + string.digits + "._-"

offsets = st.integers(0, 2**63 - 1)
bases = offsets.map(BaseOffset)
kinds = st.sampled_from(FileKind)
topics = st.text(LEGAL, min_size=1, max_size=249).filter(lambda topic: topic not in {".", ".."})
partitions = st.builds(TopicPartition, topics, st.integers(0, 2**31 - 1))
clusters = st.text(LEGAL, min_size=1).filter(lambda c: c not in {".", "..", "_sidetier"})
layouts = st.builds(ArchiveLayout, clusters, st.integers(-1, 128))


@given(bases, kinds, st.booleans())
def test_segment_name_round_trips(base: BaseOffset, kind: FileKind, deleted: bool) -> None:  # noqa: FBT001
    name = segment_file_name(base, kind, deleted=deleted)
    assert parse_segment_file_name(name) == SegmentFileName(base, kind, deleted)


@given(st.text())
def test_parsed_segment_name_is_formatted_identically(name: str) -> None:
    parsed = parse_segment_file_name(name)
    if parsed is not None:
        again = segment_file_name(parsed.base_offset, parsed.kind, deleted=parsed.deleted)
        assert again == name


@given(
    partitions,
    st.sampled_from(DirectoryState),
    st.text("0123456789abcdef", min_size=32, max_size=32),
)
def test_partition_directory_name_round_trips(
    partition: TopicPartition, state: DirectoryState, unique: str
) -> None:
    name = str(partition)
    if state is not DirectoryState.LIVE:
        name = f"{name}.{unique}-{state.value}"
    assert parse_partition_directory(name) == PartitionDirectory(partition, state)


@given(st.text(LEGAL) | st.text())
def test_parsed_live_directory_name_is_formatted_identically(name: str) -> None:
    parsed = parse_partition_directory(name)
    if parsed is not None and parsed.state is DirectoryState.LIVE:
        assert str(parsed.topic_partition) == name


@given(layouts, partitions, bases, kinds)
def test_object_key_round_trips(
    layout: ArchiveLayout, partition: TopicPartition, base: BaseOffset, kind: FileKind
) -> None:
    key = layout.object_key(partition, base, kind)
    assert parse_object_key(key, layout.partition_prefix(partition)) == (base, kind)


@given(layouts, partitions, partitions)
def test_partitions_have_different_prefixes(
    layout: ArchiveLayout, one: TopicPartition, other: TopicPartition
) -> None:
    prefixes = layout.partition_prefix(one), layout.partition_prefix(other)
    assert (one == other) == prefixes[0].startswith(prefixes[1])


@given(clusters, partitions, st.integers(1, 128))
def test_prefix_bits_are_the_leftmost_of_the_digest(
    cluster: str, partition: TopicPartition, bits: int
) -> None:
    text = f"{cluster}-{partition.topic}-{partition.partition}"
    digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
    expected = "".join(f"{byte:08b}" for byte in digest)[:bits]
    prefix = ArchiveLayout(cluster, bits).partition_prefix(partition)
    assert prefix == f"{expected}/{cluster}/{partition}/"


@given(layouts, partitions, offsets, offsets)
def test_gap_key_round_trips(
    layout: ArchiveLayout, partition: TopicPartition, start: int, end: int
) -> None:
    key = layout.gap_key(partition, Offset(start), Offset(end))
    assert parse_gap_key(key, layout.gap_prefix(partition)) == (start, end)


@given(st.sets(bases, max_size=8), st.sets(bases, max_size=8), st.randoms())
def test_every_segment_is_listed_once_and_ends_at_anothers_base_offset(
    live: set[BaseOffset],
    marked_for_deletion: set[BaseOffset],
    random: Random,
) -> None:
    names = [segment_file_name(base, FileKind.LOG) for base in live]
    names += [segment_file_name(base, FileKind.LOG, deleted=True) for base in marked_for_deletion]
    random.shuffle(names)
    listing = read_listing(names)

    listed = [segment.base_offset for segment in listing.closed]
    assert listing.active == max(live, default=None)
    assert listed == sorted((live | marked_for_deletion) - {listing.active})
    for segment in listing.closed:
        assert segment.marked_for_deletion == (segment.base_offset not in live)
        if segment.next_base is not None:
            assert segment.next_base > segment.base_offset
            assert segment.next_base in live | marked_for_deletion
        else:
            assert segment.base_offset == max(live | marked_for_deletion)

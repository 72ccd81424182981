import pytest

from sidetier.segments.names import (
    DirectoryState,
    FileKind,
    PartitionDirectory,
    SegmentFileName,
    is_internal_topic,
    parse_partition_directory,
    parse_segment_file_name,
    partition_count,
    segment_file_name,
)
from sidetier.segments.offsets import BaseOffset, TopicPartition

ZEROS = "0" * 20
UNIQUE = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (f"{ZEROS}.log", SegmentFileName(BaseOffset(0), FileKind.LOG, deleted=False)),
        (
            "00000000000000001040.index",
            SegmentFileName(BaseOffset(1040), FileKind.INDEX, deleted=False),
        ),
        (f"{ZEROS}.timeindex", SegmentFileName(BaseOffset(0), FileKind.TIMEINDEX, deleted=False)),
        (f"{ZEROS}.txnindex", SegmentFileName(BaseOffset(0), FileKind.TXNINDEX, deleted=False)),
        (f"{ZEROS}.snapshot", SegmentFileName(BaseOffset(0), FileKind.SNAPSHOT, deleted=False)),
        (f"{ZEROS}.log.deleted", SegmentFileName(BaseOffset(0), FileKind.LOG, deleted=True)),
    ],
)
def test_segment_files_are_recognised_by_name(name: str, expected: SegmentFileName) -> None:
    assert parse_segment_file_name(name) == expected
    assert segment_file_name(expected.base_offset, expected.kind, deleted=expected.deleted) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        f"{ZEROS}",
        f"{ZEROS}.log.cleaned",
        f"{ZEROS}.log.swap",
        f"{ZEROS}.log.deleted.deleted",
        f"{ZEROS}.LOG",
        f"{ZEROS}.log\n",
        f"{ZEROS}0.log",
        "0.log",
        "\N{ARABIC-INDIC DIGIT ZERO}" * 20 + ".log",
        "99999999999999999999.log",  # more than the largest offset
        f"./{ZEROS}.log",
        "00000000000000000000-0000000001.checkpoint",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ],
)
def test_other_names_are_not_segment_files(name: str) -> None:
    assert parse_segment_file_name(name) is None


@pytest.mark.parametrize(
    ("name", "topic", "partition", "state"),
    [
        ("orders-0", "orders", 0, DirectoryState.LIVE),
        ("a-b-12", "a-b", 12, DirectoryState.LIVE),
        ("a--1", "a-", 1, DirectoryState.LIVE),
        ("__cluster_metadata-0", "__cluster_metadata", 0, DirectoryState.LIVE),
        (f"orders-3.{UNIQUE}-delete", "orders", 3, DirectoryState.DELETED),
        (f"or.ders-3.{UNIQUE}-future", "or.ders", 3, DirectoryState.FUTURE),
        (f"orders-3.{UNIQUE}-stray", "orders", 3, DirectoryState.STRAY),
        ("t" * 249 + "-7", "t" * 249, 7, DirectoryState.LIVE),
        # A topic may have such a name: without the 32 digits the directory was not renamed.
        ("orders-3.x-0", "orders-3.x", 0, DirectoryState.LIVE),
    ],
)
def test_partition_directories_are_recognised_by_name(
    name: str, topic: str, partition: int, state: DirectoryState
) -> None:
    expected = PartitionDirectory(TopicPartition(topic, partition), state)
    assert parse_partition_directory(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "",
        "orders",
        "orders-",
        "-0",
        "orders-00",
        "orders-01",
        "orders-+1",
        "orders--",
        "orders-0\n",
        "or ders-0",
        "ördërs-0",
        "..-0",
        ".-0",
        "t" * 250 + "-0",
        "orders-2147483648",
        f"orders-0.{UNIQUE}-gone",
        f"orders-0.{UNIQUE[:-1]}-delete",
        f"orders-0.{UNIQUE.upper()}-delete",
        "lost+found",
        "meta.properties",
    ],
)
def test_other_names_are_not_partition_directories(name: str) -> None:
    assert parse_partition_directory(name) is None


def test_only_kafkas_own_topics_are_internal() -> None:
    assert is_internal_topic("__consumer_offsets")
    assert is_internal_topic("__share_group_state")
    assert not is_internal_topic("__mine")
    assert not is_internal_topic("consumer_offsets")


@pytest.mark.parametrize(
    ("numbers", "known", "expected"),
    [
        ((), 0, (0, ())),
        ((2, 0), 0, (3, ())),
        ((2, 0), 6, (6, ())),
        ((1000,), 0, (1001, ())),
        ((1001,), 0, (0, (1001,))),
        ((1001,), 1, (1002, ())),
        ((0, 2**31 - 1), 0, (1, (2**31 - 1,))),
        (tuple(range(0, 20_000, 10)), 0, (19_991, ())),
        ((*range(0, 20_000, 10), 30_000), 0, (19_991, (30_000,))),
    ],
    ids=str,
)
def test_a_number_far_above_the_others_is_no_partition(
    numbers: tuple[int, ...], known: int, expected: tuple[int, tuple[int, ...]]
) -> None:
    assert partition_count(numbers, known) == expected

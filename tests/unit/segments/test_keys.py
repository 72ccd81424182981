import pytest

from sidetier.segments.errors import ConfigurationError
from sidetier.segments.keys import (
    ArchiveLayout,
    parse_gap_key,
    parse_group_key,
    parse_object_key,
    parse_tail_directory,
    parse_tail_pack_key,
    place_of_log,
    place_of_pack,
)
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition

TP = TopicPartition("orders", 3)

# The md5sum of "prod-orders-3" begins with dd72: 1101 1101 0111 0010.
PREFIXES = [
    (-1, "prod/orders-3/"),
    (0, "prod/orders-3/"),
    (1, "1/prod/orders-3/"),
    (4, "1101/prod/orders-3/"),
    (10, "1101110101/prod/orders-3/"),
]


@pytest.mark.parametrize(("bits", "prefix"), PREFIXES)
def test_prefix_begins_with_the_leftmost_bits(bits: int, prefix: str) -> None:
    assert ArchiveLayout("prod", bits).partition_prefix(TP) == prefix


def test_all_objects_of_a_partition_lie_below_its_prefix() -> None:
    layout = ArchiveLayout("prod", 4)
    prefix = layout.partition_prefix(TP)
    assert layout.object_key(TP, BaseOffset(520), FileKind.LOG) == (
        f"{prefix}00000000000000000520.log"
    )
    assert layout.watermark_key(TP) == f"{prefix}offset.wm"
    assert layout.metadata_key(TP) == f"{prefix}_metadata"
    assert layout.epoch_checkpoint_key(TP) == f"{prefix}leader-epoch-checkpoint"


def test_keys_hidden_from_pinterest_lie_below_another_prefix() -> None:
    layout = ArchiveLayout("prod", 4)
    assert layout.layout_key() == "_sidetier/prod/layout.json"
    key = layout.gap_key(TP, Offset(5), Offset(700))
    assert key == ("_sidetier/prod/gaps/orders-3/00000000000000000005-00000000000000000700.json")
    assert parse_gap_key(key, layout.gap_prefix(TP)) == (5, 700)
    assert parse_gap_key(key + "x", layout.gap_prefix(TP)) is None
    assert parse_gap_key(f"{key[:-25]}{2**63}.json", layout.gap_prefix(TP)) is None  # no offset
    assert parse_gap_key(key, layout.gap_prefix(TopicPartition("orders", 30))) is None
    group = layout.group_key("a/b ü~")
    assert group == "_sidetier/prod/groups/a%2Fb%20%C3%BC%7E.json"
    assert parse_group_key(group, layout.groups_prefix()) == "a/b ü~"


def test_segment_files_are_distinguished_from_other_objects() -> None:
    layout = ArchiveLayout("prod", 4)
    prefix = layout.partition_prefix(TP)
    key = layout.object_key(TP, BaseOffset(520), FileKind.TIMEINDEX)
    assert parse_object_key(key, prefix) == (520, FileKind.TIMEINDEX)
    assert parse_object_key(layout.watermark_key(TP), prefix) is None
    assert parse_object_key(f"{key}.deleted", prefix) is None
    assert parse_object_key(f"{prefix}deeper/{key.removeprefix(prefix)}", prefix) is None
    assert parse_object_key(key, layout.partition_prefix(TopicPartition("orders", 4))) is None


def test_a_log_has_the_same_place_in_every_folder_of_an_archive() -> None:
    layout, base = ArchiveLayout("prod", 4), BaseOffset(520)
    name = "00000000000000000520.log"
    folders = [
        layout.partition_prefix(TP),
        ArchiveLayout("other", 0).partition_prefix(TP),
        f"{layout.quarantine_prefix(TP)}00000000000000000520-epoch-3/also-x/",
        f"{layout.retired_prefix(TP)}another-1/",
    ]
    assert {place_of_log(folder + name) for folder in folders} == {"orders-3/00000000000000000520"}
    index = layout.object_key(TP, base, FileKind.INDEX)
    for other in (name, index, layout.watermark_key(TP), f"prod/orders/{name}", f"{index}.log"):
        assert place_of_log(other) is None


def test_keys_of_tail_packs() -> None:
    layout = ArchiveLayout("prod", 4)
    key, prefix = layout.tail_pack_key(3, 520), layout.tail_packs_prefix(3)
    assert key == "_sidetier/prod/tail/3/packs/00000000000000000520"
    assert layout.tail_index_key(3) == "_sidetier/prod/tail/3/index"
    assert parse_tail_pack_key(key, prefix) == 520
    assert parse_tail_directory("_sidetier/prod/tail/3/", layout.tails_prefix()) == 3
    assert place_of_pack(key) == "tail/3/00000000000000000520"
    for other in (f"{key}0", f"{key}.log", prefix + "9" * 20, key.replace("/3/", "/4/")):
        assert parse_tail_pack_key(other, prefix) is None
    for other in ("03/", "x/", "-1/", "3"):
        assert parse_tail_directory(layout.tails_prefix() + other, layout.tails_prefix()) is None
    for other in (f"x/{key}", key.replace("tail", "gaps"), layout.tail_index_key(3)):
        assert place_of_pack(other) is None


@pytest.mark.parametrize("cluster", ["", "a/b", "..", ".", "_sidetier", "a b", "ü", "a\n"])
def test_invalid_cluster_name_is_refused(cluster: str) -> None:
    with pytest.raises(ConfigurationError, match=r"cluster\.name"):
        ArchiveLayout(cluster, 0)


def test_more_bits_than_an_md5_sum_has_are_refused() -> None:
    assert len(ArchiveLayout("c", 128).partition_prefix(TP).split("/")[0]) == 128
    with pytest.raises(ConfigurationError, match="129 prefix entropy bits"):
        ArchiveLayout("c", 129)

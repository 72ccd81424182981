import pytest

from sidetier.segments.errors import SegmentError, UnsupportedFormatError
from sidetier.segments.offsets import BrokerId
from sidetier.segments.properties import (
    MetaProperties,
    parse_meta_properties,
    parse_partition_metadata,
)
from tests.harness.broker_segments import directories

META = "data/meta.properties"
PARTITION = "data/t-0/partition.metadata"
KRAFT = """#
#Sat Nov 21 09:00:00 UTC 2026
node.id=3
directory.id=Ymm5rYnAS9y6J_5PvLbTdA
version=1
cluster.id=p8fFEbKGQ22B6M_Da_vCBw
"""
ZOOKEEPER = """#
#Sat Nov 21 09:00:00 UTC 2026
cluster.id=p8fFEbKGQ22B6M_Da_vCBw
version=0
broker.id=0
"""


def test_mode_and_broker_id_follow_from_the_version() -> None:
    cluster = "p8fFEbKGQ22B6M_Da_vCBw"
    assert parse_meta_properties(KRAFT, META) == MetaProperties(BrokerId(3), 1, cluster, "kraft")
    assert parse_meta_properties(ZOOKEEPER, META) == MetaProperties(
        BrokerId(0), 0, cluster, "zookeeper"
    )


def test_all_forms_of_a_properties_file_are_read() -> None:
    text = "! a comment\r\n\r\n  version : 0\r\nbroker.id = 7\r\ncluster.id=a\\=b\r\n"
    assert parse_meta_properties(text, META) == MetaProperties(BrokerId(7), 0, "a=b", "zookeeper")


def test_old_broker_has_no_cluster_id() -> None:
    assert parse_meta_properties("version=0\nbroker.id=7\n", META).cluster_id is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "version is ''"),
        ("version=one\n", "version is 'one'"),
        ("version=1\nbroker.id=1\n", "node.id is ''"),
        ("version=0\nnode.id=1\n", "broker.id is ''"),
        ("version=0\nbroker.id=-1\n", "broker.id is '-1'"),
    ],
)
def test_error_for_a_damaged_file_names_it(text: str, reason: str) -> None:
    with pytest.raises(SegmentError, match=f"{META}: {reason}"):
        parse_meta_properties(text, META)


def test_other_versions_are_refused() -> None:
    with pytest.raises(UnsupportedFormatError, match=f"{META}: version 2, expected 0 or 1"):
        parse_meta_properties("version=2\nnode.id=1\n", META)
    with pytest.raises(UnsupportedFormatError, match=f"{PARTITION}: version 1, expected 0"):
        parse_partition_metadata("version: 1\ntopic_id: cym-TlqmRE2h0UHouOCTtg", PARTITION)


def test_topic_id_is_read() -> None:
    text = "version: 0\ntopic_id: cym-TlqmRE2h0UHouOCTtg"
    assert parse_partition_metadata(text, PARTITION) == "cym-TlqmRE2h0UHouOCTtg"
    ids = {
        parse_partition_metadata((path / "partition.metadata").read_text(), str(path))
        for path in directories()
    }
    assert len(ids) == len(directories())


@pytest.mark.parametrize("topic_id", ["", "short", "cym-TlqmRE2h0UHouOCTt!", "a" * 23])
def test_invalid_topic_id_is_refused(topic_id: str) -> None:
    with pytest.raises(SegmentError, match=f"{PARTITION}: topic_id is"):
        parse_partition_metadata(f"version: 0\ntopic_id: {topic_id}\n", PARTITION)

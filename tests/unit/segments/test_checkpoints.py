import pytest

from sidetier.segments.checkpoints import parse_offset_checkpoint
from sidetier.segments.errors import SegmentError, UnsupportedFormatError
from sidetier.segments.offsets import TopicPartition

PATH = "data/replication-offset-checkpoint"


def test_each_partition_has_its_offset() -> None:
    text = "0\n2\norders 0 700\nor-ders.v1 12 9000000000\n"
    assert parse_offset_checkpoint(text, PATH) == {
        TopicPartition("orders", 0): 700,
        TopicPartition("or-ders.v1", 12): 9_000_000_000,
    }


def test_log_dir_without_partitions_has_no_rows() -> None:
    assert parse_offset_checkpoint("0\n0\n", PATH) == {}


def test_empty_file_has_no_rows() -> None:
    """Brokers create an empty `cleaner-offset-checkpoint`, and Kafka accepts any empty
    checkpoint.
    """
    assert parse_offset_checkpoint("", PATH) == {}


def test_ten_thousand_rows_are_read() -> None:
    rows = "".join(f"topic-{n % 500} {n // 500} {n}\n" for n in range(10_000))
    offsets = parse_offset_checkpoint(f"0\n10000\n{rows}", PATH)
    assert len(offsets) == 10_000
    assert offsets[TopicPartition("topic-499", 19)] == 9999


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0\n2\norders 0 700\n", "line 2 says 2 rows, there are 1"),
        ("0\n0\norders 0 700\n", "line 2 says 0 rows, there are 1"),
        ("0\nx\norders 0 700\n", "line 2 is 'x'"),
        ("0\n-1\n", "line 2 is '-1'"),
        ("0", "expected the number of rows"),
        ("0\n1\norders 0\n", "'orders 0' is not a topic, a partition and an offset"),
        ("0\n1\norders 0 700 1\n", "is not a topic"),
        ("0\n1\norders zero 700\n", "is not a topic"),
        ("0\n2\norders 0 700\norders 0 800\n", "1 partitions occur twice"),
    ],
)
def test_error_for_a_damaged_file_names_it(text: str, reason: str) -> None:
    with pytest.raises(SegmentError, match=reason) as caught:
        parse_offset_checkpoint(text, PATH)
    assert str(caught.value).startswith(f"{PATH}: ")


@pytest.mark.parametrize("text", ["1\n0\n", "\n0\n", "garbage"])
def test_other_versions_are_refused(text: str) -> None:
    with pytest.raises(UnsupportedFormatError, match=f"{PATH}: checkpoint version"):
        parse_offset_checkpoint(text, PATH)

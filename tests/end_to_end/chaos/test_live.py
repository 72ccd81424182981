"""The verdict on plain readers of the endpoint: what they skip or repeat is a violation."""

from pathlib import Path

import pytest

from tests.end_to_end.chaos.ledger import Fate, Ledger
from tests.end_to_end.chaos.live import ConsoleReader, PlainReader

TP = ("plain", 0)


def console(directory: Path, offsets: list[int], cut: str = "") -> ConsoleReader:
    reader = ConsoleReader("127.0.0.1:1", TP, directory)
    reader.output.write_text("".join(f"Offset:{at}\n" for at in offsets) + cut)
    reader.errors.write_text("why")
    return reader


def test_console_consumer_that_reads_everything_once_is_right(tmp_path: Path) -> None:
    reader = console(tmp_path, [0, 1, 2, 4], cut="Offset:1")
    assert reader.last() == 4
    assert list(reader.violations([0, 1, 4])) == []


@pytest.mark.parametrize(
    ("offsets", "said"),
    [
        ([0, 2], "1 records never came, the first at 1; why"),
        ([0, 1, 1, 2], "1 offsets came again, the first at 1"),
        ([1, 2, 0], "1 offsets came again, the first at 0"),
        ([], "3 records never came, the first at 0; why"),
    ],
)
def test_skipped_and_repeated_offsets_of_the_console_consumer_are_told(
    tmp_path: Path, offsets: list[int], said: str
) -> None:
    reader = console(tmp_path, offsets)
    assert list(reader.violations([0, 1, 2])) == [f"{TP}: {said}"]


def ledger() -> Ledger:
    ledger, tp = Ledger(), ("paid", 0)
    for offset in range(4):
        ledger.acknowledge(tp, offset, offset + 10, 0.0)
    for offset, fate in ((0, Fate.COMMITTED), (1, Fate.ABORTED), (2, Fate.COMMITTED)):
        ledger.decide(tp, offset, fate)
    return ledger


@pytest.mark.parametrize(
    ("isolation", "offsets", "said"),
    [
        ("read_committed", [0, 2, 3], []),
        ("read_committed", [0, 1, 2], ["1 was aborted"]),
        ("read_committed", [2], ["1 committed records never came, the first at 0"]),
        ("read_uncommitted", [0, 1, 2, 3], []),
        ("read_uncommitted", [0, 2, 3], ["left out, the first at 1", "never came, the first at 1"]),
        ("read_uncommitted", [0, 1, 2, 3, 2], ["2 came after 3"]),
    ],
)
def test_what_a_reader_must_receive_follows_its_isolation_level(
    isolation: str, offsets: list[int], said: list[str]
) -> None:
    tp = ("paid", 0)
    with PlainReader("r", {"bootstrap.servers": "127.0.0.1:1"}, [tp], isolation) as reader:
        reader.assignments[tp].rows += [(at, at + 10) for at in offsets]
    found = list(reader.violations(reader.truth(ledger())))
    assert len(found) == len(said)
    assert all(text in one for text, one in zip(said, found, strict=True))

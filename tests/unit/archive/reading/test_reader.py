"""Reading an archive of ours from any offset, in order."""

import pytest

from sidetier.archive.reading import ReachedEnd, Records
from sidetier.segments.offsets import Offset
from tests.harness.made_archive import TP, MadeArchive, offsets, read_from


@pytest.fixture
def archive() -> MadeArchive:
    made = MadeArchive()
    made.segments(0, 100, 200, 300)
    return made


@pytest.mark.parametrize("start", [0, 3, 99, 100, 150, 299])
def test_every_record_comes_once_and_in_order(archive: MadeArchive, start: int) -> None:
    taken = read_from(archive, start)

    assert offsets(taken) == list(range(start, 300))
    assert taken[-1] == ReachedEnd(TP, Offset(300))


def test_values_come_as_they_were_produced(archive: MadeArchive) -> None:
    taken = read_from(archive, 150)

    first = next(one for one in taken if isinstance(one, Records)).records.to_pylist()[0]
    assert (first["offset"], first["value"], first["timestamp"]) == (150, b"value-150", 150)

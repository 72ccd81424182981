import pytest

from sidetier.pipeline.export.tables.archived import within_stored
from sidetier.pipeline.planning.split import OffsetRange
from sidetier.segments.offsets import Offset


@pytest.mark.parametrize(
    ("first", "until", "end", "held", "wanted"),
    [
        (0, 10, 10, None, (0, 10)),  # a new partition, as far as it is stored
        (0, 20, 10, None, (0, 10)),  # no further, whatever was asked for
        (15, 20, 10, None, (15, 15)),  # it is to begin where nothing is stored yet
        (0, 10, 10, 4, (0, 10)),
        (0, 6, 10, 4, (0, 6)),  # up to a given offset
        (0, 6, 10, 8, (0, 8)),  # which the table has passed
        (0, 10, 10, 12, (0, 10)),  # the archive has become shorter: who goes on from 12 is told
        (0, 6, 10, 12, (0, 6)),
    ],
)
def test_where_a_range_ends(
    first: int, until: int, end: int, held: int | None, wanted: tuple[int, int]
) -> None:
    asked = OffsetRange(Offset(first), Offset(until))
    found = within_stored(asked, Offset(end), None if held is None else Offset(held))
    assert (found.first, found.until) == wanted

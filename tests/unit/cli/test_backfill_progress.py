import io
import re

import pytest

from sidetier.archive.progress import Amount, Progress
from sidetier.cli.progress import Lines, progress_line, shown
from tests.harness.terminal import Terminal


@pytest.mark.parametrize(
    ("done", "seconds", "line"),
    [
        (Amount(0, 0), 9.0, "0%: 0 of 8 segments, 0 B of 80.0 MB"),
        (Amount(2, 20_000_000), 0.5, "25%: 2 of 8 segments, 20.0 MB of 80.0 MB"),
        (
            Amount(2, 20_000_000),
            10.0,
            "25%: 2 of 8 segments, 20.0 MB of 80.0 MB, 2.0 MB/s, 30 s left",
        ),
    ],
)
def test_progress_line_shows_rate_and_time_left(done: Amount, seconds: float, line: str) -> None:
    assert progress_line(done, Amount(8, 80_000_000), seconds) == line


def test_empty_backfill_is_at_100_percent() -> None:
    assert progress_line(Amount(), Amount(), 1.0).startswith("100%: 0 of 0 segments")


def test_progress_lines_are_rare_and_the_last_is_always_printed() -> None:
    stream = io.StringIO()
    lines = Lines(stream)
    for number in range(4):
        lines.update(Progress(Amount(number, 10 * number), Amount(3, 30)))
    assert [line.split(":")[0] for line in stream.getvalue().splitlines()] == ["0%", "100%"]


def test_terminal_shows_a_progress_bar() -> None:
    stream = Terminal()
    total = Amount(3, 3_000_000)
    with shown(stream) as update:
        update(Progress(Amount(1, 1_000_000), total))
        update(Progress(Amount(2, 2_000_000), total, held=1))
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert "2 of 3 segments, 1 held" in text
    assert "2.0/3.0 MB" in text

import io

import pytest

from sidetier.cli.export.session import shown
from tests.harness.terminal import Terminal


@pytest.mark.parametrize("wanted", [True, False])
def test_progress_is_hidden_without_a_terminal(*, wanted: bool) -> None:
    stream = io.StringIO()
    with shown(wanted=wanted, stream=stream) as counter:
        counter.begin(100)
        counter.advance(40, 38)
    assert stream.getvalue() == ""


def test_terminal_shows_the_total_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    stream = Terminal()
    with shown(wanted=True, stream=stream) as counter:
        counter.begin(3000)
        counter.advance(1000, 990)
        counter.begin(1000)
        counter.advance(1000, 1000)
    shown_last = stream.getvalue()
    assert "1,990 records" in shown_last
    assert "2,000 of 4,000 offsets" in shown_last
    assert "50%" in shown_last
    assert "elapsed," in shown_last
    assert "left" in shown_last

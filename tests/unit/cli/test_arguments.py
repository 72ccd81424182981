import pytest

from sidetier.cli.arguments import age_text, size_text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, None),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (12_345_678, "12.3 MB"),
        (5 * 10**18, "5000.0 PB"),
    ],
)
def test_sizes_are_parsed(size: int | None, text: str | None) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, None),
        (0.0, "0.0 s"),
        (12.6, "13 s"),
        (61.0, "1 min"),
        (12_000.0, "3 h 20 min"),
        (187_300.0, "2 d 4 h"),
    ],
)
def test_ages_are_parsed(seconds: float | None, text: str | None) -> None:
    assert age_text(seconds) == text

import pytest

from sidetier.segments.backoff import backoff


@pytest.mark.parametrize(
    ("failures", "pause"), [(0, 0.0), (1, 0.5), (2, 1.0), (5, 8.0), (6, 10.0), (100_000, 10.0)]
)
def test_a_pause_doubles_up_to_the_longest(failures: int, pause: float) -> None:
    assert backoff(failures, first=0.5, longest=10.0) == pause

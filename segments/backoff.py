"""Pauses that grow with each failure."""

_MAX_DOUBLINGS = 32
"""2 ** 32 s exceeds every longest pause. Without the bound, the float overflows after a day."""


def backoff(failures: int, first: float, longest: float) -> float:
    """Return the pause in seconds after this number of failures in a row; 0 without a failure.

    The pause is `first` after the first failure, doubles with each further one, and is at most
    `longest`.
    """
    if failures <= 0:
        return 0.0
    return min(longest, first * 2.0 ** min(failures - 1, _MAX_DOUBLINGS))

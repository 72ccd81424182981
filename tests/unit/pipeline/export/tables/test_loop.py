import threading

import pytest

from sidetier.pipeline.export.errors import LostProgressError, NotCommittedError
from sidetier.pipeline.export.run import MAX_FAILURES, run_at_interval
from sidetier.pipeline.export.sinks.tables.run import Committed
from sidetier.segments.errors import SidetierError

DONE = Committed((), {}, 0, 0)


class Runs:
    """The outcome of each run; stop the loop after the last one."""

    def __init__(self, *errors: SidetierError | None) -> None:
        self.left = list(errors)
        self.stop = threading.Event()
        self.told: list[SidetierError] = []

    def __call__(self) -> Committed:
        error = self.left.pop(0)
        if not self.left:
            self.stop.set()
        if error is not None:
            raise error
        return DONE

    def can_pass(self, error: SidetierError) -> bool:
        self.told.append(error)
        return error.retry


def loop(runs: Runs) -> None:
    run_at_interval(runs, 0.001, runs.stop, iter(range(1000)).__next__, runs.can_pass)


def test_transient_failure_is_retried() -> None:
    failure = NotCommittedError("timed out")
    runs = Runs(None, failure, failure, None)
    loop(runs)
    assert not runs.left
    assert runs.told == [failure, failure]


def test_permanent_failure_ends_the_loop() -> None:
    runs = Runs(None, LostProgressError("gone"), None)
    with pytest.raises(LostProgressError):
        loop(runs)
    assert len(runs.left) == 1


def test_tenth_failure_in_a_row_ends_the_loop() -> None:
    failure = NotCommittedError("timed out")
    runs = Runs(*[failure] * (MAX_FAILURES - 1), None, *[failure] * (MAX_FAILURES + 1))
    with pytest.raises(NotCommittedError):
        loop(runs)
    assert len(runs.told) == 2 * (MAX_FAILURES - 1)
    assert len(runs.left) == 1

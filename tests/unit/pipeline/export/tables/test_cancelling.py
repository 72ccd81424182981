import threading
from typing import TYPE_CHECKING, cast

import pytest

from sidetier.pipeline.export.sinks.tables.cancelling import cancel_jobs_after
from tests.harness.waiting import wait_until

if TYPE_CHECKING:
    from pyspark import SparkContext


class FakeContext:
    """Record the cancelled tags."""

    def __init__(self) -> None:
        self.tags: list[str] = []
        self.cancelled: list[str] = []

    def addJobTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        self.tags.append(tag)

    def removeJobTag(self, tag: str) -> None:  # noqa: N802
        self.tags.remove(tag)

    def cancelJobsWithTag(self, tag: str) -> None:  # noqa: N802
        self.cancelled.append(tag)


@pytest.fixture
def fake() -> FakeContext:
    return FakeContext()


def test_job_that_ends_in_time_is_not_cancelled(fake: FakeContext) -> None:
    with cancel_jobs_after(cast("SparkContext", fake), 60) as watch:
        assert len(fake.tags) == 1
    assert (fake.tags, fake.cancelled, watch.reason) == ([], [], "")


def test_job_beyond_its_time_limit_is_cancelled_repeatedly(fake: FakeContext) -> None:
    with cancel_jobs_after(cast("SparkContext", fake), 0.02) as watch:
        wait_until(lambda: len(fake.cancelled) > 2, 10, "the jobs to be cancelled")
        assert set(fake.cancelled) == set(fake.tags)
    assert watch.reason == "it took more than 0.02 s"


def test_reason_cancels_the_job_before_its_time_limit(fake: FakeContext) -> None:
    lost = threading.Event()
    with cancel_jobs_after(
        cast("SparkContext", fake), 60, lambda: "lost" if lost.is_set() else ""
    ) as watch:
        assert not fake.cancelled
        lost.set()
        wait_until(lambda: fake.cancelled, 10, "the jobs to be cancelled")
    assert watch.reason == "lost"

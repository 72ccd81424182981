"""The archive with which most tests of split reading begin."""

import pytest

from tests.harness.made_archive import MadeArchive
from tests.harness.splits import CountingStorage


@pytest.fixture
def store() -> CountingStorage:
    return CountingStorage()


@pytest.fixture
def archive(store: CountingStorage) -> MadeArchive:
    """An archive of three segments with 100, 100 and 1,000 records."""
    made = MadeArchive(store)
    made.segments(0, 100, 200, 1200)
    return made

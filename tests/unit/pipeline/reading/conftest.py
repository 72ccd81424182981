"""The archive with which most tests of split reading begin."""

import pytest

from sidetier.storage.fake import FakeStorage
from tests.harness.made_archive import MadeArchive


@pytest.fixture
def store() -> FakeStorage:
    return FakeStorage()


@pytest.fixture
def archive(store: FakeStorage) -> MadeArchive:
    """An archive of three segments with 100, 100 and 1,000 records."""
    made = MadeArchive(store)
    made.segments(0, 100, 200, 1200)
    return made

"""An archive in memory, which each test may damage."""

from collections.abc import Mapping

import pytest

from sidetier.storage.port import StoredObject
from tests.harness.archived_log import StoredArchive, archive_log
from tests.harness.log_dir import PartitionLog

Archived = tuple[PartitionLog, Mapping[str, StoredObject]]


@pytest.fixture(scope="session")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Archived:
    """A log, and the objects that `sidetier backfill` has stored."""
    return archive_log(tmp_path_factory.mktemp("archived"))


@pytest.fixture
def log(archived: Archived) -> PartitionLog:
    return archived[0]


@pytest.fixture
def archive(archived: Archived) -> StoredArchive:
    return StoredArchive(dict(archived[1]))

"""A store, and the sidecars of two brokers."""

from pathlib import Path

import pytest

from sidetier.storage.fake import FakeStorage
from tests.harness.tail_writing import TailSite


@pytest.fixture
def store() -> FakeStorage:
    return FakeStorage()


@pytest.fixture
def site(tmp_path: Path, store: FakeStorage) -> TailSite:
    return TailSite(tmp_path / "1", store, 1)


@pytest.fixture
def other(tmp_path: Path, store: FakeStorage, site: TailSite) -> TailSite:
    return TailSite(tmp_path / "2", store, 2, site.time)

"""A store, and the sidecars of two brokers."""

from pathlib import Path

import pytest

from sidetier.storage.fake import FakeStorage
from tests.harness.tail_writing import TailSite, TickingClock


@pytest.fixture
def time() -> TickingClock:
    return TickingClock()


@pytest.fixture
def store(time: TickingClock) -> FakeStorage:
    """Its clock is that of the test."""
    return FakeStorage(now_ms=lambda: int(time.wall() * 1000))


@pytest.fixture
def site(tmp_path: Path, store: FakeStorage, time: TickingClock) -> TailSite:
    return TailSite(tmp_path / "1", store, 1, time)


@pytest.fixture
def other(tmp_path: Path, store: FakeStorage, site: TailSite) -> TailSite:
    return TailSite(tmp_path / "2", store, 2, site.time)

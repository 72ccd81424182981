"""A log dir, a store and a daemon for each test."""

from pathlib import Path

import pytest

from sidetier.storage.fake import FakeStorage
from sidetier.uploader.archive import history
from sidetier.uploader.state import decisions, gap
from sidetier.uploader.state import segment as segment_state
from tests.harness.daemons import Site
from tests.harness.log_dir import LogDir, PartitionLog


@pytest.fixture
def store() -> FakeStorage:
    """A store in memory."""
    return FakeStorage()


@pytest.fixture
def log_dir(tmp_path: Path) -> LogDir:
    """An empty log dir."""
    return LogDir(tmp_path / "logs")


@pytest.fixture
def log(log_dir: LogDir) -> PartitionLog:
    """Partition t-0 in the log dir, without records."""
    return log_dir.create()


@pytest.fixture
def site(log_dir: LogDir, store: FakeStorage) -> Site:
    """A test site: a daemon's configuration and fakes over the log dir and the store."""
    return Site([log_dir], store)


@pytest.fixture
def quick_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a gap again at once instead of after two seconds."""
    for module in (gap, decisions):
        monkeypatch.setattr(module, "GAP_CONFIRM_SECONDS", 0.001)


@pytest.fixture
def quick_divergences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a divergence again at once instead of after two seconds."""
    monkeypatch.setattr(history, "CONFIRM_SECONDS", 0.001)
    monkeypatch.setattr(segment_state, "_FIRST_HOLD", 0.002)

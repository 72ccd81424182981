"""An endpoint over the fixtures, shared by tests that only read."""

from collections.abc import Iterator

import pytest

from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.local import LocalStorage
from tests.harness import broker_segments
from tests.harness.broker_archive import store_broker_segments
from tests.harness.served_archive import Served, serving


@pytest.fixture(scope="session")
def served_fixtures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`sidetier serve` over the archive of all fixtures, in a directory."""
    root = tmp_path_factory.mktemp("served")
    store = LocalStorage(root / "store")
    for directory in broker_segments.directories():
        store_broker_segments(store, ArchiveLayout("test", 5), directory.name)
    with serving(root) as running:
        yield running

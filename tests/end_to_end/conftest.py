"""A partition of a real broker that tests may copy and damage."""

import uuid

import pytest

from sidetier.sandbox.kafka import KraftCluster
from tests.harness.copied_log_dir import Original, write_original


@pytest.fixture(scope="session")
def original(kraft43: KraftCluster) -> Original:
    """A partition of a real broker with twelve closed segments or more."""
    topic = f"original-{uuid.uuid4().hex[:6]}"
    return write_original(kraft43.bootstrap_servers, kraft43.log_dirs(1)[0], topic, 12)

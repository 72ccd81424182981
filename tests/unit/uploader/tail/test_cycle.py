"""The cycle of the tail's writer, with a broker that lies between the questions."""

import os
from pathlib import Path

import pytest

from sidetier.storage.fake import FakeStorage
from tests.harness.tail_writing import BROKER, LAYOUT, TailSite, log_bytes, merged, tail_bytes


@pytest.fixture
def store() -> FakeStorage:
    return FakeStorage()


@pytest.fixture
def site(tmp_path: Path, store: FakeStorage) -> TailSite:
    return TailSite(tmp_path / "1", store)


def test_what_is_committed_is_stored_once_and_an_idle_cycle_costs_one_request(
    site: TailSite, store: FakeStorage
) -> None:
    log, idle = site.log_dir.create("t", 0), site.log_dir.create("idle", 3)
    log.append(10)
    site.run()
    assert site.packs() == 1  # with the claim of the idle partition, too
    tail = merged(store, log)
    assert (tail.end, tail_bytes(store, tail)) == (10, log_bytes(log))
    assert merged(store, idle).leader_epoch == 0

    before, asked = len(store.requests), len(site.source.asked)
    site.run()
    assert len(store.requests) == before
    assert len(site.source.asked) == asked + 1

    log.append(5)
    site.source.high_watermarks[log.tp] = 10
    site.run()
    assert site.packs() == 1
    del site.source.high_watermarks[log.tp]
    site.run()
    assert site.packs() == 2
    tail = merged(store, log)
    assert [part[1:] for part in tail.slices] == [(0, 10), (10, 15)]
    assert tail_bytes(store, tail) == log_bytes(log)

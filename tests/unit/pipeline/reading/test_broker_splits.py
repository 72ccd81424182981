"""Small splits of segments of a real broker return what a consumer of that broker has read."""

import json

import pytest

from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.fake import FakeStorage
from tests.harness.arrow_reading import as_consumed, expected
from tests.harness.broker_archive import store_broker_segments
from tests.harness.broker_segments import ROOT, directories
from tests.harness.made_archive import LAYOUT
from tests.harness.splits import plan_of, read_splits


@pytest.mark.parametrize("isolation", IsolationLevel)
@pytest.mark.parametrize("name", [path.name for path in directories()])
def test_splits_of_every_fixture_equal_the_consumer_output(
    name: str, isolation: IsolationLevel
) -> None:
    store = FakeStorage()
    segments = store_broker_segments(store, LAYOUT, name)
    topic, _, partition = name.rpartition("-")
    tp = TopicPartition(topic, int(partition))

    plan = plan_of(store, tp, isolation=isolation, max_split_bytes=3000)
    result = read_splits(store, plan.splits, isolation=isolation)

    end = plan.ranges[tp].end
    wanted = [item for item in expected(ROOT / name, isolation) if item["offset"] < end]
    assert len(wanted) > 50
    assert [as_consumed(row) for batch in result.batches for row in batch.to_pylist()] == wanted
    assert len(plan.splits) >= 3
    assert not result.missing
    if isolation is IsolationLevel.READ_UNCOMMITTED:
        assert end == segments[-1].next_base


def test_transaction_fixture_differs_between_isolation_levels() -> None:
    texts = [json.dumps(expected(ROOT / "tx-0", isolation)) for isolation in IsolationLevel]
    assert len(set(texts)) == len(texts)

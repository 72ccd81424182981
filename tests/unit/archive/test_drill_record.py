"""The record of the last drill: its format, and concurrent writers."""

import json
from dataclasses import replace

import pytest

from sidetier.archive.objects.drill_record import (
    DrillRecord,
    decode_drill,
    encode_drill,
    merged_drill,
    read_drill,
    record_drill,
)
from sidetier.segments.errors import MalformedObjectError
from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FULL, FakeStorage

LAYOUT = ArchiveLayout("prod-a", 5)
KEY = "_sidetier/prod-a/drill.json"
RECORD = DrillRecord(
    1_767_225_600_000, succeeded=True, seed=7, partitions=2, records=100, bytes=4096
)
FAILED = replace(RECORD, finished_ms=1_767_225_700_000, succeeded=False, problems=("orders-0: x",))

GOLDEN = {
    "version": 1,
    "finished_ms": 1_767_225_600_000,
    "succeeded": True,
    "seed": 7,
    "partitions": 2,
    "records": 100,
    "bytes": 4096,
    "problems": [],
    "last_successful_ms": None,
}


def test_stored_format_does_not_change() -> None:
    assert json.loads(encode_drill(RECORD)) == GOLDEN
    assert decode_drill(json.dumps({**GOLDEN, "more": 1}).encode(), KEY) == RECORD


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"version": 2}', b'{"version": 1}', b'{"version": 1, "seed": []}']
)
def test_error_for_a_malformed_record_names_the_key(data: bytes) -> None:
    with pytest.raises(MalformedObjectError, match=KEY):
        decode_drill(data, KEY)


def test_failed_drill_keeps_the_last_success() -> None:
    store = FakeStorage()
    assert read_drill(store, LAYOUT) is None
    record_drill(store, LAYOUT, RECORD)
    record_drill(store, LAYOUT, FAILED)
    found = read_drill(store, LAYOUT)
    assert found == replace(FAILED, last_successful_ms=RECORD.finished_ms)
    assert list(store.contents()) == [KEY]


def test_drill_that_ended_earlier_does_not_replace_a_later_one() -> None:
    later = merged_drill(None, FAILED)
    merged = merged_drill(later, RECORD)
    assert merged == replace(FAILED, last_successful_ms=RECORD.finished_ms)


@pytest.mark.parametrize("has_conditional_writes", [True, False])
def test_two_drills_that_end_together_keep_both_outcomes(*, has_conditional_writes: bool) -> None:
    """A store without conditional writes also checks the condition just before the write."""
    capabilities = replace(FULL, conditional_writes=has_conditional_writes)
    store = FakeStorage(capabilities=capabilities)
    store.race("put", lambda: store.put_object(KEY, BytesBody(encode_drill(FAILED))), key=KEY)
    record_drill(store, LAYOUT, RECORD)
    found = read_drill(store, LAYOUT)
    assert found == replace(FAILED, last_successful_ms=RECORD.finished_ms)


def test_write_without_an_answer_can_be_repeated() -> None:
    store = FakeStorage()
    record_drill(store, LAYOUT, RECORD)
    changes = store.changes
    record_drill(store, LAYOUT, RECORD)
    assert store.changes == changes

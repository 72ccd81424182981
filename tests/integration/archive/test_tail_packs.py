"""Tail packs on a real S3 server: written once, found by their ends, read with few requests."""

from typing import TYPE_CHECKING

import pytest

from sidetier.archive.tail.inventory import TailInventory
from sidetier.archive.tail.merge import ArchivedPart
from sidetier.archive.tail.read import read_tails
from sidetier.segments.errors import PreconditionFailedError
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.factory import open_storage
from sidetier.storage.settings import EncryptionSettings, StorageEndpoint
from tests.harness.encryption import FIRST
from tests.harness.stores import s3_settings
from tests.harness.tail_packs import LAYOUT, MadePack, history, log, partitions, read_tail

if TYPE_CHECKING:
    from tests.harness.s3 import S3Bucket

EPOCHS = history((4, 0))
PACKS = 4


class _Requests:
    """Counts requests, by operation."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def request(self, operation: str, seconds: float, outcome: str) -> None:
        assert seconds >= 0
        assert outcome in {"ok", "not_found", "precondition_failed"}
        self.counts[operation] = self.counts.get(operation, 0) + 1

    def retry(self, operation: str, kind: str) -> None:
        raise AssertionError(f"{operation} was repeated: {kind}")


@pytest.mark.integration
@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "encrypted"])
def test_the_tail_of_many_partitions(s3_bucket: "S3Bucket", *, is_encrypted: bool) -> None:
    chosen = EncryptionSettings(keys=(("k1", FIRST),), key="k1", topics=("topic-.*",))
    endpoint = StorageEndpoint(
        f"s3://{s3_bucket.name}/archive",
        s3=s3_settings(s3_bucket),
        encryption=chosen if is_encrypted else None,
    )
    assert endpoint.encrypts("topic-1") == is_encrypted
    seen = _Requests()
    store = open_storage(endpoint, observer=seen)
    for number in range(PACKS):
        made = MadePack()
        for tp in partitions(300):
            if number == 0:
                made.claim(EPOCHS, tp=tp)
            made.range(EPOCHS, number * 10, number * 10 + 10, tp=tp)
        made.store(store, 7, number)
    with pytest.raises(PreconditionFailedError):
        made.store(store, 7, PACKS - 1)
    seen.counts.clear()
    contents = TailInventory(store, LAYOUT).read()
    assert (len(contents.rows), len(contents.packs), contents.problems) == (300, PACKS, {})
    # The retry layer sees no request for the header of the encrypted format.
    assert seen.counts == {"list": 2, "get": 1, "stream": PACKS}
    tails = {tp: contents.merged(tp, ArchivedPart()) for tp in contents.rows}
    assert {tail.end for tail in tails.values()} == {PACKS * 10}
    seen.counts.clear()
    found = {(part.tp, part.number): part.batches for part in read_tails(store, tails)}
    assert seen.counts == {"stream": PACKS}
    expected = b"".join(log(EPOCHS, 0, PACKS * 10))
    for tp in tails:
        batches = (batch.data for number in range(PACKS) for batch in found[tp, number])
        assert b"".join(batches) == expected
    one = read_tail(store, tails[TopicPartition("topic-5", 49)])
    assert b"".join(batch.data for batch in one) == expected
    store.close()

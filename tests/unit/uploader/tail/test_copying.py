"""A copy of packs that is larger than what is in memory at once."""

import pytest

from sidetier.archive.tail.inventory import TailInventory
from sidetier.archive.tail.merge import PackedRow
from sidetier.segments.errors import StoreUnavailableError
from sidetier.segments.offsets import BrokerId
from sidetier.storage.bodies import BytesBody
from sidetier.storage.checksums import checksum_of_body
from sidetier.storage.fake import FakeStorage
from sidetier.uploader.tail import copying
from sidetier.uploader.tail.copying import PackCopy, UnreadablePackError
from sidetier.uploader.tail.packs import store_pack
from tests.harness.daemons import LAYOUT
from tests.harness.tail_writing import TailSite, log_bytes, merged, tail_bytes


@pytest.fixture
def sources(site: TailSite) -> list[PackedRow]:
    """The rows of ten packs of three partitions, and a claim of each."""
    logs = [site.log_dir.create("t", number) for number in range(3)]
    for _ in range(10):
        for log in logs:
            log.append(2)
        site.run()
    inventory = TailInventory(site.store, LAYOUT)
    packs = inventory.listing(BrokerId(1)).packs
    return [PackedRow(pack, row) for pack in packs for row in inventory.rows(pack)]


@pytest.mark.parametrize("chunk", [1, 700, 1500, 1 << 20])
def test_a_copy_in_chunks_has_all_records(
    chunk: int,
    site: TailSite,
    store: FakeStorage,
    sources: list[PackedRow],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copying, "CHUNK_BYTES", chunk)
    asked: list[int] = []
    copy = PackCopy(store, sources, asked.append)
    assert not asked, "nothing is read before the copy is"
    assert checksum_of_body(copy, copy.checksum.algorithm) == copy.checksum
    with copy.open() as stream:
        whole = stream.read()
    # A store may begin again, or go back.
    with copy.open() as stream:
        pieces = [stream.read(333)]
        stream.seek(len(whole) - 100)
        assert stream.read() == whole[-100:]
        stream.seek(333)
        while piece := stream.read(333):
            pieces.append(piece)
    assert b"".join(pieces) == whole
    assert len(whole) == copy.size
    size = sum(source.row.size for source in sources)
    # Each row is paid for alone, so that a limit never holds up a request for a whole chunk.
    assert set(asked) <= {source.row.size for source in sources}
    assert sum(asked) >= 3 * size
    stored = store_pack(next(iter(site.cycle.stores())), copy, 0)
    for pack in {source.stored_in.key for source in sources}:
        store.delete_objects([pack])
    rows = TailInventory(store, LAYOUT).rows(stored)
    assert sum(row.is_claim for row in rows) == 3
    # One row of each partition in each chunk.
    assert (len(rows) == 6) == (chunk > size)
    for log in site.log_dir.partitions.values():
        assert tail_bytes(store, merged(store, log)) == log_bytes(log)


def test_a_changed_source_fails_the_copy_and_is_named(
    site: TailSite, store: FakeStorage, sources: list[PackedRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its etag is no answer about the copy: no second number is tried."""
    monkeypatch.setattr(copying, "CHUNK_BYTES", 700)
    copy = PackCopy(store, sources)
    changed = sources[-1].stored_in
    store.overwrite(changed.key, store.contents()[changed.key] + b"x")
    before = set(store.contents())
    with pytest.raises(UnreadablePackError) as raised:
        store_pack(next(iter(site.cycle.stores())), copy, 0)
    assert raised.value.pack == changed
    assert set(store.contents()) == before
    store.put_object(changed.key, BytesBody(b""))
    store.delete_objects([changed.key])
    with pytest.raises(UnreadablePackError, match=changed.key):
        copy.open().read()


def test_a_store_that_is_away_is_no_unreadable_pack(
    store: FakeStorage, sources: list[PackedRow]
) -> None:
    copy = PackCopy(store, sources)
    with store.away(), pytest.raises(StoreUnavailableError):
        copy.open().read()

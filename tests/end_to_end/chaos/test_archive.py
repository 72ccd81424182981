"""Reading an archive at the end of a run: records, order, and transaction outcomes."""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sidetier.segments.crc import crc32c
from sidetier.segments.keys import ArchiveLayout
from tests.end_to_end.chaos.archive import Archived, read_archive, read_set_aside
from tests.end_to_end.chaos.ledger import Fate, checksum
from tests.end_to_end.chaos.observer import KINDS
from tests.harness.archive_check import Mark
from tests.harness.log_dir import encode_record

TP = ("t", 0)
LAYOUT = ArchiveLayout("test", 0)
TRANSACTIONAL, CONTROL = 0x10, 0x20
ABORT, COMMIT = b"\0\0\0\0", b"\0\0\0\1"


def batch(
    base: int,
    values: Sequence[bytes],
    *,
    producer: int = -1,
    attributes: int = 0,
    keys: Sequence[bytes] = (),
) -> bytes:
    """A batch of records with these values, from `base` on."""
    names = keys or [b"k"] * len(values)
    pairs = zip(names, values, strict=True)
    payload = b"".join(encode_record(n, value, key) for n, (key, value) in enumerate(pairs))
    count = len(values)
    covered = struct.pack(">hiqqqhii", attributes, count - 1, 1, 1, producer, 0, 0, count) + payload
    return struct.pack(">qiibI", base, len(covered) + 9, 0, 2, crc32c(covered)) + covered


def marker(base: int, producer: int, kind: bytes) -> bytes:
    """The marker that ends a producer's transaction."""
    both = TRANSACTIONAL | CONTROL
    return batch(base, [b"\0\0\0\0\0\0"], producer=producer, attributes=both, keys=[kind])


@dataclass
class Store:
    """A fake store of one partition."""

    objects: dict[str, bytes] = field(default_factory=dict)

    def read(self, key: str) -> bytes | None:
        return self.objects.get(key)

    def listing(self, prefix: str, after: str = "") -> Mapping[str, str]:
        return {key: "" for key in sorted(self.objects) if key.startswith(prefix) and key > after}


def archived(mark: Mark, logs: Mapping[int, bytes], named: Sequence[int] = ()) -> Archived:
    """The archive read from these `.log` files with a watermark; `_metadata` names some of them."""
    store = Store()
    rows = [{"baseOffset": base, "timestamp": 1} for base in named]
    metadata = {"metadata": {"timeindex": {"entries": rows}}}
    store.objects["test/t-0/_metadata"] = json.dumps(metadata).encode()
    for base, log in logs.items():
        for kind in KINDS:
            store.objects[f"test/t-0/{base:020d}.{kind}"] = log
    second = json.dumps({"next_offset": mark.next})
    store.objects["test/t-0/offset.wm"] = f"{mark.base:020d}\n{second}".encode()
    found = read_archive(store, LAYOUT, TP)
    assert found is not None
    return found


def test_archive_without_a_watermark_is_none() -> None:
    assert read_archive(Store(), LAYOUT, TP) is None


def test_only_records_below_the_watermark_are_read() -> None:
    logs = {0: batch(0, [b"a", b"b"]), 2: batch(2, [b"c"]), 3: batch(3, [b"d"])}
    found = archived(Mark(2, 3), logs)
    assert dict(found.records.items()) == {
        0: checksum(b"k", b"a"),
        1: checksum(b"k", b"b"),
        2: checksum(b"k", b"c"),
    }
    assert found.extents == {0: (0, 2), 2: (2, 3)}
    assert found.disorder == ()


def test_each_record_has_the_fate_given_by_its_producers_next_marker() -> None:
    log = b"".join(
        [
            batch(0, [b"a"], producer=1, attributes=TRANSACTIONAL),
            batch(1, [b"b"], producer=2, attributes=TRANSACTIONAL),
            batch(2, [b"plain"]),
            marker(3, 1, COMMIT),
            batch(4, [b"c"], producer=1, attributes=TRANSACTIONAL),
        ]
    )
    later = marker(5, 2, ABORT) + marker(6, 1, ABORT)
    later += batch(7, [b"open"], producer=1, attributes=TRANSACTIONAL)
    found = archived(Mark(5, 8), {0: log, 5: later})
    assert dict(found.fates.items()) == {0: Fate.COMMITTED, 1: Fate.ABORTED, 4: Fate.ABORTED}
    assert found.controls == {3, 5, 6}
    assert set(dict(found.records.items())) == {0, 1, 2, 4, 7}


def test_descending_and_duplicate_offsets_are_reported() -> None:
    logs = {0: batch(0, [b"a", b"b", b"c"]), 2: batch(2, [b"other"])}
    said = archived(Mark(2, 3), logs).disorder
    assert any("offset 2 follows on 2" in problem for problem in said)
    assert any("offset 2 is stored with other bytes" in problem for problem in said)


def test_orphan_is_left_out_if_named_logs_cover_it() -> None:
    logs = {0: batch(0, [b"a", b"b"]), 1: batch(1, [b"b", b"c"]), 2: batch(2, [b"c", b"d"])}
    found = archived(Mark(2, 4), logs, named=(0, 2))
    assert found.extents == {0: (0, 2), 2: (2, 4)}
    assert 1 not in found.files
    assert found.disorder == ()
    found = archived(Mark(2, 4), {**logs, 2: batch(3, [b"d"])}, named=(0, 2))
    assert found.extents.keys() == {0, 1, 2}, "offset 2 is in the unnamed log alone"


def test_quarantined_records_are_read_from_all_folders() -> None:
    store = Store()
    store.objects["q/t-0/5-epoch-1/00000000000000000005.log"] = batch(5, [b"a", b"b"])
    store.objects["q/t-0/5-epoch-1/00000000000000000005.index"] = b"no log"
    store.objects["q/t-0/6-epoch-2/also-x/00000000000000000006.log"] = batch(6, [b"c"])
    store.objects["q/t-1/5-epoch-1/00000000000000000005.log"] = batch(5, [b"other"])
    assert read_set_aside(store, "q/t-0/") == {
        5: {checksum(b"k", b"a")},
        6: {checksum(b"k", b"b"), checksum(b"k", b"c")},
    }

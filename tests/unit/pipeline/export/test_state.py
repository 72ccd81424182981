import json

import pytest

from sidetier.pipeline.export.errors import (
    ForeignFileError,
    NewerStateError,
    OtherExportError,
    OtherWriterError,
    ReadingsDifferError,
)
from sidetier.pipeline.export.sinks.files import manifest_changes
from sidetier.pipeline.export.sinks.files.manifest import (
    FileEntry,
    Manifest,
    ManifestFile,
    Span,
    decode_manifest,
    encode_manifest,
    manifest_key,
)
from sidetier.pipeline.export.sinks.files.manifest_changes import (
    begun,
    check_same_export,
    check_settled,
    committed,
    withdrawn,
)
from sidetier.pipeline.export.sinks.files.options import FileFormat, FilesOptions
from sidetier.pipeline.export.sinks.files.run import Sweep
from sidetier.pipeline.export.sinks.files.upload import RUN_METADATA, FileUploader
from sidetier.pipeline.export.state import Tail
from sidetier.segments.errors import MalformedObjectError, StoreTimeoutError
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import PutOptions

EMPTY = Manifest(cluster="prod-a", topic="orders", nonce="n0")
OPTIONS = FilesOptions()
KEY = manifest_key("topics", "orders")


def entry(first: int, last: int, partition: int = 0) -> FileEntry:
    key = f"topics/orders/partition={partition}/orders+{partition}+{first:010d}.snappy.parquet"
    return FileEntry(
        key=key, partition=partition, first=first, last=last, records=last + 1 - first, bytes=9
    )


def run_of(
    manifest: Manifest,
    spans: dict[int, tuple[int, int]],
    nonce: str | None = None,
    tail: Tail | None = None,
) -> Manifest:
    some = {one: Span(first=first, until=until) for one, (first, until) in spans.items()}
    return begun(manifest, some, OPTIONS, nonce or f"run-{manifest.generation}", tail or Tail())


def keeper(store: FakeStorage) -> ManifestFile:
    return ManifestFile(store, KEY, "memory://lake")


def test_run_is_planned_and_committed() -> None:
    planned = run_of(EMPTY, {0: (0, 10), 3: (5, 8)})
    assert planned.pending is not None
    assert planned.pending.id == "1-run-0"
    assert planned.next_offsets == {}
    done = committed(planned, [entry(0, 9), entry(5, 7, 3)], [], "n1", swept=False)
    assert (done.next_offsets, done.pending, done.generation) == ({0: 10, 3: 8}, None, 1)
    assert done.named_from == {0: 0, 3: 5}
    assert decode_manifest(encode_manifest(done), "x") == done
    again = committed(run_of(done, {0: (10, 12)}), [entry(10, 11)], [], "n2", swept=False)
    assert again.next_offsets == {0: 12, 3: 8}
    assert len(again.files) == 3
    assert again.named_from == {0: 0, 3: 5}


def test_manifest_names_only_the_newest_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_changes, "MAX_FILES", 2)
    one = committed(run_of(EMPTY, {0: (0, 2), 1: (0, 2)}), [entry(0, 1)], [], "a", swept=False)
    two = committed(run_of(one, {0: (2, 6)}), [entry(2, 3), entry(4, 5)], [], "b", swept=False)
    assert [file.first for file in two.files] == [2, 4]
    assert two.named_from == {0: 2, 1: 2}
    many = [entry(offset, offset) for offset in (6, 7, 8)]
    three = committed(run_of(two, {0: (6, 9)}), many, [], "c", swept=False)
    assert three.files == ()
    assert three.named_from == {0: 9, 1: 2}


def test_abandoned_run_makes_the_next_runs_sweep() -> None:
    given_up = withdrawn(run_of(EMPTY, {0: (0, 10)}), "n")
    assert (given_up.pending, given_up.sweeps, given_up.generation) == (None, 2, 1)
    next_ = committed(run_of(given_up, {0: (0, 10)}), [], [], "m", swept=True)
    assert (next_.sweeps, next_.generation) == (1, 2)


@pytest.mark.parametrize(
    ("data", "error", "reason"),
    [
        (b'{"version": 2, "cluster": 5}', NewerStateError, "version 2 of a manifest, 1 is known"),
        (b"{", MalformedObjectError, "is not a manifest"),
        (b'{"cluster": "a"}', MalformedObjectError, "is not a manifest"),
        (b"[]", MalformedObjectError, "is not a manifest"),
        (b'{"version": 1, "cluster": "a", "topic": "t"}', MalformedObjectError, "nonce"),
        (
            b'{"version": 1, "cluster": "a", "topic": "t", "nonce": "n", "new": 1}',
            MalformedObjectError,
            "new",
        ),
    ],
)
def test_invalid_manifests_are_refused(data: bytes, error: type[Exception], reason: str) -> None:
    store = FakeStorage()
    store.put_object(KEY, BytesBody(data))
    with pytest.raises(error, match=reason) as raised:
        keeper(store).load("a", "t", None)
    assert str(raised.value).startswith(f"memory://lake/{KEY}")
    assert store.contents()[KEY] == data


def test_output_of_another_export_is_refused() -> None:
    done = committed(run_of(EMPTY, {0: (0, 10)}), [], [], "n", swept=False)
    check_settled(done, OPTIONS.model_copy(update={"flush_size": 7}), "place")
    with pytest.raises(OtherExportError, match="place: was written with format parquet"):
        check_settled(done, OPTIONS.model_copy(update={"format": FileFormat.JSON}), "place")
    with pytest.raises(OtherExportError, match="cluster prod-a, not prod-b"):
        check_same_export(done, "prod-b", None, "place")
    with pytest.raises(OtherExportError, match="all records, not of 5 to latest"):
        check_same_export(done, "prod-a", "5 to latest", "place")


def test_second_of_two_writers_is_refused() -> None:
    store = FakeStorage()
    first, second = keeper(store), keeper(store)
    ours, theirs = (one.load("prod-a", "orders", None) for one in (first, second))
    ours = first.replace(ours, run_of(ours.manifest, {0: (0, 10)}))
    with pytest.raises(OtherWriterError, match="another export has written its state"):
        second.replace(theirs, run_of(theirs.manifest, {0: (0, 12)}, "theirs"))
    late = second.load("prod-a", "orders", None)
    first.replace(ours, committed(ours.manifest, [], [], "ours", swept=False))
    with pytest.raises(OtherWriterError):
        second.replace(late, committed(late.manifest, [], [], "theirs", swept=False))
    assert json.loads(store.contents()[KEY])["nonce"] == "ours"


def test_write_with_a_lost_answer_is_recognised_as_our_own() -> None:
    """The retry layer is refused because its first try succeeded."""
    store = FakeStorage()
    held = keeper(store).load("prod-a", "orders", None)
    manifest = run_of(held.manifest, {0: (0, 10)})
    store.put_object(KEY, BytesBody(encode_manifest(manifest)))
    assert keeper(store).replace(held, manifest).manifest == manifest


def put(store: FakeStorage, run: str, file: FileEntry, data: bytes = b"data") -> FileEntry:
    return FileUploader(store, run).put(BytesBody(data), file)


def test_file_of_the_same_run_stays() -> None:
    store = FakeStorage()
    assert put(store, "4-a", entry(0, 9)).bytes == 4
    assert put(store, "4-a", entry(0, 9), b"packed otherwise").bytes == 4
    assert list(store.contents().values()) == [b"data"]
    with pytest.raises(ReadingsDifferError, match="holds 10 0 9"):
        put(store, "4-a", entry(0, 8))


def test_file_of_an_abandoned_run_is_replaced() -> None:
    store = FakeStorage()
    put(store, "4-a", entry(0, 9))
    assert put(store, "5-b", entry(0, 4), b"newer").bytes == 5
    with pytest.raises(OtherWriterError, match="run 5-b, which is not before this one, 4-a"):
        put(store, "4-a", entry(0, 9))
    assert list(store.contents().values()) == [b"newer"]


def test_file_of_another_program_stays_unchanged() -> None:
    store = FakeStorage()
    store.put_object(entry(0, 9).key, BytesBody(b"theirs"))
    with pytest.raises(ForeignFileError, match="no export of Sidetier has written"):
        put(store, "4-a", entry(0, 9))
    assert list(store.contents().values()) == [b"theirs"]


def test_only_files_of_abandoned_runs_are_swept() -> None:
    store = FakeStorage()
    for run, first in (("1-a", 0), ("2-b", 10), ("2-b", 14), ("3-c", 20), ("4-d", 30)):
        put(store, run, entry(first, first))
    put(store, "2-b", entry(7, 7, 1))
    others = ["topics/orders/partition=0/part-1.parquet", "topics/orders/_sidetier/manifest.json"]
    others.append("topics/orders/partition=0/orders+0+0000000099.snappy.parquet")
    for key in others:
        store.put_object(key, BytesBody(b"theirs"), PutOptions(metadata={}))
    store.put_object(
        "topics/other/partition=0/other+0+0000000099.avro",
        BytesBody(b""),
        PutOptions(metadata={RUN_METADATA: "1-a"}),
    )
    before = set(store.contents())
    sweep = Sweep("orders", ("topics",), {entry(10, 10).key}, {0: 10, 1: 8}, generation=4)
    assert sweep.run(store) == 2
    gone = before - set(store.contents())
    assert gone == {entry(14, 14).key, entry(20, 20).key}


def test_write_with_an_unknown_outcome_can_be_repeated() -> None:
    store = FakeStorage()
    held = keeper(store).load("prod-a", "orders", None)
    store.fail("put", StoreTimeoutError("slow"), after=True)
    with pytest.raises(StoreTimeoutError):
        keeper(store).replace(held, EMPTY)
    assert keeper(store).replace(held, EMPTY).manifest == EMPTY

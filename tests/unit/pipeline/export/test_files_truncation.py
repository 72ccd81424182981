"""File exports of an archive whose later records the brokers truncated and replaced."""

from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from sidetier.pipeline.errors import MissingRecordsError
from sidetier.pipeline.export.epoch_history import epoch_history_of
from sidetier.pipeline.export.errors import LogTruncatedError, OtherExportError
from sidetier.pipeline.export.sinks.files import manifest_changes
from sidetier.pipeline.export.sinks.files.manifest import (
    FileEntry,
    Manifest,
    Span,
    decode_manifest,
    encode_manifest,
    manifest_key,
)
from sidetier.pipeline.export.sinks.files.manifest_changes import begun, committed, rewound
from sidetier.pipeline.export.sinks.files.options import FilesOptions, PartitionerKind
from sidetier.pipeline.export.sinks.files.upload import RUN_METADATA
from sidetier.pipeline.export.state import Tail
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import PutOptions
from tests.harness.diverged_archive import (
    END,
    FORK,
    before_the_election,
    elect_uncleanly,
    of_the_new_leader,
    present,
)
from tests.harness.exported_files import (
    data_files,
    files_job,
    manifest_in,
    new_run,
    rows_of,
    run_once,
)
from tests.harness.intercepted_store import KilledError, MortalStore
from tests.harness.made_archive import MadeArchive, batches
from tests.harness.record_batches import MadeBatch, MadeRecord

TENS = FilesOptions(
    partitioner=PartitionerKind.TIME,
    path_format="'ten'=SSS",
    partition_duration_ms=10,
    flush_size=7,
)


@pytest.fixture
def orders() -> MadeArchive:
    """An archive of orders-0 with the offsets 0 to 39, of the leader epochs 1 and 3."""
    archive = MadeArchive()
    before_the_election(archive)
    return archive


def export(archive: MadeArchive, target: FakeStorage, **more: Any) -> None:  # noqa: ANN401
    with files_job(archive.store, target, TENS, **more) as job:
        while run_once(job) is not None:
            pass


def values_in(target: FakeStorage) -> Counter[tuple[int, bytes]]:
    """Number of occurrences of each (offset, value) in the files."""
    files = data_files(target.contents())
    return Counter(
        (row["offset"], row["value"]) for key in files for row in rows_of(key, files[key])
    )


def test_export_stops_before_it_mixes_two_histories(orders: MadeArchive) -> None:
    target = FakeStorage()
    export(orders, target)
    assert manifest_in(target.contents()).epochs == {0: ((1, 0), (3, 12))}
    elect_uncleanly(orders)
    before = target.contents()
    for _ in range(2):
        with pytest.raises(
            LogTruncatedError, match=r"offsets \[24, 40\) \(leader epoch 3, now 4\)"
        ):
            export(orders, target)
    assert target.contents() == before


@pytest.mark.parametrize("end", [30, END], ids=["the new history is shorter", "longer"])
def test_truncation_is_reported_even_without_new_records(orders: MadeArchive, end: int) -> None:
    target = FakeStorage()
    export(orders, target)
    elect_uncleanly(orders, end)
    with pytest.raises(LogTruncatedError, match=r"offsets \[24, 40\)"):
        export(orders, target)
    export(orders, target, reread=True)
    assert values_in(target) == present(end)


@pytest.mark.parametrize("chunk", [None, 6], ids=["in one commit", "in several"])
def test_reread_replaces_the_truncated_records_in_the_export(
    orders: MadeArchive, chunk: int | None
) -> None:
    target, said = FakeStorage(), list[str]()
    export(orders, target)
    kept = [one.key for one in manifest_in(target.contents()).files if one.last < 20]
    before = target.contents()
    elect_uncleanly(orders)
    export(orders, target, reread=True, most_offsets=chunk, say=said.append)
    assert values_in(target) == present()
    objects = target.contents()
    manifest = manifest_in(objects)
    assert {one.key for one in manifest.files} == data_files(objects).keys()
    assert {key: objects[key] for key in kept} == {key: before[key] for key in kept}
    assert manifest.epochs == {0: ((1, 0), (3, 12), (4, FORK))}
    assert said == [
        "to be exported again: topic orders, partition 0, offsets [24, 40) (leader epoch 3, now 4)"
    ]
    export(orders, target)


@pytest.mark.parametrize("after", [False, True], ids=["before it happens", "once it has happened"])
def test_reread_is_completed_after_a_kill_at_every_request(
    orders: MadeArchive,
    after: bool,  # noqa: FBT001
) -> None:
    target = FakeStorage()
    export(orders, target)
    elect_uncleanly(orders)
    for lives in range(200):
        mortal = MortalStore(target, lives, after=after)
        with suppress(KilledError), files_job(orders.store, mortal, TENS, reread=True) as job:
            run_once(job)
            break
    assert lives > 5
    assert values_in(target) == present()


@pytest.mark.parametrize("after", [False, True], ids=["before it happens", "once it has happened"])
def test_readers_never_miss_an_offset_during_a_reread_with_kills(
    orders: MadeArchive,
    after: bool,  # noqa: FBT001
) -> None:
    """A reader of the directory finds each offset in one history or the other; a reader of the
    manifest finds the files that it names.
    """
    target, lives, runs = FakeStorage(), 0, 0
    export(orders, target)
    elect_uncleanly(orders)
    while runs == 0 or manifest_in(target.contents()).next_offsets != {0: END}:
        lives += 1
        assert lives < 500, "it gets nowhere"
        mortal = MortalStore(target, lives % 23, after=after)
        with (
            suppress(KilledError),
            files_job(orders.store, mortal, TENS, reread=True, most_offsets=4) as job,
        ):
            runs += run_once(job) is not None
        found, manifest = values_in(target), manifest_in(target.contents())
        assert {offset for offset, _ in found} >= set(range(40))
        assert {one.key for one in manifest.files} <= data_files(target.contents()).keys()
        if (4, FORK) in manifest.epochs.get(0, ()):
            assert all(found[one, f"new-{one}".encode()] == 1 for one in range(FORK, 40))
            assert all(found[one, f"value-{one}".encode()] == 0 for one in range(FORK, 40))
    assert runs > 2
    export(orders, target)
    assert values_in(target) == present()
    assert manifest_in(target.contents()).replacing == {}


def test_files_are_replaced_in_one_run_even_after_an_abandoned_plan(
    orders: MadeArchive,
) -> None:
    """A segment of the new history is missing at first and is stored later."""
    target = FakeStorage()
    export(orders, target)
    elect_uncleanly(orders)
    orders.store.delete_object(orders.key(FORK))
    with (
        files_job(orders.store, target, TENS, reread=True, most_offsets=4) as job,
        pytest.raises(MissingRecordsError),
    ):
        run_once(job)
    stood = manifest_in(target.contents())
    assert (stood.pending, stood.next_offsets, stood.replacing) == (None, {0: 20}, {0: 40})
    orders.segment(FORK, of_the_new_leader(FORK, END))
    with files_job(orders.store, target, TENS, most_offsets=4) as job:
        done = new_run(job)
    assert done.run.spans == {0: Span(first=20, until=40)}
    assert values_in(target) == present(40)


def elect_uncleanly_again(archive: MadeArchive) -> None:
    """Replace everything from offset 15 on, including the records of `elect_uncleanly`."""
    for base in (FORK, 20):
        archive.lose(base)
    rows = [MadeRecord(at, at, value=f"newer-{at}".encode()) for at in range(15, 60)]
    archive.segment(10, batches(10, 15, 5))
    archive.segment(15, [MadeBatch(tuple(rows))])
    archive.epoch_history((1, 0), (3, 12), (5, 15))
    archive.mark(15, 60, leader_epoch=5)


@pytest.mark.parametrize("reread", [False, True])
def test_second_divergence_is_detected_before_the_first_is_replaced(
    orders: MadeArchive,
    reread: bool,  # noqa: FBT001
) -> None:
    """Files below the first divergence that are not exported again belong to a lost history."""
    target = FakeStorage()
    export(orders, target)
    elect_uncleanly(orders)
    orders.lose(FORK)
    with (
        files_job(orders.store, target, TENS, reread=True) as job,
        pytest.raises(MissingRecordsError),
    ):
        run_once(job)
    assert manifest_in(target.contents()).epochs == {0: ((1, 0), (3, 12))}
    orders.segment(FORK, of_the_new_leader(FORK, END))
    elect_uncleanly_again(orders)
    if not reread:
        with pytest.raises(LogTruncatedError, match=r"offsets \[15, 20\)"):
            export(orders, target)
        return
    export(orders, target, reread=True)
    old = [(at, f"value-{at}".encode()) for at in range(15)]
    new = [(at, f"newer-{at}".encode()) for at in range(15, 60)]
    assert values_in(target) == Counter(old + new)


def test_files_of_a_former_manifest_are_replaced_too(
    orders: MadeArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old files whose names the new run does not reuse are removed as well."""
    target = FakeStorage()
    export(orders, target)
    elect_uncleanly(orders)
    monkeypatch.setattr(manifest_changes, "MAX_FILES", 6)
    threes = TENS.model_copy(update={"flush_size": 3})
    with files_job(orders.store, target, threes, reread=True) as job:
        done = new_run(job)
    assert done.manifest.files == (), "more than six were written"
    assert values_in(target) == present()


def test_files_stay_until_their_replacements_can_be_written(orders: MadeArchive) -> None:
    """The new history of another partition is not archived yet."""
    target = FakeStorage()
    export(orders, target)
    elect_uncleanly(orders, 32)
    other = {"next_offsets": {0: 40, 7: 10}, "replacing": {7: 20}}
    stood = manifest_in(target.contents()).model_copy(update=other)
    target.put_object(manifest_key("topics", "orders"), BytesBody(encode_manifest(stood)))
    waiting = "topics/orders/ten=001/orders+7+0000000010.snappy.parquet"
    target.put_object(waiting, BytesBody(b"old"), PutOptions(metadata={RUN_METADATA: "1-a"}))
    with files_job(orders.store, target, TENS, reread=True) as job:
        run_once(job)
    after = manifest_in(target.contents())
    assert (after.next_offsets, after.replacing, after.sweeps) == ({0: 32, 7: 10}, {7: 20}, 2)
    assert target.contents()[waiting] == b"old"
    target.delete_object(waiting)
    assert values_in(target) == present(32), "of what is replaced nothing is left"


def test_end_of_the_replaced_range_is_kept_until_it_is_replaced() -> None:
    stood = Manifest(
        cluster="c", topic="orders", next_offsets={0: 40, 1: 40}, options=TENS, nonce="a"
    )
    before = rewound(stood, {0: Offset(24), 1: Offset(30)}, "manifest")
    assert before.replacing == {0: 40, 1: 40}
    one = begun(before, {0: Span(first=24, until=40)}, TENS, "b", Tail())
    after = committed(one, [], [], "c", swept=False)
    assert (after.replacing, after.sweeps) == ({1: 40}, 2)
    again = rewound(after, {1: Offset(10)}, "manifest")
    assert (again.next_offsets, again.replacing) == ({0: 40, 1: 10}, {1: 40})


def test_plan_of_a_truncated_history_is_replanned(orders: MadeArchive) -> None:
    """Otherwise a file with the same name, offsets and number of records would be accepted as our
    own.
    """
    target, said = FakeStorage(), list[str]()
    with suppress(KilledError), files_job(orders.store, MortalStore(target, 9), TENS) as job:
        run_once(job)
    assert manifest_in(target.contents()).pending is not None
    assert any(offset >= FORK for offset, _ in values_in(target))
    elect_uncleanly(orders)
    export(orders, target, say=said.append)
    assert values_in(target) == present()
    [told] = said
    assert told.endswith("was withdrawn: the brokers have discarded records that it reads")


def test_nothing_is_compared_without_an_epoch_history(orders: MadeArchive) -> None:
    """A manifest of an earlier version; an archive without an epoch history."""
    target = FakeStorage()
    export(orders, target)
    key = manifest_key("topics", "orders")
    old = manifest_in(target.contents()).model_copy(update={"epochs": {}})
    target.put_object(key, BytesBody(encode_manifest(old)))
    elect_uncleanly(orders)
    export(orders, target)
    assert manifest_in(target.contents()).next_offsets == {0: END}
    assert manifest_in(target.contents()).epochs == {0: ((1, 0), (3, 12), (4, FORK))}
    orders.store.delete_object(orders.layout.epoch_checkpoint_key(orders.tp))
    export(orders, target)
    orders.segment(END, batches(END, END + 5))
    orders.mark(END, END + 5)
    export(orders, target)
    kept = {0: ((4, END), (2**31 - 1, END + 5))}
    assert manifest_in(target.contents()).epochs == kept, "of what comes now nothing is known"


def test_records_that_share_a_file_must_be_available_to_rewrite_it(orders: MadeArchive) -> None:
    target = FakeStorage()
    export(orders, target)
    elect_uncleanly(orders)
    orders.lose(0)
    orders.lose(10)
    orders.lose(20)
    orders.segment(23, batches(23, 24, 1))
    before = target.contents()
    tolerant = TENS.model_copy(update={"fail_on_data_loss": False})
    refused = pytest.raises(MissingRecordsError, match=r"offsets \[20, 23\)")
    with files_job(orders.store, target, tolerant, reread=True) as job, refused:
        run_once(job)
    assert target.contents() == before


def test_files_missing_in_the_manifest_cannot_be_replaced(orders: MadeArchive) -> None:
    target = FakeStorage()
    export(orders, target)
    manifest = manifest_in(target.contents()).model_copy(update={"named_from": {0: 21}})
    with pytest.raises(OtherExportError, match="export the topic into another directory"):
        rewound(manifest, {0: Offset(24)}, "manifest")
    assert rewound(manifest, {0: Offset(30)}, "manifest").next_offsets == {0: 30}


def test_files_in_directories_of_earlier_options_are_searched() -> None:
    """Dead letters may have been written elsewhere before."""

    def file(directory: str, first: int) -> FileEntry:
        key = f"{directory}/orders/p=0/orders+0+{first:010d}.json"
        return FileEntry(key=key, partition=0, first=first, last=first, records=1, bytes=1)

    kept, gone = file("oldest", 10), (file("topics", 50), file("old/orders", 51))
    stood = Manifest(
        cluster="c", topic="orders", next_offsets={0: 100}, files=(kept, *gone), nonce="a"
    )
    after = rewound(stood.model_copy(update={"options": TENS}), {0: Offset(40)}, "manifest")
    assert (after.files, after.swept_directories) == ((kept,), ("old/orders", "topics"))


def test_epochs_reported_by_brokers_are_kept_until_they_can_be_compared() -> None:
    """Two runs with the tail, each under another leader, before any of it is archived."""
    stood = Manifest(
        cluster="c", topic="orders", next_offsets={0: 100}, epochs={0: ((6, 100),)}, nonce="a"
    )
    tp = TopicPartition("orders", 0)
    tail = Tail({tp: Offset(150)}, epoch_histories={tp: epoch_history_of([(7, 150)])})
    under_way = begun(stood, {0: Span(first=100, until=150)}, TENS, "b", tail)
    ended = committed(under_way, [], [], "c", swept=False)
    assert ended.epochs == {0: ((6, 100), (7, 150))}
    assert decode_manifest(encode_manifest(ended), "manifest") == ended

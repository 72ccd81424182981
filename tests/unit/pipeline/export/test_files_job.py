"""Export runs over an archive; the output store may fail or kill the run."""

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidetier.pipeline.errors import MissingRecordsError
from sidetier.pipeline.export.errors import (
    ForeignFileError,
    MisfitError,
    OtherExportError,
    OtherWriterError,
)
from sidetier.pipeline.export.sinks.files.engines import LocalEngine
from sidetier.pipeline.export.sinks.files.manifest import FileEntry
from sidetier.pipeline.export.sinks.files.options import FilesOptions, PartitionerKind
from sidetier.pipeline.export.sinks.files.run import FilesRun
from sidetier.pipeline.export.sinks.files.tasks import Done, Task
from sidetier.pipeline.export.source import RangeBound, RequestedRange
from sidetier.pipeline.export.values.options import ValueOptions
from sidetier.pipeline.planning.request import Edge
from sidetier.segments.errors import (
    AccessDeniedError,
    ArchiveError,
    BatchTooLargeError,
    StoreUnavailableError,
)
from sidetier.segments.headers import Compression
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.fake import FakeStorage
from tests.harness.exported_files import (
    data_files,
    files_job,
    manifest_in,
    new_run,
    offsets_in,
    rows_of,
    run_once,
)
from tests.harness.intercepted_store import KilledError, MortalStore
from tests.harness.made_archive import LAYOUT, MadeArchive, access_to, batches
from tests.harness.record_batches import MadeBatch, MadeRecord

HOURS = FilesOptions(
    partitioner=PartitionerKind.TIME,
    path_format="'ten'=SSS",
    partition_duration_ms=10,
    flush_size=7,
    max_open_files=2,
)
STRICT = FilesOptions.model_validate({"value": {"format": "string"}, "flush_size": 4}, strict=False)


@pytest.fixture
def orders() -> MadeArchive:
    """Archives of orders-0 with the offsets 0 to 39 and orders-3 with 100 to 119; timestamps equal
    offsets.
    """
    archive = MadeArchive()
    archive.segments(0, 10, 20, 30, 40)
    MadeArchive(archive.store, LAYOUT, TopicPartition("orders", 3)).segments(100, 110, 120)
    return archive


EVERY = {(0, offset): 1 for offset in range(40)} | {(3, offset): 1 for offset in range(100, 120)}


def job_of(archive: MadeArchive, target: FakeStorage) -> AbstractContextManager[FilesRun]:
    return files_job(archive.store, target, HOURS)


def export(archive: MadeArchive, target: FakeStorage, options: FilesOptions = HOURS) -> None:
    with files_job(archive.store, target, options) as job:
        run_once(job)


def test_each_record_is_exported_once_and_a_second_run_writes_nothing(orders: MadeArchive) -> None:
    target = FakeStorage()
    with files_job(orders.store, target, HOURS) as job:
        run_once(job)
        assert offsets_in(target.contents()) == EVERY
        manifest = manifest_in(target.contents())
        assert manifest.next_offsets == {0: 40, 3: 120}
        assert {one.key for one in manifest.files} == data_files(target.contents()).keys()
        before = target.changes
        assert run_once(job) is None
        assert target.changes == before
    first = next(iter(data_files(target.contents())))
    assert first == "topics/orders/ten=000/orders+0+0000000000.snappy.parquet"


def test_new_records_are_added_in_new_files(orders: MadeArchive) -> None:
    target = FakeStorage()
    export(orders, target)
    old = data_files(target.contents())
    orders.segment(40, batches(40, 45))
    orders.mark(40, 45)
    export(orders, target)
    new = data_files(target.contents())
    assert {key: new[key] for key in old} == old
    assert offsets_in(target.contents()) == EVERY | {(0, offset): 1 for offset in range(40, 45)}
    assert "topics/orders/ten=040/orders+0+0000000040.snappy.parquet" in new


def test_files_of_a_range_are_equal_for_any_chunk_size(orders: MadeArchive) -> None:
    whole, again, chunked = FakeStorage(), FakeStorage(), FakeStorage()
    export(orders, whole)
    export(orders, again)
    assert data_files(whole.contents()) == data_files(again.contents())
    with files_job(orders.store, chunked, HOURS, most_offsets=9) as job:
        runs = 0
        while run_once(job) is not None:
            runs += 1
    assert runs > 5
    assert offsets_in(chunked.contents()) == EVERY


FEW = HOURS.model_copy(update={"partition_duration_ms": 20, "flush_size": 15})


def killed_runs(archive: MadeArchive, target: FakeStorage, after: bool) -> Iterator[int]:  # noqa: FBT001
    """Run until one run is not killed; each may send one request more than the previous one."""
    for lives in range(200):
        mortal = MortalStore(target, lives, after=after)
        with suppress(KilledError), files_job(archive.store, mortal, FEW) as job:
            run_once(job)
            return
        yield lives


@pytest.mark.parametrize("after", [False, True], ids=["before it happens", "once it has happened"])
def test_run_killed_at_every_request_is_completed(orders: MadeArchive, after: bool) -> None:  # noqa: FBT001
    """Each run continues from the state that the killed one left."""
    clean, target = FakeStorage(), FakeStorage()
    export(orders, clean, FEW)
    expected = data_files(clean.contents())
    kills = 0
    for _ in killed_runs(orders, target, after):
        kills += 1
        left = data_files(target.contents())
        assert left == {key: expected[key] for key in left}
    assert kills > 5
    assert data_files(target.contents()) == expected
    assert offsets_in(target.contents()) == EVERY


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_run_killed_while_the_archive_grows_finishes_its_plan_first(data: st.DataObject) -> None:
    """The plan is carried out before records archived since are exported."""
    archive, target = MadeArchive(), FakeStorage()
    ends = [0]
    for _ in range(data.draw(st.integers(1, 4))):
        archive.segment(ends[-1], batches(ends[-1], ends[-1] + 10, data.draw(st.integers(1, 5))))
        ends.append(ends[-1] + 10)
        archive.mark(ends[-2], ends[-1])
        mortal = MortalStore(target, data.draw(st.integers(0, 14)), after=data.draw(st.booleans()))
        with suppress(KilledError), files_job(archive.store, mortal, HOURS) as job:
            run_once(job)
        named = {one.key for one in named_files(target)}
        assert named <= data_files(target.contents()).keys()
    with files_job(archive.store, target, HOURS) as job:
        while run_once(job) is not None:
            pass
    assert offsets_in(target.contents()) == {(0, offset): 1 for offset in range(ends[-1])}
    assert {one.key for one in named_files(target)} == data_files(target.contents()).keys()


def named_files(target: FakeStorage) -> tuple[FileEntry, ...]:
    objects = target.contents()
    return manifest_in(objects).files if any("manifest" in key for key in objects) else ()


def test_slower_of_two_concurrent_runs_is_refused(orders: MadeArchive) -> None:
    """The slower run plans together with the faster one and writes after that one's commit."""
    target = FakeStorage()
    with (
        files_job(orders.store, target, HOURS) as slow,
        files_job(orders.store, target, HOURS) as fast,
    ):
        remaining = slow.remaining()
        run = slow.plan_next(remaining)
        assert run is not None
        held = slow.begin(remaining.held, run)
        assert new_run(fast).resumed
        before = target.contents()
        plan = slow.plan(run)
        done = tuple(slow.engine.run(slow._tasks(run, plan, {})))
        with pytest.raises(OtherWriterError, match="run it again once the other has ended"):
            slow._commit(held, run, plan, done, resumed=False)
    assert target.contents() == before
    assert offsets_in(target.contents()) == EVERY


def test_second_of_two_runs_that_begin_at_once_is_refused(orders: MadeArchive) -> None:
    target = FakeStorage()
    with (
        files_job(orders.store, target, HOURS) as one,
        files_job(orders.store, target, HOURS) as two,
    ):
        remaining = two.remaining()
        run = two.plan_next(remaining)
        assert run is not None
        run_once(one)
        before = target.contents()
        with pytest.raises(OtherWriterError):
            two.begin(remaining.held, run)
    assert target.contents() == before


@pytest.fixture
def unfit() -> MadeArchive:
    """A topic whose record 13 is not valid text."""
    archive = MadeArchive()
    archive.segment(0, batches(0, 10))
    rows = [MadeRecord(offset, offset, value=b"text") for offset in range(10, 20)]
    rows[3] = MadeRecord(13, 13, key=b"k", value=b"\xff")
    archive.segment(10, [MadeBatch(tuple(rows))])
    archive.mark(10, 20)
    return archive


def test_record_that_does_not_fit_is_named_and_the_run_leaves_no_file(
    unfit: MadeArchive,
) -> None:
    target = FakeStorage()
    with pytest.raises(MisfitError, match=r"orders-0 offset 13: value is not UTF-8"):
        export(unfit, target, STRICT)
    manifest = manifest_in(target.contents())
    assert (manifest.pending, manifest.next_offsets, manifest.sweeps) == (None, {}, 2)
    left = data_files(target.contents())
    assert left
    mended = STRICT.model_copy(update={"dead_letters": "dead", "flush_size": 7})
    export(unfit, target, mended)
    objects = target.contents()
    assert offsets_in(objects) == {(0, offset): 1 for offset in range(20) if offset != 13}
    assert not left.keys() & data_files(objects).keys() - {next(iter(left))}
    [(key, letters)] = data_files(objects, "dead/").items()
    assert key == "dead/orders/partition=0/orders+0+0000000013.json"
    assert rows_of(key, letters) == [
        {
            "topic": "orders",
            "partition": 0,
            "offset": 13,
            "timestamp": 13,
            "timestamp_type": 0,
            "reason": "value is not UTF-8 text: byte 0 is 0xFF",
            "key": "aw==",
            "value": "/w==",
            "headers": [],
        }
    ]
    assert key in {one.key for one in manifest_in(objects).files}


def test_dead_letters_of_an_abandoned_plan_are_removed(unfit: MadeArchive) -> None:
    """Although the next plan has no dead-letter directory, because it reads values in another
    form.
    """
    target = FakeStorage()
    unfit.segment(20, batches(20, 30))
    unfit.mark(20, 30)
    unfit.lose(20)
    first = STRICT.model_copy(update={"dead_letters": "dead", "flush_size": 1})
    with pytest.raises(MissingRecordsError):
        export(unfit, target, first)
    assert data_files(target.contents(), "dead/")
    as_bytes = FilesOptions(flush_size=5, fail_on_data_loss=False)
    with files_job(unfit.store, target, as_bytes) as job:
        assert new_run(job).swept == 20 - 4  # four names are used again
    assert not data_files(target.contents(), "dead/")
    assert offsets_in(target.contents()) == {(0, offset): 1 for offset in range(20)}
    manifest = manifest_in(target.contents())
    assert (manifest.sweeps, manifest.swept_directories) == (1, ("dead", "topics"))


def test_transient_failure_keeps_the_plan(orders: MadeArchive) -> None:
    target = FakeStorage()
    target.fail("put", StoreUnavailableError("away"), nth=4)
    with pytest.raises(StoreUnavailableError):
        export(orders, target)
    assert manifest_in(target.contents()).pending is not None
    with files_job(orders.store, target, HOURS) as job:
        assert new_run(job).resumed
    assert offsets_in(target.contents()) == EVERY


def test_plan_is_carried_out_with_its_original_options(orders: MadeArchive) -> None:
    """The options requested since apply to the records after it."""
    target = FakeStorage()
    with suppress(KilledError), files_job(orders.store, MortalStore(target, 4), HOURS) as job:
        run_once(job)
    other = HOURS.model_copy(update={"flush_size": 3})
    with files_job(orders.store, target, other) as job:
        assert new_run(job).resumed
    clean = FakeStorage()
    export(orders, clean)
    assert data_files(target.contents()) == data_files(clean.contents())


def test_missing_offsets_are_an_error_or_skipped(orders: MadeArchive) -> None:
    target = FakeStorage()
    orders.lose(20)
    with pytest.raises(MissingRecordsError, match=r"offsets \[20, 30\)"):
        export(orders, target)
    assert manifest_in(target.contents()).next_offsets == {}
    assert manifest_in(target.contents()).pending is None
    tolerant = HOURS.model_copy(update={"fail_on_data_loss": False})
    with files_job(orders.store, target, tolerant) as job:
        [missing] = new_run(job).missing
    assert (missing.partition, missing.first, missing.until) == (0, 20, 30)
    lost = {(0, offset) for offset in range(20, 30)}
    assert offsets_in(target.contents()) == {key: 1 for key in EVERY if key not in lost}
    assert manifest_in(target.contents()).next_offsets == {0: 40, 3: 120}


def test_given_range_needs_an_output_of_its_own(orders: MadeArchive) -> None:
    target = FakeStorage()
    asked = RequestedRange(RangeBound(offset=5), RangeBound(time_ms=110))
    refused = pytest.raises(MissingRecordsError, match=r"partition 3, offsets \[5, 100\)")
    with files_job(orders.store, target, HOURS, asked=asked) as job, refused:
        run_once(job)
    asked = RequestedRange(RangeBound(time_ms=7), RangeBound(time_ms=110))
    with files_job(orders.store, target, HOURS, asked=asked) as job:
        run_once(job)
        assert run_once(job) is None
    wanted = {(0, offset): 1 for offset in range(7, 40)}
    wanted |= {(3, offset): 1 for offset in range(100, 110)}
    assert offsets_in(target.contents()) == wanted
    assert manifest_in(target.contents()).asked == "@7 to @110"
    for other in (None, RequestedRange(RangeBound(edge=Edge.EARLIEST), RangeBound(offset=7))):
        refused_as_other = pytest.raises(OtherExportError, match="an export of @7 to @110")
        with files_job(orders.store, target, HOURS, asked=other) as job, refused_as_other:
            run_once(job)


def test_archive_that_ends_below_the_exported_offset_is_an_error(orders: MadeArchive) -> None:
    target = FakeStorage()
    export(orders, target)
    anew = MadeArchive()
    anew.segments(0, 10)
    before = target.contents()
    with pytest.raises(ArchiveError, match="exported up to offset 40, but the archive ends at 10"):
        export(anew, target)
    assert target.contents() == before


def test_null_values_can_be_left_out() -> None:
    archive, target = MadeArchive(), FakeStorage()
    rows = [MadeRecord(at, at, value=None if at % 3 == 0 else b"v") for at in range(10)]
    archive.segment(0, [MadeBatch(tuple(rows))])
    archive.mark(0, 10)
    with files_job(archive.store, target, FilesOptions(null_values="skip")) as job:
        [done] = new_run(job).done
    assert done.written.skipped == 4
    assert offsets_in(target.contents()) == {(0, at): 1 for at in range(10) if at % 3}
    assert ValueOptions() == FilesOptions().value


def test_batch_above_the_limit_is_not_skipped_and_a_higher_limit_finishes_the_run() -> None:
    archive, target = MadeArchive(), FakeStorage()
    large = MadeBatch((MadeRecord(10, 10, value=bytes(2 << 20)),), Compression.ZSTD)
    archive.segment(0, [*batches(0, 10), large, *batches(11, 20)])
    archive.mark(0, 20)
    tolerant = HOURS.model_copy(update={"fail_on_data_loss": False})
    with (
        files_job(archive.store, target, tolerant, max_batch_bytes=1 << 20) as job,
        pytest.raises(BatchTooLargeError, match=r"offsets \[10, 11\) are more than 1048576 bytes"),
    ):
        run_once(job)
    assert manifest_in(target.contents()).next_offsets == {}
    with files_job(archive.store, target, tolerant, max_batch_bytes=3 << 20) as job:
        result = new_run(job)
    assert (result.manifest.next_offsets, result.missing) == ({0: 20}, ())
    assert offsets_in(target.contents()) == {(0, offset): 1 for offset in range(20)}


IDS = '{"type": "object", "properties": {"id": {"type": "string"}}}'
BY_ID = FilesOptions.model_validate(
    {
        "value": {"format": "json", "schema_text": IDS},
        "partitioner": "field",
        "partition_fields": ["id"],
        "format": "json",
    },
    strict=False,
)


def archive_of(*records: MadeRecord) -> MadeArchive:
    archive = MadeArchive()
    archive.segment(0, [MadeBatch(records)])
    archive.mark(0, len(records))
    return archive


@pytest.mark.parametrize(
    ("id_", "reason"),
    [
        ("x" * 1500, "the path of its directory has 1517 bytes; the limit is 600"),
        ("x" * 300, "a name in its directory has 303 bytes; the limit is 255"),
        ("x\uffff", "its directory cannot be stored: key .* has a character that cannot be listed"),
    ],
    ids=["too long a path", "too long a name", "no character of a key"],
)
def test_record_whose_directory_name_no_store_accepts_does_not_fit(id_: str, reason: str) -> None:
    values = [json.dumps({"id": one}).encode() for one in ("a", id_, "b")]
    archive = archive_of(*(MadeRecord(at, at, value=one) for at, one in enumerate(values)))
    target = FakeStorage()
    with pytest.raises(MisfitError, match=f"orders-0 offset 1: {reason}"):
        export(archive, target, BY_ID)
    assert manifest_in(target.contents()).pending is None
    export(archive, target, BY_ID.model_copy(update={"dead_letters": "dead"}))
    objects = target.contents()
    assert list(data_files(objects)) == [
        "topics/orders/id=a/orders+0+0000000000.json",
        "topics/orders/id=b/orders+0+0000000002.json",
    ]
    [(key, letters)] = data_files(objects, "dead/").items()
    assert [row["offset"] for row in rows_of(key, letters)] == [1]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\r"])
def test_dead_letter_is_one_line_for_any_header(separator: str) -> None:
    name = f"a{separator}b"
    archive = archive_of(
        MadeRecord(0, 0, value=b"\xff", headers=((name.encode(), b"v"),)),
        MadeRecord(1, 1, value=b"\xfe"),
    )
    target = FakeStorage()
    export(archive, target, STRICT.model_copy(update={"dead_letters": "dead"}))
    [letters] = data_files(target.contents(), "dead/").values()
    rows = [json.loads(line) for line in letters.decode().removesuffix("\n").split("\n")]
    assert [row["offset"] for row in rows] == [0, 1]
    assert rows[0]["headers"] == [{"key": name, "value": "dg=="}]


@pytest.mark.parametrize(
    "error",
    [AccessDeniedError("no"), ForeignFileError("not ours"), ValueError("a fault of ours")],
    ids=lambda error: type(error).__name__,
)
def test_plan_with_a_permanent_failure_is_withdrawn(orders: MadeArchive, error: Exception) -> None:
    """The next run can have other options."""
    target = FakeStorage()

    class Failing(LocalEngine):
        def run(self, tasks: Sequence[Task]) -> Sequence[Done]:
            super().run(tasks)
            raise error

    with (
        files_job(orders.store, target, HOURS) as job,
        Failing(access_to(orders.store), target) as engine,
        pytest.raises(type(error)),
    ):
        run_once(replace(job, engine=engine))
    manifest = manifest_in(target.contents())
    assert (manifest.pending, manifest.sweeps) == (None, 2)
    other = HOURS.model_copy(update={"flush_size": 3})
    with files_job(orders.store, target, other) as job:
        result = new_run(job)
        assert (result.resumed, result.run.options.flush_size) == (False, 3)
    assert offsets_in(target.contents()) == EVERY


def test_plan_can_be_abandoned(orders: MadeArchive) -> None:
    target = FakeStorage()
    with suppress(KilledError), files_job(orders.store, MortalStore(target, 4), HOURS) as job:
        run_once(job)
    other = HOURS.model_copy(update={"flush_size": 3})
    with files_job(orders.store, target, other) as job:
        assert job.abandon_plan()
        assert not job.abandon_plan()
        result = new_run(job)
        assert (result.resumed, result.run.options.flush_size) == (False, 3)
    assert offsets_in(target.contents()) == EVERY


WHOLE = FilesOptions.model_validate(
    {
        "value": {"format": "json", "schema_text": IDS},
        "partitioner": "field",
        "partition_fields": ["id"],
        "format": "json",
        "flush_size": 7,
        "whole_files": True,
        "dead_letters": "dead",
        "null_values": "skip",
    },
    strict=False,
)


def mixed_values(first: int, end: int) -> list[MadeBatch]:
    """Values for the directories a and b; every fifth record does not fit, every ninth is null."""

    def value(offset: int) -> bytes | None:
        if offset % 9 == 8:
            return None
        return b"misfit" if offset % 5 == 4 else json.dumps({"id": "ab"[offset % 2]}).encode()

    rows = [MadeRecord(at, at, value=value(at)) for at in range(first, end)]
    return [MadeBatch(tuple(rows[at : at + 4])) for at in range(0, len(rows), 4)]


def archive_up_to(*ends: int) -> Iterator[MadeArchive]:
    """The same archive with a growing end offset."""
    archive, first = MadeArchive(), 0
    for end in ends:
        archive.segment(first, mixed_values(first, end))
        archive.mark(first, end)
        first = end
        yield archive


def run_to_end(archive: MadeArchive, target: FakeStorage, options: FilesOptions) -> int:
    """Run until no record is new; return the number of runs."""
    with files_job(archive.store, target, options) as job:
        runs = 0
        while run_once(job) is not None:
            runs += 1
        return runs


def every_file(target: FakeStorage) -> dict[str, bytes]:
    objects = target.contents()
    return data_files(objects) | data_files(objects, "dead/")


@pytest.mark.parametrize("rotate", [None, 10])
@pytest.mark.parametrize("most_open", [1, 100])
def test_whole_files_do_not_depend_on_the_times_of_runs(rotate: int | None, most_open: int) -> None:
    changes = {"rotate_interval_ms": rotate, "max_open_files": most_open}
    options = WHOLE.model_copy(update=changes)
    at_once, in_steps = FakeStorage(), FakeStorage()
    for archive in archive_up_to(20, 23, 48, 90):
        run_to_end(archive, in_steps, options)
    [*_, archive] = archive_up_to(90)
    run_to_end(archive, at_once, options)
    assert every_file(in_steps) == every_file(at_once)
    assert len(every_file(at_once)) > 9
    manifest = manifest_in(at_once.contents())
    assert manifest.next_offsets == manifest_in(in_steps.contents()).next_offsets
    reached = manifest.next_offsets[0]
    assert 80 < reached < 90
    assert manifest.unfinished == {0: 90}
    last = options.model_copy(update={"whole_files": False})
    run_to_end(archive, at_once, last)
    manifest = manifest_in(at_once.contents())
    assert (manifest.next_offsets, manifest.unfinished) == ({0: 90}, {})
    offsets = sorted(row["offset"] for row in all_rows(at_once))
    assert offsets == [at for at in range(90) if at % 9 != 8]


def all_rows(target: FakeStorage) -> list[dict[str, Any]]:
    return [row for key, data in every_file(target).items() for row in rows_of(key, data)]


def test_records_that_fill_no_file_are_not_read_repeatedly(orders: MadeArchive) -> None:
    options = HOURS.model_copy(update={"whole_files": True, "flush_size": 30})
    target = FakeStorage()
    assert run_to_end(orders, target, options) == 1
    manifest = manifest_in(target.contents())
    assert (manifest.next_offsets, manifest.unfinished) == ({0: 20}, {0: 40, 3: 120})
    before = target.changes
    assert run_to_end(orders, target, options) == 0
    assert target.changes == before
    smaller = options.model_copy(update={"flush_size": 8})
    assert run_to_end(orders, target, smaller) == 1, "by other rules they may fill one"
    assert manifest_in(target.contents()).next_offsets == {0: 36, 3: 116}


@pytest.mark.parametrize("after", [False, True], ids=["before it happens", "once it has happened"])
def test_whole_files_are_completed_after_a_kill_at_every_request(after: bool) -> None:  # noqa: FBT001
    clean, target = FakeStorage(), FakeStorage()
    for archive in archive_up_to(20, 48):
        run_to_end(archive, clean, WHOLE)
        for lives in range(200):
            with suppress(KilledError):
                mortal = MortalStore(target, lives, after=after)
                with files_job(archive.store, mortal, WHOLE) as job:
                    while run_once(job) is not None:
                        pass
                break
    assert every_file(target) == every_file(clean)
    ours, theirs = (manifest_in(one.contents()) for one in (target, clean))
    assert ours.next_offsets == theirs.next_offsets
    assert {one.key for one in ours.files} == every_file(target).keys()

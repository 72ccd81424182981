"""Records in are records out: a run that loses or repeats one ends with an error."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sidetier.pipeline.export.errors import RecordCountError
from sidetier.pipeline.export.sinks.files import tasks, write_range
from sidetier.pipeline.export.sinks.files.engines import LocalEngine
from sidetier.pipeline.export.sinks.files.formats import avro, forms
from sidetier.pipeline.export.sinks.files.options import FilesOptions
from sidetier.pipeline.export.sinks.files.rows import Prepared, RowMaker
from sidetier.pipeline.export.values.json_texts import texts
from sidetier.pipeline.reading.split_reader import read_split
from sidetier.storage.fake import FakeStorage
from tests.harness.exported_files import data_files, files_job, manifest_in, run_once
from tests.harness.made_archive import MadeArchive
from tests.harness.record_batches import MadeBatch, MadeRecord

Patch = pytest.MonkeyPatch
Spoil = Callable[[Patch], None]


@pytest.fixture
def orders() -> MadeArchive:
    """Records with and without a value, one of which is not UTF-8 text."""
    values = [b"a", None, b"b", b"\xff", b"c", None, b"d"]
    archive = MadeArchive()
    records = tuple(MadeRecord(at, 7, value=value) for at, value in enumerate(values))
    archive.segment(0, [MadeBatch(records[:3]), MadeBatch(records[3:])])
    archive.mark(0, len(values))
    return archive


def _parquet_without_a_row(patch: Patch) -> None:
    write = forms._ParquetWriter.write
    patch.setattr(forms._ParquetWriter, "write", lambda self, rows: write(self, rows.slice(1)))


def _json_without_a_row(patch: Patch) -> None:
    patch.setattr(f"{forms.__name__}.texts", lambda column: texts(column.slice(1)))


def _avro_without_a_row(patch: Patch) -> None:
    records = avro.records
    patch.setattr(avro, "records", lambda rows: records(rows.slice(1)))


def _raw_without_a_row(patch: Patch) -> None:
    raw = forms.raw

    def spoiled(*given: Any) -> forms.Render:  # noqa: ANN401 -- passed on
        return lambda rows: raw(*given)(rows.slice(1))

    patch.setattr(write_range, "raw", spoiled)


def _letters_without_a_line(patch: Patch) -> None:
    lines = forms.lines
    patch.setattr(f"{write_range.__name__}.lines", lambda data: lines(data.replace(b"\n", b"")))


def _changed(patch: Patch, change: Callable[[Prepared], Prepared]) -> None:
    prepare = RowMaker.prepare
    patch.setattr(RowMaker, "prepare", lambda *given: change(prepare(*given)))


def _misfit_without_a_letter(patch: Patch) -> None:
    _changed(patch, lambda prepared: replace(prepared, misfits=()))


def _kept_record_lost(patch: Patch) -> None:
    _changed(patch, lambda prepared: replace(prepared, rows=prepared.rows.part(1, 1 << 20)))


def _columns_lost(patch: Patch) -> None:
    """The rows of a type without columns: all of them count as none."""

    def without(_maker: RowMaker, _batch: pa.RecordBatch, _values: pa.Array) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([], schema=pa.schema([]))

    patch.setattr(RowMaker, "_table", without)
    patch.setattr(RowMaker, "_schema", lambda _maker: pa.schema([]))


def _skipped_forgotten(patch: Patch) -> None:
    _changed(patch, lambda prepared: replace(prepared, skipped=np.array([], dtype=np.int64)))


def _reading(patch: Patch, change: Callable[[list[pa.RecordBatch]], list[pa.RecordBatch]]) -> None:
    def spoiled(*given: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 -- passed on
        yield from change(list(read_split(*given)))

    patch.setattr(f"{tasks.__name__}.read_split", spoiled)


def _read_twice(patch: Patch) -> None:
    _reading(patch, lambda batches: [*batches, *batches])


def _read_out_of_order(patch: Patch) -> None:
    def turned(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        whole = pa.Table.from_batches(batches).combine_chunks()
        downwards = whole.take(pa.array(range(whole.num_rows - 1, -1, -1)))
        return list(downwards.to_batches())

    _reading(patch, turned)


def _task_without_a_result(patch: Patch) -> None:
    patch.setattr(LocalEngine, "run", lambda _engine, _tasks: [])


@pytest.mark.parametrize(
    ("spoil", "given"),
    [
        (_parquet_without_a_row, {}),
        (_json_without_a_row, {"format": "json"}),
        (_avro_without_a_row, {"format": "avro"}),
        (_raw_without_a_row, {"format": "raw"}),
        (_letters_without_a_line, {}),
        (_misfit_without_a_letter, {}),
        (_kept_record_lost, {}),
        (_kept_record_lost, {"whole_files": True, "flush_size": 2}),
        (_columns_lost, {}),
        (_skipped_forgotten, {"null_values": "skip"}),
        (_skipped_forgotten, {"null_values": "skip", "whole_files": True, "flush_size": 2}),
        (_read_twice, {}),
        (_read_out_of_order, {}),
        (_task_without_a_result, {}),
    ],
)
def test_run_that_loses_or_repeats_a_record_commits_nothing(
    orders: MadeArchive, monkeypatch: Patch, spoil: Spoil, given: dict[str, Any]
) -> None:
    value = {"format": "string"}
    made = FilesOptions.model_validate(
        {"value": value, "dead_letters": "dead", **given}, strict=False
    )
    target = FakeStorage()
    with files_job(orders.store, target, made) as job:
        with monkeypatch.context() as patch:
            spoil(patch)
            with pytest.raises(RecordCountError):
                run_once(job)
        before = manifest_in(target.contents())
        assert (before.next_offsets, before.files, before.pending) == ({}, (), None)
        result = run_once(job)
    assert result is not None
    [done] = result.done
    files = data_files(target.contents(), "")
    assert done.written.read == result.run.spans[0].until  # each offset is a record
    assert sum(one.records for one in done.written.files) + done.written.skipped == (
        done.written.read
    )
    assert files

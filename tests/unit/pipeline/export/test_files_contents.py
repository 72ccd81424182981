"""Contents of exported files: genuine records of a broker, in every format."""

import json
import math
import tempfile
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidetier.pipeline.export.errors import MisfitError
from sidetier.pipeline.export.sinks.files.formats.forms import json_lines
from sidetier.pipeline.export.sinks.files.options import FilesOptions
from sidetier.pipeline.export.sinks.files.upload import FileUploader
from sidetier.pipeline.export.sinks.files.write_range import COLUMNS, columns_of, write_range
from sidetier.pipeline.export.sinks.files.zones import EARLIEST_MS, LATEST_MS, moment
from sidetier.segments.arrow import HEADERS_TYPE
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.storage.fake import FakeStorage
from tests.harness.broker_archive import store_broker_segments
from tests.harness.broker_segments import directories
from tests.harness.exported_files import (
    as_consumed,
    consumed_below,
    data_files,
    files_job,
    new_run,
    parquet_schema,
    rows_of,
    run_once,
)
from tests.harness.made_archive import TP, MadeArchive
from tests.harness.record_batches import MadeBatch, MadeRecord

LAYOUT = ArchiveLayout("prod-a", 5)
MOMENT = 1_795_253_400_123
"""2026-11-21T09:30:00.123Z, in ms."""


def options(**given: Any) -> FilesOptions:  # noqa: ANN401  as the command line gives them
    return FilesOptions.model_validate(given, strict=False)


def test_broker_archive_is_exported_in_chunks_of_bounded_bytes() -> None:
    """The chunks depend only on the archive; together they are what a consumer read."""
    store, bound = FakeStorage(), 30_000
    segments = store_broker_segments(store, LAYOUT, "comp-none-0")
    total = sum(len(one.read(FileKind.LOG)) for one in segments)
    found: list[dict[str, bytes]] = []
    for target in (FakeStorage(), FakeStorage()):
        made = options(flush_size=50)
        with files_job(
            store, target, made, topic="comp-none", layout=LAYOUT, most_bytes=bound
        ) as job:
            sizes = []
            while (result := run_once(job)) is not None:
                sizes.append(job.plan(result.run).size)
        assert total > 3 * bound
        assert total / bound < len(sizes) < 2 * total / bound
        assert max(sizes) <= bound + 3 * 4096 + 16 * 1024
        found.append(data_files(target.contents()))
    assert found[0] == found[1]
    rows = [row for key, data in found[0].items() for row in rows_of(key, data)]
    consumed = consumed_below(segments[0].directory, "read_committed", segments[-1].next_base)
    assert sorted((as_consumed(row) for row in rows), key=lambda row: row["offset"]) == consumed


def exported(archive: MadeArchive, made: FilesOptions) -> dict[str, bytes]:
    target = FakeStorage()
    with files_job(archive.store, target, made) as job:
        run_once(job)
    return data_files(target.contents())


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("directory", directories(), ids=lambda path: path.name)
def test_parquet_files_equal_the_brokers_consumer_output(directory: Path, isolation: str) -> None:
    """Every file read back equals the output of the broker's own consumer."""
    store, target = FakeStorage(), FakeStorage()
    store_broker_segments(store, LAYOUT, directory.name)
    topic = directory.name.rpartition("-")[0]
    made = options(isolation=isolation, flush_size=50)
    with files_job(store, target, made, topic=topic, layout=LAYOUT) as job:
        result = new_run(job)
    [span] = result.run.spans.values()
    wanted = consumed_below(directory, isolation, span.until)
    rows = [
        row for key, data in data_files(target.contents()).items() for row in rows_of(key, data)
    ]
    found = sorted((as_consumed(row) for row in rows), key=lambda row: row["offset"])
    assert found == wanted
    assert len(wanted) > 10
    assert {(row["topic"], row["partition"]) for row in rows} == {(topic, 0)}


ROWS = (
    MadeRecord(0, MOMENT, key=b"k0", value=b'{"id": 1, "at": "2026-11-21T09:30:00Z"}'),
    MadeRecord(1, MOMENT + 1, key=None, value=None),
    MadeRecord(2, MOMENT + 2, key=b"", value=b'{"id": 2}', headers=((b"h", b"\xff"), (b"h", None))),
)
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "at": {"type": "string", "format": "date-time"},
        },
    }
)
JSON = {"format": "json", "schema_text": SCHEMA}
NEEDS_ID = json.dumps({**json.loads(SCHEMA), "required": ["id"]})


@pytest.fixture
def orders() -> MadeArchive:
    archive = MadeArchive()
    archive.segment(0, [MadeBatch(ROWS)])
    archive.mark(0, 3)
    return archive


def test_parquet_columns_have_the_expected_types(orders: MadeArchive) -> None:
    [(key, data)] = exported(orders, options(value=JSON, compression="zstd")).items()
    assert key == "topics/orders/partition=0/orders+0+0000000000.zstd.parquet"
    schema = parquet_schema(data)
    assert schema.names == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
    ]  # fmt: skip
    assert schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
    first, null, last = rows_of(key, data)
    at = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
    assert first["value"] == {"id": 1, "at": at}
    assert first["timestamp"] == at.replace(microsecond=123_000)
    assert (null["key"], null["value"], null["headers"]) == (None, None, [])
    assert last["key"] == b""
    assert last["headers"] == [{"key": "h", "value": b"\xff"}, {"key": "h", "value": None}]


def test_flat_values_are_the_columns(orders: MadeArchive) -> None:
    made = options(value=JSON, layout="value", null_values="skip", compression="none")
    [(key, data)] = exported(orders, made).items()
    assert key.endswith("+0000000000.parquet")
    assert parquet_schema(data).names == ["id", "at"]
    assert [row["id"] for row in rows_of(key, data)] == [1, 2]


@pytest.mark.parametrize("format_", ["parquet", "json", "avro"])
def test_values_without_fields_are_rows(format_: str) -> None:
    """A row without a column would vanish from its file, and be counted nowhere."""
    schema = {"type": "record", "name": "Ping", "fields": []}
    archive = MadeArchive()
    records = tuple(MadeRecord(at, MOMENT, value=b"\0\0\0\0\1") for at in range(3))
    archive.segment(0, [MadeBatch(records)])
    archive.mark(0, 3)
    value = {"format": "avro", "schema_text": json.dumps(schema)}
    for layout in ("value", "flat", "record"):
        files = exported(archive, options(value=value, layout=layout, format=format_))
        [(key, data)] = files.items()
        assert [row["value"] for row in rows_of(key, data)] == ["{}"] * 3


def test_fields_of_a_value_are_columns_beside_those_of_the_record(orders: MadeArchive) -> None:
    [(key, data)] = exported(orders, options(value=JSON, layout="flat")).items()
    assert parquet_schema(data).names == [
        "key", "topic", "partition", "offset", "timestamp", "timestampType", "headers", "id", "at",
    ]  # fmt: skip
    first, null, last = rows_of(key, data)
    at = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
    assert (first["offset"], first["key"], first["id"], first["at"]) == (0, b"k0", 1, at)
    assert (null["offset"], null["id"], null["at"]) == (1, None, None)
    assert (last["headers"][0]["value"], last["id"]) == (b"\xff", 2)
    needed = {"format": "json", "schema_text": NEEDS_ID}
    with pytest.raises(MisfitError, match="offset 1: record has no value, and its field id"):
        exported(orders, options(value=needed, layout="flat"))
    taken = json.dumps({"type": "object", "properties": {"Offset": {"type": "integer"}}})
    with pytest.raises(ConfigurationError, match="field Offset has the name of a column"):
        exported(orders, options(value={"format": "json", "schema_text": taken}, layout="flat"))
    with pytest.raises(ValueError, match="flat is for values in json, avro or protobuf"):
        options(layout="flat")


def test_json_files_have_one_record_per_line(orders: MadeArchive) -> None:
    [(key, data)] = exported(orders, options(format="json", value=JSON)).items()
    assert key.endswith(".json")
    first, null, last = (json.loads(line) for line in data.splitlines())
    assert first == {
        "key": "azA=",
        "value": {"id": 1, "at": "2026-11-21T09:30:00+00:00"},
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "timestamp": "2026-11-21T09:30:00.123000+00:00",
        "timestampType": 0,
        "headers": [],
    }
    assert null["value"] is None
    assert last["headers"] == [{"key": "h", "value": "/w=="}, {"key": "h", "value": None}]
    [(_, alone)] = exported(
        orders, options(format="json", value={"format": "string"}, layout="value")
    ).items()
    assert [json.loads(line) for line in alone.splitlines()] == [
        '{"id": 1, "at": "2026-11-21T09:30:00Z"}',
        None,
        '{"id": 2}',
    ]


@pytest.mark.parametrize("codec", ["deflate", "null"])
def test_avro_containers_can_be_read_by_fastavro(orders: MadeArchive, codec: str) -> None:
    made = options(format="avro", value=JSON, compression=codec)
    [(key, data)] = exported(orders, made).items()
    assert key.endswith(".avro")
    first, null, last = rows_of(key, data)
    assert first["value"] == {"id": 1, "at": datetime(2026, 11, 21, 9, 30, tzinfo=UTC)}
    assert (first["offset"], null["value"], last["key"]) == (0, None, b"")


def test_names_that_avro_does_not_allow_are_refused(orders: MadeArchive) -> None:
    schema = json.dumps({"type": "object", "properties": {"order-id": {"type": "string"}}})
    made = options(
        format="avro", null_values="skip", value={"format": "json", "schema_text": schema}
    )
    with pytest.raises(ConfigurationError, match="order-id: Avro has no such names"):
        exported(orders, made)


@pytest.mark.parametrize(
    ("given", "content"),
    [
        ({}, b'{"id": 1, "at": "2026-11-21T09:30:00Z"}\n\n{"id": 2}\n'),
        (
            {"delimiter": b"\0", "key_delimiter": b"\t", "null_values": "skip"},
            b'k0\t{"id": 1, "at": "2026-11-21T09:30:00Z"}\0\t{"id": 2}\0',
        ),
    ],
)
def test_raw_values_and_keys_are_exported(
    orders: MadeArchive, given: dict[str, Any], content: bytes
) -> None:
    [(key, data)] = exported(orders, options(format="raw", **given)).items()
    assert key.endswith("+0000000000.bin")
    assert data == content


@pytest.mark.parametrize(
    "made",
    [
        options(format="json", compression="gzip"),
        options(format="raw", compression="gzip"),
        options(format="avro"),
        options(),
    ],
    ids=["json.gz", "bin.gz", "avro", "parquet"],
)
def test_repeated_export_gives_the_same_bytes(orders: MadeArchive, made: FilesOptions) -> None:
    first = exported(orders, made)
    assert len(first) == 1
    assert exported(orders, made) == first


def test_numbers_without_a_json_form_are_written_as_strings() -> None:
    numbers = pa.table({"x": [1e308, math.nan, math.inf, -math.inf], "y": [[0.5], None, [], [1]]})
    assert json_lines(numbers)[0].decode().splitlines() == [
        '{"x": 1e+308, "y": [0.5]}',
        '{"x": "NaN", "y": null}',
        '{"x": "Infinity", "y": []}',
        '{"x": "-Infinity", "y": [1.0]}',
    ]


MISFITS: list[tuple[MadeRecord, dict[str, Any], str]] = [
    (MadeRecord(0, -1, value=b"v"), {"partitioner": "daily"}, "timestamp is missing"),
    (MadeRecord(0, 2**60, value=b"v"), {"partitioner": "daily"}, "not a time that has a date"),
    (MadeRecord(0, 2**60, value=b"v"), {"format": "json"}, "has no date"),
    (MadeRecord(0, LATEST_MS + 1, value=b"v"), {"format": "parquet"}, "has no date"),
    (MadeRecord(0, EARLIEST_MS - 1, value=b"v"), {"format": "parquet"}, "has no date"),
    (MadeRecord(0, 2**63 - 1, value=b"v"), {"format": "avro"}, "has no date"),
    (MadeRecord(0, -(2**63), value=b"v"), {"format": "parquet"}, "has no date"),
    (
        MadeRecord(0, 5, value=b'{"id": 1}'),
        {"partitioner": "daily", "timestamp_field": "at", "value": JSON},
        "field at is missing",
    ),
    (MadeRecord(0, 5, value=b'{"id": "1"}'), {"value": JSON}, "value.id should be an integer"),
    (
        MadeRecord(0, 5, value=None),
        {"value": {**JSON, "schema_text": NEEDS_ID}, "layout": "value"},
        "record has no value, and its field id is required",
    ),
]


@pytest.mark.parametrize(("record", "given", "reason"), MISFITS)
def test_record_that_does_not_fit_is_a_dead_letter(
    record: MadeRecord, given: dict[str, Any], reason: str
) -> None:
    archive, target = MadeArchive(), FakeStorage()
    archive.segment(0, [MadeBatch((record,))])
    archive.mark(0, 1)
    with files_job(archive.store, target, options(**given, dead_letters="dead")) as job:
        [done] = new_run(job).done
    assert done.written.dead_letters == 1
    [(key, data)] = data_files(target.contents(), "dead/").items()
    assert reason in rows_of(key, data)[0]["reason"]
    assert data_files(target.contents()) == {}


def sixty() -> pa.RecordBatch:
    """A batch with offsets and timestamps 0 to 59 and values of 1,000 bytes."""
    times = pa.array(range(60), pa.int64())
    return pa.RecordBatch.from_arrays(
        [
            times,
            times,
            pa.array([0] * 60, pa.int8()),
            pa.nulls(60, pa.binary()),
            pa.array([b"%d" % (at % 7) * 1000 for at in range(60)], pa.binary()),
            pa.array([[]] * 60, HEADERS_TYPE),
        ],
        names=list(COLUMNS),
    )


TENS = options(
    partitioner="time", path_format="SSS", partition_duration_ms=25, flush_size=9, max_open_files=1
)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 60), max_size=5))
def test_files_do_not_depend_on_the_batches_that_were_fetched(cuts: list[int]) -> None:
    whole, parts = FakeStorage(), FakeStorage()
    write_range(TP, TENS, [sixty()], FileUploader(whole, "1-a"))
    pieces = [sixty().slice(first, end - first) for first, end in pairwise([0, *sorted(cuts), 60])]
    write_range(TP, TENS, pieces, FileUploader(parts, "1-a"))
    assert parts.contents() == whole.contents()
    assert len(whole.contents()) > 5


@pytest.mark.parametrize(
    ("given_", "columns"),
    [
        ({}, set(COLUMNS)),
        ({"layout": "value"}, {"offset", "timestamp", "value"}),
        ({"format": "raw"}, {"offset", "timestamp", "value"}),
        ({"format": "raw", "key_delimiter": b":"}, {"offset", "timestamp", "value", "key"}),
        ({"layout": "value", "dead_letters": "dead"}, set(COLUMNS)),
    ],
)
def test_only_required_columns_are_read(given_: dict[str, Any], columns: set[str]) -> None:
    assert set(columns_of(options(**given_))) == columns


@pytest.mark.parametrize("form", ["parquet", "json", "avro", "raw"])
def test_open_files_leave_no_names_after_a_kill(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill at this moment leaves nothing in `TMPDIR`."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store, seen = FakeStorage(), []
    sink = FileUploader(store, "1-a")

    def looking(count: int, _next_offset: int) -> None:
        seen.append((count, list(tmp_path.iterdir()), len(store.contents())))

    parts = [sixty().slice(0, 30), sixty().slice(30, 30)]
    made = options(format=form, flush_size=50, dead_letters="dead")
    written = write_range(TP, made, parts, sink, looking)
    assert seen == [(30, [], 0), (30, [], 1)]
    assert sum(one.records for one in written.files) == 60


def test_buffered_records_are_bounded_in_memory() -> None:
    """Records beyond the bound become a row group of their file."""
    parts = [sixty().slice(first, 10) for first in range(0, 60, 10)]
    groups = {}
    for memory in (25_000, 1_000_000):
        store = FakeStorage()
        write_range(TP, FilesOptions(), parts, FileUploader(store, "1-a"), memory=memory)
        [(key, data)] = data_files(store.contents()).items()
        assert [row["offset"] for row in rows_of(key, data)] == list(range(60))
        groups[memory] = pq.ParquetFile(pa.BufferReader(data)).num_row_groups
    assert groups == {25_000: 2, 1_000_000: 1}


@pytest.mark.parametrize("kind", ["parquet", "avro", "json"])
def test_first_and_last_timestamp_of_a_file_are_exact(kind: str) -> None:
    archive, target = MadeArchive(), FakeStorage()
    ends = (EARLIEST_MS, LATEST_MS)
    archive.segment(0, [MadeBatch((MadeRecord(at, end),)) for at, end in enumerate(ends)])
    archive.mark(0, 2)
    with files_job(archive.store, target, options(format=kind)) as job:
        [done] = new_run(job).done
    assert done.written.dead_letters == 0
    [(key, data)] = data_files(target.contents()).items()
    found = [row["timestamp"] for row in rows_of(key, data)]
    moments = [at if isinstance(at, datetime) else datetime.fromisoformat(at) for at in found]
    assert moments == [moment(end) for end in ends]
